"""Multiplier of one lane, and the non-linear functions that it evaluates."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data
from amaranth.lib.wiring import In, Out

from dstar.gen.config import VectorConfig
from dstar.golden.vpu.float import FRACTION_BITS, SIGNIFICAND_BITS, WIDTH
from dstar.golden.vpu.isa import Op
from dstar.golden.vpu.steps import Horner, Magnitude, Place
from dstar.golden.vpu.tables import POSITION_BITS
from dstar.golden.vpu.unary import FIXED_BITS, LARGE, REDUCED_BITS
from dstar.rtl.hierarchy import Shared
from dstar.rtl.vpu.control import control_layout, unrounded_layout
from dstar.rtl.vpu.float import WORK_EXPONENT, Fields, wire

#: Bits of a scaled argument: 8 above the binary point, those of range reduction, and a sign.
SCALED_BITS = 8 + REDUCED_BITS + 1


class VPUFunction(Shared):
    """One multiplier, ``width`` x 16 bits, that serves products, range reduction and Horner's rule.

    Bit for bit :class:`dstar.golden.vpu.unary.Unary`.  The tables are not here: all lanes take
    the same step, so one table for all of them sends the coefficients of every segment, and a
    lane only picks its own.

    Members
    -------
    control: :func:`~dstar.rtl.vpu.control.control_layout`.
    coefficients: those of one power of one table, one for each segment.
    a, b: operands, private floats, held for the whole instruction.
    unrounded: product or function, for the rounding stage; valid in the step that takes it.
    """

    def __init__(self, cfg: VectorConfig) -> None:
        self.cfg = cfg
        super().__init__(
            {
                "control": In(control_layout()),
                "coefficients": In(data.ArrayLayout(signed(cfg.width), cfg.segments)),
                "a": In(WIDTH),
                "b": In(WIDTH),
                "unrounded": Out(unrounded_layout(cfg)),
            }
        )

    @property
    def module_name(self) -> str:
        """Verilog module name."""
        return "vpu_function"

    def elaborate(self, platform: Any) -> Module:
        """Horner's register with what goes into it, then the choice of results."""
        m = Module()
        cfg, control = self.cfg, self.control
        a, b = Fields(m, "a", self.a), Fields(m, "b", self.b)
        one = 1 << cfg.fraction
        h = Signal(signed(max(cfg.width, SCALED_BITS)), reset_less=True)
        power = Signal(signed(WORK_EXPONENT), reset_less=True)
        narrow = Signal(SIGNIFICAND_BITS, reset_less=True)

        def clamped(name: str, low: int, high: int) -> Value:
            inside = Mux(h < low, low, Mux(h > high, high, h))
            return wire(m, name, inside, cfg.width - 1)

        mantissa = clamped("mantissa", one, 2 * one - 1)
        inverse = clamped("inverse", one // 2, one)
        t, coefficient = self._position(m, a, h, power, narrow, mantissa)

        wide, factor = Signal(signed(cfg.width)), Signal(POSITION_BITS)
        product = wire(m, "product", wide * factor, signed(cfg.width + POSITION_BITS))
        base = FRACTION_BITS + cfg.fraction - REDUCED_BITS
        right = wire(m, "scale_by", base - a.exponent, signed(WORK_EXPONENT + 2))
        shifted = product.as_unsigned() >> right[:6]
        scaled = wire(m, "scaled", Mux(right < 64, shifted, 0), SCALED_BITS)
        m.d.comb += [wide.eq(h), factor.eq(a.significand)]
        with m.If(control.place != Place.NONE):
            m.d.sync += h.eq(coefficient)
        with m.Switch(control.horner):
            with m.Case(Horner.STEP):
                m.d.comb += factor.eq(t)
                m.d.sync += h.eq((product >> POSITION_BITS) + coefficient)
            with m.Case(Horner.SCALE):
                m.d.comb += wide.eq(cfg.log2_e)
                m.d.sync += h.eq(scaled)
            with m.Case(Horner.RATIO):
                m.d.comb += [wide.eq(inverse), factor.eq(narrow)]
                m.d.sync += h.eq(Mux(a.sign, product >> FRACTION_BITS, inverse))
                with m.If(~a.sign):
                    m.d.sync += power.eq(0)
        with m.If(control.magnitude == Magnitude.PRODUCT):
            m.d.comb += wide.eq(b.significand)
            self._product(m, a, b, product)
        with m.Else():
            m.d.comb += self.unrounded.nan.eq(a.nan)
            with m.Switch(control.op):
                self._results(m, a, h, power, product, mantissa, inverse)
        return m

    def _position(
        self, m: Module, a: Fields, h: Value, power: Signal, narrow: Signal, mantissa: Value
    ) -> tuple[Value, Value]:
        """Position in a segment, and the segment's coefficient on the bus."""
        cfg, control = self.cfg, self.control
        bits = cfg.segment_bits

        def split(position: Value) -> Value:
            """A fraction as 16 bits of position in its segment, below the segment's number."""
            rest = len(position) - bits
            low = position[max(0, rest - POSITION_BITS) : rest]
            return Cat(Const(0, POSITION_BITS - len(low)), low, position[rest:])

        # FIXED: |x| below 8 in units of 2**-16.
        down = wire(m, "fixed_by", 2 - a.exponent, signed(WORK_EXPONENT + 1))
        amount = Mux(down < 0, 0, Mux(down > FIXED_BITS, FIXED_BITS, down))[:5]
        fixed = (Cat(Const(0, FIXED_BITS - SIGNIFICAND_BITS), a.significand) >> amount)[:FIXED_BITS]

        # EXPONENT: the scaled argument, or the GELU table's value, brought to units of 2**-16.
        spare = cfg.width - 7 - REDUCED_BITS
        z = wire(m, "z", Mux(h < 0, 0, h), SCALED_BITS)
        from_table = (control.op == Op.GELU) | (control.op == Op.GELU_TANH)
        moved = z >> spare if spare >= 0 else z << -spare
        z = wire(m, "z_reduced", Mux(from_table, moved, z), SCALED_BITS)
        negative = a.sign | (control.op != Op.EXP)
        reduced = wire(m, "reduced", Mux(negative, -z, z)[:SCALED_BITS], SCALED_BITS)

        # DENOMINATOR: fraction of 1 + mantissa * 2**power, at most all ones.
        drop = cfg.fraction - FRACTION_BITS
        thin = wire(m, "thin", mantissa[drop:], SIGNIFICAND_BITS)
        minus = wire(m, "minus_power", -power, signed(WORK_EXPONENT + 1))
        small = Mux(minus < 64, Cat(Const(0, drop), thin) >> minus[:6], 0)
        below = Mux(minus == 0, (1 << cfg.fraction) - 1, small)[: cfg.fraction]

        found = Signal(POSITION_BITS + bits)
        with m.Switch(control.place):
            with m.Case(Place.FRACTION):
                root = split(Cat(a.fraction, a.exponent[0]))
                m.d.comb += found.eq(Mux(control.op == Op.RSQRT, root, split(a.fraction)))
            with m.Case(Place.FIXED):
                m.d.comb += found.eq(split(fixed))
            with m.Case(Place.EXPONENT):
                m.d.comb += found.eq(split(reduced[:REDUCED_BITS]))
                m.d.sync += power.eq(reduced[REDUCED_BITS:].as_signed())
            with m.Case(Place.DENOMINATOR):
                m.d.comb += found.eq(split(below))
                m.d.sync += narrow.eq(thin)
        kept = Signal.like(found, reset_less=True)
        placing = control.place != Place.NONE
        with m.If(placing):
            m.d.sync += kept.eq(found)
        segment = Mux(placing, found, kept)[POSITION_BITS:]
        coefficient = wire(m, "coefficient", Array(self.coefficients)[segment], signed(cfg.width))
        return kept[:POSITION_BITS], coefficient

    def _product(self, m: Module, a: Fields, b: Fields, product: Value) -> None:
        """``a * b``."""
        out = self.unrounded
        m.d.comb += [
            out.magnitude.eq(product),
            out.exponent.eq(a.exponent + b.exponent - 2 * FRACTION_BITS),
            out.sign.eq(a.sign ^ b.sign),
            out.inf.eq(a.inf | b.inf),
            out.nan.eq(a.nan | b.nan | a.inf & b.zero | a.zero & b.inf),
            out.zero.eq(a.zero | b.zero),
        ]

    def _results(
        self,
        m: Module,
        a: Fields,
        h: Value,
        power: Value,
        product: Value,
        mantissa: Value,
        inverse: Value,
    ) -> None:
        """The functions' results, also beyond the tables; inside a switch over the operation."""
        fraction, out = self.cfg.fraction, self.unrounded

        def large(name: str) -> Value:
            return wire(m, f"{name}_large", a.exponent >= LARGE[name])

        with m.Case(Op.EXP):
            beyond = large("exp")
            m.d.comb += [
                out.magnitude.eq(mantissa),
                out.exponent.eq(power - fraction),
                out.inf.eq(beyond & ~a.sign),
                out.zero.eq(beyond & a.sign),
            ]
        with m.Case(Op.RECIPROCAL):
            m.d.comb += [
                out.magnitude.eq(inverse),
                out.exponent.eq(-a.exponent - fraction),
                out.sign.eq(a.sign),
                out.inf.eq(a.zero),
                out.zero.eq(a.inf),
            ]
        with m.Case(Op.RSQRT):
            m.d.comb += [
                out.magnitude.eq(inverse),
                out.exponent.eq(-(a.exponent >> 1) - fraction),
                out.sign.eq(a.sign),
                out.inf.eq(a.zero),
                out.nan.eq(a.nan | a.sign & ~a.zero),
                out.zero.eq(a.inf),
            ]
        with m.Case(Op.SIGMOID):
            beyond = large("sigmoid")
            m.d.comb += [
                out.magnitude.eq(Mux(beyond, 1 << fraction, h)),
                out.exponent.eq(Mux(beyond, 0, power) - fraction),
                out.zero.eq(beyond & a.sign),
            ]
        with m.Default():
            # SiLU and GELU: x, or -0, where x is large.
            silu = self.control.op == Op.SILU
            beyond = wire(m, "beyond", Mux(silu, large("silu"), large("gelu")))
            m.d.comb += [
                out.magnitude.eq(Mux(beyond, a.significand, product)),
                out.exponent.eq(a.exponent + Mux(beyond, 0, power - fraction) - FRACTION_BITS),
                out.sign.eq(a.sign),
                out.inf.eq(a.inf & ~a.sign),
                out.zero.eq(a.zero | beyond & a.sign),
            ]
