"""AXI4 read DMA: transfers from memory as words for the unified buffer."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from dstar.rtl.mpc.access import WordWalk
from dstar.rtl.mpc.bus import BusShape, status_signature
from dstar.rtl.mpc.convert import Collect
from dstar.rtl.mpc.queue import StreamQueue

#: Transfers that a DMA can have under way.
TRANSFERS = 4


class BurstReader(wiring.Component):
    """Transfers as a stream of beats.

    Parameters
    ----------
    shape: the bus.
    identifier: ID of its bursts; AXI keeps bursts of one ID in order.
    receiver_beats: beats that the receiver can hold; 0 if it takes every beat sooner or later
        whatever else waits on the bus.  A burst is requested only when there is room for all of
        it, so the shared R channel never waits for such a receiver.

    Members
    -------
    transfer: stream of :attr:`~dstar.rtl.mpc.bus.BusShape.transfer`.
    axi: :attr:`~dstar.rtl.mpc.bus.BusShape.read`.
    beats: stream of beats.
    freed: the receiver has let go of a beat (pulse; used with ``receiver_beats``).
    status: :func:`~dstar.rtl.mpc.bus.status_signature`; ``error_address`` is that of the beat.

    Beats with an error, and all that come later, are dropped.  Transfers follow each other without
    waiting for each other's data.  Latency: two cycles to the first address; none on the beats.
    """

    def __init__(self, shape: BusShape, *, identifier: int = 0, receiver_beats: int = 0) -> None:
        if receiver_beats and receiver_beats < shape.max_beats:
            rule = f"0 or at least max_beats ({shape.max_beats})"
            raise ValueError(f"receiver_beats must be {rule}, got {receiver_beats}")
        self.shape = shape
        self.identifier = identifier
        self.receiver_beats = receiver_beats
        super().__init__(
            {
                "transfer": In(stream.Signature(shape.transfer)),
                "axi": Out(shape.read),
                "beats": Out(stream.Signature(shape.data_bits)),
                "freed": In(1),
                "status": Out(status_signature(shape.address_bits)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Address register, a record of each burst on the way, the place within the oldest."""
        m = Module()
        status, axi = self.status, self.axi
        m.submodules.splitter = splitter = self.shape.splitter()
        m.submodules.records = records = StreamQueue(
            self.shape.address_bits, depth=self.shape.outstanding
        )
        burst = splitter.bursts.payload

        halted, room = Signal(), Signal()
        take = Signal()
        m.d.comb += [
            halted.eq(status.stop | status.error),
            splitter.transfer.payload.eq(self.transfer.payload),
            splitter.transfer.valid.eq(self.transfer.valid & ~halted),
            self.transfer.ready.eq(splitter.transfer.ready & ~halted),
            take.eq(
                (splitter.bursts.valid & records.input.ready & room & ~halted)
                & (~axi.address.valid | axi.address.ready)
            ),
            splitter.bursts.ready.eq(take),
            records.input.valid.eq(take),
            records.input.payload.eq(burst.address),
            axi.address.payload.id.eq(self.identifier),
        ]
        address = Signal.like(burst.address, reset_less=True)
        length = Signal.like(burst.length, reset_less=True)
        m.d.comb += [axi.address.payload.address.eq(address), axi.address.payload.length.eq(length)]
        with m.If(take):
            m.d.sync += [axi.address.valid.eq(1), address.eq(burst.address)]
            m.d.sync += length.eq(burst.length)
        with m.Elif(axi.address.ready):
            m.d.sync += axi.address.valid.eq(0)
        self._reserve(m, room, take, burst.length)

        beat = axi.data.payload
        failed, drop, taken = Signal(), Signal(), Signal()
        offset = Signal(9)
        m.d.comb += [
            failed.eq(beat.response[1]),
            drop.eq(halted | failed),
            self.beats.valid.eq(axi.data.valid & ~drop),
            self.beats.payload.eq(beat.data),
            axi.data.ready.eq(drop | self.beats.ready),
            taken.eq(axi.data.valid & axi.data.ready),
            records.output.ready.eq(taken & beat.last),
            status.idle.eq(~axi.address.valid & ~records.output.valid),
        ]
        with m.If(taken):
            m.d.sync += offset.eq(Mux(beat.last, 0, offset + 1))
            with m.If(failed & ~status.error):
                m.d.sync += [
                    status.error.eq(1),
                    status.error_address.eq(
                        records.output.payload + offset * self.shape.beat_bytes
                    ),
                    status.error_response.eq(beat.response),
                ]
        return m

    def _reserve(self, m: Module, room: Signal, take: Signal, length: Any) -> None:
        """Count the receiver's free places, less those of beats on the way."""
        if not self.receiver_beats:
            m.d.comb += room.eq(1)
            return
        free = Signal(range(self.receiver_beats + 1), init=self.receiver_beats)
        m.d.comb += room.eq(free > length)
        m.d.sync += free.eq(free + self.freed - Mux(take, length + 1, 0))


