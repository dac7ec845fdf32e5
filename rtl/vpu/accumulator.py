"""Exact fixed-point accumulator of one lane."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib.wiring import In, Out

from dstar.gen.config import VectorConfig
from dstar.golden.vpu.float import FRACTION_BITS, SIGNIFICAND_BITS, WIDTH
from dstar.rtl.hierarchy import Shared
from dstar.rtl.vpu.control import accumulator_layout, magnitude_bits, unrounded_layout
from dstar.rtl.vpu.float import WORK_EXPONENT, Fields, wire

#: Places of a term below the accumulator's last that can still round it.
_BELOW = SIGNIFICAND_BITS + 2


class VPUAccumulator(Shared):
    """Sum of private floats in fixed point (:class:`dstar.golden.vpu.float.Accumulator`).

    Each term is rounded to a multiple of ``2**-acc_fraction``, to nearest even; the sum is exact,
    so no order of summation matters, within a lane or across lanes.

    Members
    -------
    add, term: add a private float.
    fold, other: add another lane's accumulator (not together with ``add``).
    clear: become +0 (outweighs the others).
    value: the accumulator.
    unrounded: the same for the rounding stage.
    """

    def __init__(self, cfg: VectorConfig) -> None:
        self.cfg = cfg
        super().__init__(
            {
                "add": In(1),
                "term": In(WIDTH),
                "fold": In(1),
                "other": In(accumulator_layout(cfg)),
                "clear": In(1),
                "value": Out(accumulator_layout(cfg)),
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
        other = self.other
        addend = wire(m, "addend", Mux(self.fold, other.total, term.as_signed()))
        total = wire(
            m,
            "sum",
            acc.total + addend + Mux(self.fold, 0, carry),
            signed(self.cfg.acc_width + 1),
        )
        over = wire(m, "over", total[-1] ^ total[-2])
        infinite = beyond & ~x.nan
        with m.If(self.clear):
            m.d.sync += acc.eq(0)
        with m.Elif(self.add | self.fold):
            with m.If(~over):
                m.d.sync += acc.total.eq(total)
            for flag, left, came, new in (
                (acc.invalid, 0, other.invalid, x.nan),
                (acc.positive, over & ~total[-1], other.positive, infinite & ~x.sign),
                (acc.negative, over & total[-1], other.negative, infinite & x.sign),
            ):
                m.d.sync += flag.eq(flag | left | Mux(self.fold, came, new))
        m.d.comb += self.value.eq(acc)
        self._unrounded(m, acc)
        return m

    def _aligned(self, m: Module, x: Fields) -> tuple[Value, Value, Value]:
        """A term in two's complement less its carry-in, that, and whether it is out of range."""
        width, fraction = self.cfg.acc_width, self.cfg.acc_fraction
        up = wire(m, "up", x.exponent + (fraction - FRACTION_BITS), signed(WORK_EXPONENT + 1))
        beyond = wire(m, "beyond", ~x.zero & (x.exponent >= width - 1 - fraction))
        left = wire(m, "left", x.significand << Mux(up < 0, 0, up)[:6], width)
        down = Mux(up < -_BELOW, _BELOW, -up)[:5]
        right = wire(
            m, "right", Cat(Const(0, _BELOW), x.significand) >> down, SIGNIFICAND_BITS + _BELOW
        )
        odd, guard, sticky = right[_BELOW], right[_BELOW - 1], right[: _BELOW - 1].any()
        round_up = wire(m, "round_up", (up < 0) & guard & (sticky | odd))
        size = Mux(up < 0, right[_BELOW:], left)[:width]
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
