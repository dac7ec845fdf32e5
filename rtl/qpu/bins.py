"""QPU stages 1 and 2: largest magnitude of a token vector, precision and scale from a table."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from dstar.gen.config import EXPONENT_BITS, Config
from dstar.rtl.qpu.streams import (
    HALF_BITS,
    INDEX_BITS,
    MAGNITUDE_BITS,
    SLICES_BITS,
    TABLE_ENTRIES,
    bin_layout,
)

#: Levels of comparators between two registers of the tree.
LEVELS_PER_STAGE = 3


def tree_latency(cfg: Config) -> int:
    """Registers of the tree of comparators over ``rows`` magnitudes."""
    levels = (cfg.array.rows - 1).bit_length()
    return max(1, -(-levels // LEVELS_PER_STAGE))


def _halved(m: Module, name: str, values: list[Value]) -> list[Value]:
    """The larger value of each pair; of an odd number the last one stays."""
    larger: list[Value] = []
    for a, b in zip(values[::2], values[1::2], strict=False):
        node = Signal.like(a, name=f"{name}_{len(larger)}")
        m.d.comb += node.eq(Mux(a > b, a, b))
        larger.append(node)
    return larger + values[2 * len(larger) :]


class MagnitudeTree(wiring.Component):
    """Stage 1: the largest magnitude of a vector (paper, section 4.2).

    binary16 magnitudes order as the 15 bits below the sign do, NaN above infinity.

    Members
    -------
    enable: moves the pipeline on.
    vector: ``rows`` binary16 patterns.  peak: the largest 15-bit magnitude.

    Latency: :attr:`latency`.  Throughput: one vector a cycle.
    """

    def __init__(self, cfg: Config) -> None:
        self.cfg = cfg
        super().__init__(
            {
                "enable": In(1),
                "vector": In(HALF_BITS * cfg.array.rows),
                "peak": Out(MAGNITUDE_BITS),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles with ``enable`` from a vector to its peak."""
        return tree_latency(self.cfg)

    def elaborate(self, platform: Any) -> Module:
        """A comparator tree, registered every few levels and at its end."""
        m = Module()
        values: list[Value] = [
            self.vector.word_select(row, HALF_BITS)[:MAGNITUDE_BITS]
            for row in range(self.cfg.array.rows)
        ]
        for stage in range(self.latency):
            for level in range(LEVELS_PER_STAGE):
                values = _halved(m, f"stage{stage}_level{level}", values)
            kept = [
                Signal(MAGNITUDE_BITS, name=f"stage{stage}_{i}", reset_less=True)
                for i in range(len(values))
            ]
            with m.If(self.enable):
                m.d.sync += [a.eq(b) for a, b in zip(kept, values, strict=True)]
            values = list(kept)
        m.d.comb += self.peak.eq(values[0])
        return m


class BinSelect(wiring.Component):
    """Stage 2: a programmable table compared in parallel, decoded from one-hot (figure 12).

    Thresholds ascend.  The first row whose threshold is not below the peak is chosen, beyond all
    of them the last row.  A table of fewer rows fills the others with copies of its last one.
    After reset all rows have 0 slices: every sub-channel is skipped.

    Members
    -------
    write, index, row: program a row, while no vector is on its way.
    enable, peak: look up.  slices, exponent: of the chosen row, one cycle later.
    finest: largest exponent of a row that has slices; settles two cycles after a write.

    Latency: 1.
    """

    #: Cycles with ``enable`` from a peak to its parameters.
    latency = 1

    def __init__(self, cfg: Config) -> None:
        self.cfg = cfg
        super().__init__(
            {
                "write": In(1),
                "index": In(INDEX_BITS),
                "row": In(bin_layout()),
                "enable": In(1),
                "peak": In(MAGNITUDE_BITS),
                "slices": Out(SLICES_BITS),
                "exponent": Out(signed(EXPONENT_BITS)),
                "finest": Out(signed(EXPONENT_BITS)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Rows, comparators, one-hot, decoder."""
        m = Module()
        table = Signal(data.ArrayLayout(bin_layout(), TABLE_ENTRIES))
        for i in range(TABLE_ENTRIES):
            with m.If(self.write & (self.index == i)):
                m.d.sync += table[i].eq(self.row)

        # Thresholds ascend, so the flags are a thermometer; its edge is the one-hot choice.
        serves = [self.peak <= table[i].threshold for i in range(TABLE_ENTRIES - 1)]
        chosen = Signal(TABLE_ENTRIES)
        m.d.comb += chosen.eq(
            Cat(*(s & ~before for s, before in zip(serves, [Const(0, 1), *serves], strict=False)))
            | (~serves[-1]) << TABLE_ENTRIES - 1
        )
        slices, exponent = Const(0, SLICES_BITS), Const(0, EXPONENT_BITS)
        for i in range(TABLE_ENTRIES):
            slices |= table[i].slices & chosen[i].replicate(SLICES_BITS)
            exponent |= table[i].exponent.as_unsigned() & chosen[i].replicate(EXPONENT_BITS)
        with m.If(self.enable):
            m.d.sync += [self.slices.eq(slices), self.exponent.eq(exponent)]

        lowest = Const(-(1 << EXPONENT_BITS - 1), signed(EXPONENT_BITS))
        used: list[Value] = [
            Mux(table[i].slices != 0, table[i].exponent, lowest) for i in range(TABLE_ENTRIES)
        ]
        while len(used) > 1:
            used = _halved(m, f"finest_{len(used)}", used)
        m.d.sync += self.finest.eq(used[0])
        return m
