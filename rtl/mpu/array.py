"""The systolic array: an offset row, the PE rows, skew on the way in and out."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from dstar.gen.config import Config
from dstar.rtl.hierarchy import shared
from dstar.rtl.mpu.tile import PERow, digits_layout, flat, sums_layout, weights_layout


def delayed(m: Module, value: Value, cycles: int, *, name: str, reset_less: bool = True) -> Value:
    """``value`` as it was ``cycles`` cycles ago."""
    for stage in range(cycles):
        register = Signal(len(value), name=f"{name}_{stage}", reset_less=reset_less)
        m.d.sync += register.eq(value)
        value = register
    return value


class PEArray(wiring.Component):
    """``rows x cols`` PEs, output-stationary, fed with one beat a cycle.

    Above the first row stands the *offset row*.  Slices reach the PEs as signed digits; an
    unsigned slice value ``u`` (0..3) is presented as ``u - 2``, and the offset row takes -2 for
    that lane.  Subtracting the offset row from every other row restores ``u`` exactly, for one
    extra row in 64, and lets every lane be a selection instead of a multiplier.  The PEs' common
    bias (:class:`dstar.rtl.mpu.pe.PE`) cancels in the same subtraction.  All sums are modulo
    ``2**acc_width``; the difference is the tile's sum, which that width holds by
    :attr:`dstar.gen.config.NumericConfig.acc_bound`.

    Members
    -------
    digits: one beat, unskewed, all tokens; offset: the offset row's digits for that beat.
    keep, double: the beat's control (:class:`dstar.rtl.mpu.pe.PE`).
    weights: per column, skewed: cluster column ``j`` is presented ``j`` cycles after ``digits``.
    pop, start: take one column of sums from the right edge; ``start`` with a tile's first.
    sums: the column that was popped :attr:`drain_latency` cycles ago, all tokens aligned.

    Latency: :attr:`capture_latency` from the beat that begins the next tile until the finished
    one may be popped; :attr:`drain_latency` from ``pop`` to ``sums``.
    """

    def __init__(self, cfg: Config) -> None:
        self.cfg = cfg
        super().__init__(
            {
                "digits": In(flat(digits_layout(cfg, cfg.array.rows))),
                "offset": In(flat(digits_layout(cfg, 1))),
                "keep": In(1, init=1),
                "double": In(1),
                "weights": In(flat(weights_layout(cfg, cfg.array.cols))),
                "pop": In(1),
                "start": In(1),
                "sums": Out(flat(sums_layout(cfg, cfg.array.rows))),
            }
        )

    @property
    def capture_latency(self) -> int:
        """Cycles from a tile's first beat to the rightmost captured sum of the one before."""
        return self.cfg.array.block_cols + 1

    @property
    def drain_latency(self) -> int:
        """Cycles from ``pop`` to ``sums``: one a row of blocks, one for the subtraction."""
        return self.cfg.array.block_rows + 1

    def elaborate(self, platform: Any) -> Module:
        """Offset row, rows below it, skew in, deskew and subtraction out."""
        m = Module()
        array = self.cfg.array
        cluster = array.cluster

        above = PERow(self.cfg, rows=1, offset=True)
        m.submodules.offset_row = shared(platform, above)
        m.d.comb += [
            above.digits.eq(self.offset),
            above.keep_i.eq(self.keep),
            above.double_i.eq(self.double),
            above.shift_i.eq(self.pop),
            above.start_i.eq(self.start),
            above.weights_i.eq(self.weights),
        ]
        offset_sum = delayed(m, above.sums, array.block_rows, name="offset_deskew")

        for block in range(array.block_rows):
            row = PERow(self.cfg, rows=cluster)
            m.submodules[f"row_{block}"] = shared(platform, row)
            digits = self.digits.word_select(block, len(row.digits))
            m.d.comb += [
                row.digits.eq(delayed(m, digits, block + 1, name=f"skew_{block}")),
                row.keep_i.eq(above.keep_o),
                row.double_i.eq(above.double_o),
                row.shift_i.eq(above.shift_o),
                row.start_i.eq(above.start_o),
                row.weights_i.eq(above.weights_o),
            ]
            hops = array.block_rows - 1 - block
            sums = delayed(m, row.sums, hops, name=f"deskew_{block}")
            differences = Signal(len(sums), name=f"differences_{block}", reset_less=True)
            width = self.cfg.numeric.acc_width
            m.d.sync += differences.eq(
                Cat(*((sums.word_select(i, width) - offset_sum)[:width] for i in range(cluster)))
            )
            m.d.comb += self.sums.word_select(block, len(sums)).eq(differences)
            above = row
        return m
