"""Checks the bin table before a tile uses it."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from dstar.gen.config import EXPONENT_BITS, MAX_PRECISION, MAX_SLICES, SLICE_BITS, Config
from dstar.golden.half import MIN_EXPONENT
from dstar.golden.mpc.table import UNUSED
from dstar.rtl.qpu.streams import INDEX_BITS, TABLE_ENTRIES, bin_layout
from dstar.rtl.store import Store

#: binary16's pattern of infinity: finite thresholds lie below.
INFINITY = 0x7C00
#: ``(2**(p-1) - 1) * 2**-f`` is a binary16 number for ``f >= p - LOWEST``.
LOWEST = 17


class TableCheck(wiring.Component):
    """The rules of :class:`dstar.golden.bins.BinTable`, a row a cycle.

    Every row was written; thresholds are finite and ascend until the first unused row, which and
    all behind it repeat the last; a row without slices has exponent 0; exponents keep codes within
    binary16 and sums within the accumulator; some row has slices.

    Members
    -------
    write, index, row: as the QPU gets them.
    check: wants the verdict.  known: it is there, and stands until the next write.
    legal: the rules are kept.  finest: largest exponent of a row that has slices.

    Latency: 17 cycles from the first ``check`` after a ``write`` to ``known``.
    """

    def __init__(self, cfg: Config) -> None:
        self.cfg = cfg
        super().__init__(
            {
                "write": In(1),
                "index": In(INDEX_BITS),
                "row": In(bin_layout()),
                "check": In(1),
                "known": Out(1),
                "legal": Out(1),
                "finest": Out(signed(EXPONENT_BITS)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """A copy of the table, and what the rows so far say."""
        m = Module()
        layout = bin_layout()
        m.submodules.rows = rows = Store(width=layout.size, depth=TABLE_ENTRIES)
        written = Signal(TABLE_ENTRIES)
        place, active, shown = Signal(range(TABLE_ENTRIES + 1)), Signal(), Signal()
        m.d.comb += [
            rows.write.eq(self.write),
            rows.write_address.eq(self.index),
            rows.write_data.eq(self.row.as_value()),
            active.eq(self.check & ~self.known & (place != TABLE_ENTRIES)),
            rows.enable.eq(active),
            rows.address.eq(place),
        ]
        m.d.sync += shown.eq(active)
        with m.If(self.write):
            m.d.sync += [written.bit_select(self.index, 1).eq(1), self.known.eq(0), place.eq(0)]
        with m.Elif(active):
            m.d.sync += place.eq(place + 1)
        with m.Elif(shown):
            m.d.sync += self.known.eq(1)

        # What the rows so far say; the first one begins anew.
        row = data.View(layout, rows.data)
        first, ended, some, legal = Signal(), Signal(), Signal(), Signal()
        before = Signal(layout)
        room = signed(EXPONENT_BITS + 3)
        highest, ceiling = Signal(signed(EXPONENT_BITS)), Signal(room)
        spare, reach = Signal(room), Signal(room)
        unused, right, used = Signal(), Signal(), Signal()
        ahead = Signal()
        m.d.comb += [
            first.eq(place == 1),
            unused.eq(row.threshold == UNUSED),
            used.eq(row.slices != 0),
            # max_q << (finest - f) stays within the channel's bound up to this finest.
            spare.eq(self.cfg.numeric.exponent_span + MAX_PRECISION - SLICE_BITS * row.slices),
            reach.eq(row.exponent + spare),
        ]
        with m.If(unused):
            m.d.comb += right.eq(
                ~first & (row.slices == before.slices) & (row.exponent == before.exponent)
            )
        with m.Else():
            m.d.comb += right.eq(
                (first | (~ahead & (row.threshold > before.threshold)))
                & (row.threshold < INFINITY)
                & (row.slices <= MAX_SLICES)
                & Mux(
                    used,
                    (row.exponent <= -MIN_EXPONENT)
                    & (row.exponent >= SLICE_BITS * row.slices - LOWEST),
                    row.exponent == 0,
                )
            )
        m.d.comb += ahead.eq(ended & ~first)
        with m.If(shown):
            m.d.sync += [
                before.eq(row),
                ended.eq(ahead | unused),
                legal.eq((legal | first) & right),
                some.eq((some & ~first) | used),
            ]
            with m.If(used):
                fresh = first | ~some
                m.d.sync += [
                    highest.eq(Mux(fresh | (row.exponent > highest), row.exponent, highest)),
                    ceiling.eq(Mux(fresh | (reach < ceiling), reach, ceiling)),
                ]
        m.d.comb += [
            self.legal.eq(legal & some & written.all() & (highest <= ceiling)),
            self.finest.eq(highest),
        ]
        return m
