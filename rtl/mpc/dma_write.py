"""AXI4 write DMA: transfers of words from the unified buffer to memory."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Signal, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from dstar.rtl.mpc.access import BufferReader, WordWalk
from dstar.rtl.mpc.axi import LENGTH_BITS, write_signature
from dstar.rtl.mpc.buffer import read_signature
from dstar.rtl.mpc.bus import BusShape, status_signature
from dstar.rtl.mpc.convert import Cut
from dstar.rtl.mpc.queue import StreamQueue


class WriteDMA(wiring.Component):
    """Copies rows of words from the unified buffer to memory.

    Parameters
    ----------
    shape: the bus; its ``id_bits`` is not used, all bursts have ID 0.

    Members
    -------
    transfer: stream of :attr:`~dstar.rtl.mpc.bus.BusShape.transfer`; several may be under way.
    axi: :func:`~dstar.rtl.mpc.axi.write_signature`.
    port: read port of the buffer.
    done: a transfer's last response came (pulse); in the order of the transfers.  None comes for
        one that was stopped or failed.
    status: :func:`~dstar.rtl.mpc.bus.status_signature`; ``error_address`` is that of the
        burst, since AXI answers a burst as a whole.

    After ``stop`` or an error, bursts that were announced are completed with all strobes at zero,
    which writes nothing and asks nothing of the buffer.
    Throughput: a beat a cycle.
    """

    def __init__(self, shape: BusShape) -> None:
        self.shape = shape
        axi = write_signature(address_bits=shape.address_bits, data_bits=shape.data_bits)
        port = read_signature(width=shape.word_bits, address_bits=shape.buffer_bits)
        super().__init__(
            {
                "transfer": In(stream.Signature(shape.transfer)),
                "axi": Out(axi),
                "port": Out(port),
                "done": Out(1),
                "status": Out(status_signature(shape.address_bits)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Bursts to AW and two records each: its length for W, its address for B."""
        m = Module()
        shape, axi, status = self.shape, self.axi, self.status
        m.submodules.splitter = splitter = shape.splitter()
        m.submodules.walk = walk = WordWalk(shape.transfer)
        m.submodules.reader = reader = BufferReader(
            width=shape.word_bits,
            address_bits=shape.buffer_bits,
            depth=3 if shape.word_beats == 1 else 2,
        )
        m.submodules.cut = cut = Cut(width=shape.data_bits, count=shape.word_beats)
        m.submodules.lengths = lengths = StreamQueue(LENGTH_BITS, depth=shape.outstanding)
        record = data.StructLayout({"address": unsigned(shape.address_bits), "last": 1})
        m.submodules.records = records = StreamQueue(record, depth=shape.outstanding)
        m.d.comb += [
            reader.addresses.payload.eq(walk.words.payload.address),
            reader.addresses.valid.eq(walk.words.valid),
            walk.words.ready.eq(reader.addresses.ready),
        ]
        wiring.connect(m, reader.port, wiring.flipped(self.port))
        wiring.connect(m, reader.words, cut.input)

        halted, take = Signal(), Signal()
        burst = splitter.bursts.payload
        m.d.comb += [
            halted.eq(status.stop | status.error),
            self.transfer.ready.eq(splitter.transfer.ready & walk.transfer.ready & ~halted),
            splitter.transfer.payload.eq(self.transfer.payload),
            splitter.transfer.valid.eq(self.transfer.valid & walk.transfer.ready & ~halted),
            walk.transfer.payload.eq(self.transfer.payload),
            walk.transfer.valid.eq(self.transfer.valid & splitter.transfer.ready & ~halted),
            take.eq(
                (splitter.bursts.valid & lengths.input.ready & records.input.ready & ~halted)
                & (~axi.address.valid | axi.address.ready)
            ),
            splitter.bursts.ready.eq(take),
            lengths.input.payload.eq(burst.length),
            lengths.input.valid.eq(take),
            records.input.payload.address.eq(burst.address),
            records.input.payload.last.eq(burst.last),
            records.input.valid.eq(take),
        ]
        # Data may be offered before the address is taken: AXI forbids to wait for that.
        address = Signal.like(burst.address, reset_less=True)
        length = Signal.like(burst.length, reset_less=True)
        m.d.comb += [axi.address.payload.address.eq(address), axi.address.payload.length.eq(length)]
        with m.If(take):
            m.d.sync += [axi.address.valid.eq(1), address.eq(burst.address)]
            m.d.sync += length.eq(burst.length)
        with m.Elif(axi.address.ready):
            m.d.sync += axi.address.valid.eq(0)

        self._data(m, halted, lengths, cut)
        self._responses(m, halted, records)
        m.d.comb += status.idle.eq(
            ~axi.address.valid & ~lengths.output.valid & ~records.output.valid
        )
        return m

    def _data(self, m: Module, halted: Signal, lengths: StreamQueue, cut: Cut) -> None:
        """W: beats of the oldest burst; a beat that was offered stays as it is until taken."""
        beat, offered = self.axi.data, Signal()
        offset = Signal(LENGTH_BITS)
        blank = Signal()
        m.d.comb += [
            beat.payload.data.eq(cut.output.payload),
            beat.payload.strobe.eq((~blank).replicate(len(beat.payload.strobe))),
            beat.payload.last.eq(offset == lengths.output.payload),
            beat.valid.eq(lengths.output.valid & (blank | cut.output.valid)),
            offered.eq(beat.valid & ~beat.ready),
            cut.output.ready.eq(lengths.output.valid & beat.ready & ~blank),
            lengths.output.ready.eq(beat.valid & beat.ready & beat.payload.last),
        ]
        with m.If(halted & ~offered):
            m.d.sync += blank.eq(1)
        with m.If(beat.valid & beat.ready):
            with m.If(beat.payload.last):
                m.d.sync += offset.eq(0)
            with m.Else():
                m.d.sync += offset.eq(offset + 1)

    def _responses(self, m: Module, halted: Signal, records: StreamQueue) -> None:
        """B: ends of bursts, and the first error."""
        response, oldest = self.axi.response, records.output.payload
        failed = Signal()
        m.d.comb += [
            failed.eq(response.payload[1]),
            response.ready.eq(1),
            records.output.ready.eq(response.valid),
        ]
        m.d.sync += self.done.eq(response.valid & oldest.last & ~failed & ~halted)
        with m.If(response.valid & failed & ~self.status.error):
            m.d.sync += [
                self.status.error.eq(1),
                self.status.error_address.eq(oldest.address),
                self.status.error_response.eq(response.payload),
            ]
