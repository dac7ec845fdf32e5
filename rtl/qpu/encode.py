"""QPU stage 5: sorted metadata and stored codes become the words of an encoded tile."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from dstar.gen.config import MAX_PRECISION, MAX_SLICES, SLICE_BITS, Config
from dstar.rtl.hierarchy import shared
from dstar.rtl.qpu.logic import added, or_all
from dstar.rtl.qpu.streams import channels_bits, header_layout, order_layout
from dstar.rtl.store import Store
from dstar.rtl.streams import metadata_layout, slices_layout


class Encode(wiring.Component):
    """Keeps the quantized codes of the tiles on their way and reads them in sorted order.

    A word needs ``lanes`` slices of unrelated channels.  The codes are stored once a lane (each
    copy one write, one read port, all written together), so any ``lanes`` slices can be read in
    any cycle: one word a cycle for every tile, however its channels are ordered.  At ``paper``
    that is 4 copies of 272 channels of 512 bits, 68 KB.  One copy would give one slice a cycle:
    tiles of 8 bits would take 512 cycles to leave, four times as long as to arrive, and the MPU,
    which needs 256 for two column tiles of them, would wait.

    Channels of all tiles lie one after the other in a ring that is a little longer than two
    tiles: while one leaves and the next waits, a third begins to arrive.

    Members
    -------
    write, codes: quantized codes of the next channel, 8 bits a token, two's complement.
    order: stream of sorted metadata; its channels have been written.
    output: stream of :func:`~dstar.rtl.streams.slices_layout`.
    header: stream of :func:`~dstar.rtl.qpu.streams.header_layout`, with a tile's last word.
    freed: channels whose places in the ring are free again from the next cycle on.

    Parameters
    ----------
    depth: places of the ring, in channels.

    Latency: 1 from ``order`` to ``output``.
    """

    #: Cycles from a sorted word to the output.
    latency = 1

    def __init__(self, cfg: Config, *, depth: int) -> None:
        self.cfg = cfg
        self.depth = depth
        super().__init__(
            {
                "write": In(1),
                "codes": In(MAX_PRECISION * cfg.array.rows),
                "order": In(stream.Signature(order_layout(cfg))),
                "output": Out(stream.Signature(slices_layout(cfg))),
                "header": Out(stream.Signature(header_layout(cfg))),
                "freed": Out(channels_bits(cfg)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """A ring of channels a lane, a selection of slices, the output registers."""
        m = Module()
        rows, lanes = self.cfg.array.rows, self.cfg.array.lanes
        order, output = self.order.payload, self.output.payload

        place, start = Signal(range(self.depth)), Signal(range(self.depth))
        with m.If(self.write):
            m.d.sync += place.eq(added(m, "next_place", place, 1, self.depth))

        # The header leaves with the last word; the one of the tile before must be gone.
        step, blocked = Signal(), Signal()
        m.d.comb += [
            blocked.eq(order.last & self.header.valid & ~self.header.ready),
            step.eq((~self.output.valid | self.output.ready) & ~blocked),
            self.order.ready.eq(step),
        ]
        with m.If(self.header.ready):
            m.d.sync += self.header.valid.eq(0)
        with m.If(self.output.ready):
            m.d.sync += self.output.valid.eq(0)
        moves = self.order.valid & step
        with m.If(moves):
            m.d.sync += self.output.valid.eq(1)
            with m.If(order.last):
                m.d.comb += self.freed.eq(order.header.channels)
                m.d.sync += [
                    start.eq(added(m, "next_start", start, order.header.channels, self.depth)),
                    self.header.valid.eq(1),
                    self.header.payload.eq(order.header),
                ]
            m.d.sync += [
                output.count.eq(order.count),
                output.last.eq(order.last),
                output.exponent.eq(order.header.exponent),
            ]

        # Slice planes: plane n holds bits 2n + 1 and 2n of every token.
        planes = Cat(
            self.codes.word_select(row * MAX_SLICES + n, SLICE_BITS)
            for n in range(MAX_SLICES)
            for row in range(rows)
        )
        metadata = Signal(data.ArrayLayout(metadata_layout(self.cfg), lanes), reset_less=True)
        m.d.comb += output.metadata.eq(metadata)
        for lane in range(lanes):
            entry = order.entries[lane]
            copy = Store(width=len(planes), depth=self.depth)
            m.submodules[f"copy_{lane}"] = shared(platform, copy)
            select = Signal(MAX_SLICES, name=f"select_{lane}", reset_less=True)
            with m.If(moves):
                m.d.sync += [
                    metadata[lane].eq(entry.metadata),
                    select.eq(Mux(order.count > lane, 1 << entry.index, 0)),
                ]
            m.d.comb += [
                copy.write.eq(self.write),
                copy.write_address.eq(place),
                copy.write_data.eq(planes),
                copy.enable.eq(moves),
                copy.address.eq(
                    added(m, f"address_{lane}", start, entry.metadata.channel, self.depth)
                ),
                output.codes[lane]
                .as_value()
                .eq(
                    or_all(
                        [
                            copy.data.word_select(n, rows * SLICE_BITS)
                            & select[n].replicate(rows * SLICE_BITS)
                            for n in range(MAX_SLICES)
                        ]
                    )
                ),
            ]
        return m
