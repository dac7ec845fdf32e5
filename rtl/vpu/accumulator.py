"""Exact fixed-point accumulator of one lane."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib.wiring import In, Out

from dstar.gen.config import VectorConfig
from dstar.golden.vpu.float import FRACTION_BITS, WIDTH
from dstar.rtl.hierarchy import Shared
from dstar.rtl.vpu.control import accumulator_layout, magnitude_bits, unrounded_layout
from dstar.rtl.vpu.float import WORK_EXPONENT, Fields, at_most, shift_right, wire


class VPUAccumulator(Shared):
    """Sum of private floats in fixed point (:class:`dstar.golden.vpu.float.Accumulator`).

    Each term is rounded to a multiple of ``2**-acc_fraction``, to nearest even; the sum is exact,
    so no order of summation matters.

    Members
    -------
    add, term: add a private float.
    clear: become +0 (outweighs ``add``).
    unrounded: the sum, for the rounding stage.
    """

    def __init__(self, cfg: VectorConfig) -> None:
        self.cfg = cfg
        super().__init__(
            {
                "add": In(1),
                "term": In(WIDTH),
                "clear": In(1),
                "unrounded": Out(unrounded_layout(cfg)),
            }
        )

    @property
    def module_name(self) -> str:
        """Verilog module name."""
        return "vpu_accumulator"

    def elaborate(self, platform: Any) -> Module:
        """Align, add, note what leaves the range."""
        m = Module()
        acc = Signal(accumulator_layout(self.cfg))
        x = Fields(m, "term", self.term)
        term, carry, beyond = self._aligned(m, x)
        width = self.cfg.acc_width + 1
        total = wire(m, "sum", acc.total + term.as_signed() + carry, signed(width))
        over = wire(m, "over", total[-1] ^ total[-2])
        infinite = beyond & ~x.nan
        with m.If(self.add & ~over):
            m.d.sync += acc.total.eq(total)
        with m.If(self.add):
            m.d.sync += [
                acc.invalid.eq(acc.invalid | x.nan),
                acc.positive.eq(acc.positive | over & ~total[-1] | infinite & ~x.sign),
                acc.negative.eq(acc.negative | over & total[-1] | infinite & x.sign),
            ]
        with m.If(self.clear):
            m.d.sync += acc.eq(0)
        self._unrounded(m, acc)
        return m

    def _aligned(self, m: Module, x: Fields) -> tuple[Value, Value, Value]:
        """A term in two's complement less its carry-in, that, and whether it is out of range."""
        width, fraction = self.cfg.acc_width, self.cfg.acc_fraction
        up = wire(m, "up", x.exponent + (fraction - FRACTION_BITS), signed(WORK_EXPONENT + 1))
        down = wire(m, "down", -up, signed(WORK_EXPONENT + 2))
        beyond = wire(m, "beyond", ~x.zero & (x.exponent >= width - 1 - fraction))
        below = up[-1]
        left = wire(m, "left", x.significand << (up[:6] & (~below).replicate(6)), width)
        # Below the last place: guard and sticky.
        right = shift_right(m, "term", Cat(Const(0, 2), x.significand), at_most(down[:-1], 5))
        odd, guard, sticky = right[2], right[1], right[0]
        round_up = wire(m, "round_up", below & guard & (sticky | odd))
        size = wire(m, "term_size", Mux(below, right[2:], left), width)
        # -(size + 1 if rounded up) is ~size, plus one if not.
        used = ~(beyond | x.zero)
        term = wire(m, "aligned", (size ^ x.sign.replicate(width)) & used.replicate(width), width)
        return term, used & (x.sign ^ round_up), beyond

    def _unrounded(self, m: Module, acc: Any) -> None:
        """Magnitude in the rounding stage's width: a large one loses low bits to a sticky one."""
        width, bits = self.cfg.acc_width, magnitude_bits(self.cfg)
        cut = max(0, width - bits)
        size = wire(m, "size", Mux(acc.total[-1], -acc.total, acc.total)[:width], width)
        large = wire(m, "large", size[bits:].any() if cut else Const(0, 1))
        top = Cat(size[: cut + 1].any(), size[cut + 1 :])
        m.d.comb += [
            self.unrounded.magnitude.eq(Mux(large, top, size[:bits])),
            self.unrounded.exponent.eq(Mux(large, cut, 0) - self.cfg.acc_fraction),
            self.unrounded.sign.eq(acc.negative | ~acc.positive & acc.total[-1]),
            self.unrounded.inf.eq(acc.positive | acc.negative),
            self.unrounded.nan.eq(acc.invalid | acc.positive & acc.negative),
        ]