class ReadDMA(wiring.Component):
    """Copies rows of words from memory into the unified buffer.

    Parameters
    ----------
    shape, identifier: as of :class:`BurstReader`.

    Members
    -------
    transfer: stream of :attr:`~dstar.rtl.mpc.bus.BusShape.transfer`; several may be under way.
    axi: :attr:`~dstar.rtl.mpc.bus.BusShape.read`.
    words: stream of :attr:`~dstar.rtl.mpc.bus.BusShape.words`, to a write port of the buffer.
    done: a transfer's last word was written (pulse); in the order of the transfers.  After an
        error it still comes for those before; none comes for one that failed, or after ``stop``.
    status: :func:`~dstar.rtl.mpc.bus.status_signature`.

    Words narrower than the bus are refused; wider ones are collected from beats, lowest first.
    Throughput: a beat a cycle.  R waits only while the buffer's bank serves others.
    """

    def __init__(self, shape: BusShape, *, identifier: int = 0) -> None:
        self.shape = shape
        self.identifier = identifier
        super().__init__(
            {
                "transfer": In(stream.Signature(shape.transfer)),
                "axi": Out(shape.read),
                "words": Out(stream.Signature(shape.words)),
                "done": Out(1),
                "status": Out(status_signature(shape.address_bits)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Reader, word register, and a walk through the buffer that follows behind."""
        m = Module()
        shape = self.shape
        m.submodules.reader = reader = BurstReader(shape, identifier=self.identifier)
        m.submodules.collect = collect = Collect(width=shape.data_bits, count=shape.word_beats)
        m.submodules.pending = pending = StreamQueue(shape.transfer, depth=TRANSFERS - 1)
        m.submodules.walk = walk = WordWalk(shape.transfer)
        wiring.connect(m, wiring.flipped(self.axi), reader.axi)
        wiring.connect(m, wiring.flipped(self.status), reader.status)
        wiring.connect(m, reader.beats, collect.input)
        wiring.connect(m, pending.output, walk.transfer)
        written = Signal()
        m.d.comb += [
            reader.transfer.payload.eq(self.transfer.payload),
            reader.transfer.valid.eq(self.transfer.valid & pending.input.ready),
            pending.input.payload.eq(self.transfer.payload),
            pending.input.valid.eq(self.transfer.valid & reader.transfer.ready),
            self.transfer.ready.eq(reader.transfer.ready & pending.input.ready),
            self.words.payload.data.eq(collect.output.payload),
            self.words.payload.address.eq(walk.words.payload.address),
            self.words.valid.eq(collect.output.valid & walk.words.valid),
            written.eq(self.words.valid & self.words.ready),
            collect.output.ready.eq(written),
            walk.words.ready.eq(written),
        ]
        m.d.sync += self.done.eq(written & walk.words.payload.last & ~self.status.stop)
        return m
