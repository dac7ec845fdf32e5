"""A plain INT8 systolic array: what the mixed-precision array is measured against.

Everything but the multiplier is as in :mod:`dstar.rtl.mpu.pe` and :mod:`dstar.rtl.mpu.tile`:
accumulator
width, shadow path with the same gates, blocks of PEs behind shared operand registers, drain
control.  A PE multiplies one 8-bit activation by one weight a cycle, which is what four 2-bit
lanes do at 8-bit precision; the multiplier's form is left to the synthesis tool.
"""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Signal, Value, signed
from amaranth.lib.wiring import In, Out

from dstar.gen.config import MAX_PRECISION, Config
from dstar.rtl.hierarchy import Shared, shared


class Int8PE(Shared):
    """``acc' = (acc if keep else 0) + activation * weight``, modulo ``2**acc_width``.

    Members
    -------
    activation, weight: signed operands.
    keep: 0 begins a new sum and moves the finished one into the shadow register.
    shift, shadow_i, shadow_o: shadow path, as in :class:`dstar.rtl.mpu.pe.PE`.
    """

    def __init__(self, cfg: Config) -> None:
        self.cfg = cfg
        super().__init__(
            {
                "activation": In(signed(MAX_PRECISION)),
                "weight": In(signed(cfg.numeric.weight_bits)),
                "keep": In(1),
                "shift": In(1),
                "shadow_i": In(cfg.numeric.acc_width),
                "shadow_o": Out(cfg.numeric.acc_width),
            }
        )

    @property
    def module_name(self) -> str:
        """Verilog module name."""
        return "int8_pe"

    def elaborate(self, platform: Any) -> Module:
        """Multiply, add, keep."""
        m = Module()
        width = self.cfg.numeric.acc_width
        acc = Signal(signed(width), reset_less=True)
        base = Signal(signed(width))
        m.d.comb += base.eq(acc & self.keep.replicate(width))
        m.d.sync += acc.eq(base + self.activation * self.weight)
        self.connect_shadow(m, acc)
        return m

    def connect_shadow(self, m: Module, acc: Signal) -> None:
        """The shadow register: capture, move on or stay, as :class:`~dstar.rtl.mpu.pe.PE` does."""
        width = self.cfg.numeric.acc_width
        shadow = Signal(width, reset_less=True)
        move, stay = Signal(), Signal()
        m.d.comb += [
            move.eq(self.shift & self.keep),
            stay.eq(~self.shift & self.keep),
            self.shadow_o.eq(shadow),
        ]
        m.d.sync += shadow.eq(
            acc & (~self.keep).replicate(width)
            | self.shadow_i & move.replicate(width)
            | shadow & stay.replicate(width)
        )


class Int8Tile(Shared):
    """``rows x cols`` PEs behind one set of operand registers, as ``dstar.rtl.mpu.tile.PETile``.

    Members as there, with ``activations`` for ``digits`` and without ``double``.  ``pe``: the PE's
    class.
    """

    def __init__(self, cfg: Config, *, rows: int, pe: type[Int8PE] = Int8PE) -> None:
        self.cfg = cfg
        self.rows = rows
        self.pe = pe
        self.cols = cfg.array.cluster
        activations, weights = rows * MAX_PRECISION, self.cols * cfg.numeric.weight_bits
        super().__init__(
            {
                "activations_i": In(activations),
                "activations_o": Out(activations),
                "keep_i": In(1),
                "keep_o": Out(1),
                "weights_i": In(weights),
                "weights_o": Out(weights),
                "shift": In(1),
                "start": In(1),
                "shadow_i": In(rows * cfg.numeric.acc_width),
                "shadow_o": Out(rows * cfg.numeric.acc_width),
            }
        )

    @property
    def module_name(self) -> str:
        """Verilog module name."""
        return f"int8_tile_{self.rows}x{self.cols}"

    def elaborate(self, platform: Any) -> Module:
        """Registers on two edges, PEs between them."""
        m = Module()
        activations = Signal(len(self.activations_i), reset_less=True)
        weights = Signal(len(self.weights_i), reset_less=True)
        keep = Signal(init=1)
        hold, moving = Signal(), Signal()
        m.d.sync += [
            activations.eq(self.activations_i),
            weights.eq(self.weights_i),
            keep.eq(self.keep_i),
            hold.eq(~keep | hold & ~self.start),
        ]
        m.d.comb += [
            self.activations_o.eq(activations),
            self.weights_o.eq(weights),
            self.keep_o.eq(keep),
            moving.eq(self.shift & (self.start | ~hold)),
        ]
        for row in range(self.rows):
            path: Value = self.shadow_i.word_select(row, self.cfg.numeric.acc_width)
            for col in range(self.cols):
                pe = self.pe(self.cfg)
                m.submodules[f"pe_{row}_{col}"] = shared(platform, pe)
                m.d.comb += [
                    pe.activation.eq(activations.word_select(row, MAX_PRECISION).as_signed()),
                    pe.weight.eq(weights.word_select(col, len(pe.weight)).as_signed()),
                    pe.keep.eq(keep),
                    pe.shift.eq(moving),
                    pe.shadow_i.eq(path),
                ]
                path = pe.shadow_o
            m.d.comb += self.shadow_o.word_select(row, len(path)).eq(path)
        return m


class Int8Row(Shared):
    """A row of blocks with its control registers, as ``dstar.rtl.mpu.tile.PERow``.

    Members as there, with ``activations`` for ``digits`` and without ``double``.
    """

    def __init__(self, cfg: Config, *, rows: int) -> None:
        self.cfg = cfg
        self.rows = rows
        weights = cfg.array.cols * cfg.numeric.weight_bits
        super().__init__(
            {
                "activations": In(rows * MAX_PRECISION),
                "keep_i": In(1),
                "keep_o": Out(1, init=1),
                "shift_i": In(1),
                "shift_o": Out(1),
                "start_i": In(1),
                "start_o": Out(1),
                "weights_i": In(weights),
                "weights_o": Out(weights),
                "sums": Out(rows * cfg.numeric.acc_width),
            }
        )

    @property
    def module_name(self) -> str:
        """Verilog module name."""
        return f"int8_row_{self.rows}"

    def elaborate(self, platform: Any) -> Module:
        """Blocks side by side, each taking from its left neighbour."""
        m = Module()
        m.d.sync += [
            self.keep_o.eq(self.keep_i),
            self.shift_o.eq(self.shift_i),
            self.start_o.eq(self.start_i),
        ]
        activations, keep = self.activations, self.keep_i
        sums: Any = None
        for block in range(self.cfg.array.block_cols):
            tile = Int8Tile(self.cfg, rows=self.rows)
            m.submodules[f"tile_{block}"] = shared(platform, tile)
            m.d.comb += [
                tile.activations_i.eq(activations),
                tile.keep_i.eq(keep),
                tile.shift.eq(self.shift_i),
                tile.start.eq(self.start_i),
                tile.weights_i.eq(self.weights_i.word_select(block, len(tile.weights_i))),
                self.weights_o.word_select(block, len(tile.weights_o)).eq(tile.weights_o),
            ]
            if sums is not None:
                m.d.comb += tile.shadow_i.eq(sums)
            activations, keep, sums = tile.activations_o, tile.keep_o, tile.shadow_o
        m.d.comb += self.sums.eq(sums)
        return m
