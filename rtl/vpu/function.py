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
from dstar.rtl.vpu.float import WORK_EXPONENT, Fields, at_most, wire

#: Bits of a scaled argument: 8 above the binary point, those of range reduction, and a sign.
SCALED_BITS = 8 + REDUCED_BITS + 1


class VPUFunction(Shared):
    """One multiplier, ``width`` x 16 bits, that serves products, range reduction and Horner's rule.

    Bit for bit :class:`dstar.golden.vpu.unary.Unary`.  The tables are not here: all lanes take
    the same step, so one table for all of them sends the coefficients of every segment, and a
    lane only picks its own.  One shifter serves every alignment of an argument.

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
        h = Signal(signed(max(cfg.width, SCALED_BITS)), reset_less=True)
        power = Signal(signed(WORK_EXPONENT), reset_less=True)
        narrow = Signal(POSITION_BITS, reset_less=True)

        wide = Signal(signed(cfg.width))
        factor = Signal(POSITION_BITS)
        product = wire(m, "product", wide * factor, signed(cfg.width + POSITION_BITS))
        shifted = self._shifted(m, a, h, power, product)
        t, coefficient = self._position(m, a, h, power, narrow, shifted)

        m.d.comb += [wide.eq(h), factor.eq(a.significand)]
        with m.If(control.place != Place.NONE):
            m.d.sync += h.eq(coefficient)
        with m.Switch(control.horner):
            with m.Case(Horner.STEP):
                m.d.comb += factor.eq(t)
                m.d.sync += h.eq((product >> POSITION_BITS) + coefficient)
            with m.Case(Horner.SCALE):
                m.d.comb += wide.eq(cfg.log2_e)
                m.d.sync += h.eq(shifted)
            with m.Case(Horner.RATIO):
                m.d.comb += factor.eq(narrow)
                with m.If(a.sign):
                    m.d.sync += h.eq(product >> (POSITION_BITS - 1))
                with m.Else():
                    m.d.sync += power.eq(0)
        with m.If(control.magnitude == Magnitude.PRODUCT):
            m.d.comb += wide.eq(b.significand)
        self._result(m, a, b, h, power, product)
        return m

    def _shifted(self, m: Module, a: Fields, h: Value, power: Value, product: Value) -> Value:
        """An argument moved right: each step needs one alignment, and all of them this way.

        FIXED: the significand, to units of ``2**-16`` for an exponent of 2 at most.
        DENOMINATOR: the mantissa in Horner's register, by the exponent ``power`` below zero.
        Otherwise: the scaled significand, to units of ``2**-16`` for an exponent of 6 at most.
        """
        control = self.control
        drop = self.cfg.fraction - POSITION_BITS + 1
        low = FRACTION_BITS + self.cfg.fraction - REDUCED_BITS - 6
        source = Signal(SCALED_BITS)
        by = Signal(signed(WORK_EXPONENT + 1))
        with m.Switch(control.place):
            with m.Case(Place.FIXED):
                lift = FIXED_BITS - SIGNIFICAND_BITS
                m.d.comb += [source.eq(a.significand << lift), by.eq(2 - a.exponent)]
            with m.Case(Place.DENOMINATOR):
                thin = h[drop : drop + POSITION_BITS]
                m.d.comb += [source.eq(Cat(Const(0, drop), thin)), by.eq(-power)]
            with m.Default():
                m.d.comb += [source.eq(product[low:]), by.eq(6 - a.exponent)]
        # Arguments whose exponent is above the limit take no part in the result.
        amount = at_most(by[:-1], 5)
        return wire(m, "shifted", source >> amount, SCALED_BITS)

    def _position(
        self, m: Module, a: Fields, h: Value, power: Signal, narrow: Signal, shifted: Value
    ) -> tuple[Value, Value]:
        """Position in a segment, and the segment's coefficient on the bus."""
        cfg, control = self.cfg, self.control
        bits = cfg.segment_bits

        def split(position: Value) -> Value:
            """A fraction as 16 bits of position in its segment, below the segment's number."""
            rest = len(position) - bits
            low = position[max(0, rest - POSITION_BITS) : rest]
            return Cat(Const(0, POSITION_BITS - len(low)), low, position[rest:])

        # EXPONENT: the scaled argument, or the GELU table's value, brought to units of 2**-16.
        spare = cfg.width - 7 - REDUCED_BITS
        from_table = (control.op == Op.GELU) | (control.op == Op.GELU_TANH)
        moved = h >> spare if spare >= 0 else h << -spare
        z = wire(m, "z", Mux(from_table, moved, h), SCALED_BITS)
        negative = a.sign | (control.op != Op.EXP)
        reduced = wire(m, "reduced", (z ^ negative.replicate(SCALED_BITS)) + negative, SCALED_BITS)
        # DENOMINATOR: fraction of 1 + mantissa * 2**power, at most all ones.
        drop = cfg.fraction - POSITION_BITS + 1
        below = shifted[: cfg.fraction] | (power == 0).replicate(cfg.fraction)

        found = Signal(POSITION_BITS + bits)
        with m.Switch(control.place):
            with m.Case(Place.FRACTION):
                root = split(Cat(a.fraction, a.exponent[0]))
                m.d.comb += found.eq(Mux(control.op == Op.RSQRT, root, split(a.fraction)))
            with m.Case(Place.FIXED):
                m.d.comb += found.eq(split(shifted[:FIXED_BITS]))
            with m.Case(Place.EXPONENT):
                m.d.comb += found.eq(split(reduced[:REDUCED_BITS]))
                m.d.sync += power.eq(reduced[REDUCED_BITS:].as_signed())
            with m.Case(Place.DENOMINATOR):
                m.d.comb += found.eq(split(below))
                m.d.sync += narrow.eq(h[drop : drop + POSITION_BITS])
        kept = Signal.like(found, reset_less=True)
        placing = control.place != Place.NONE
        with m.If(placing):
            m.d.sync += kept.eq(found)
        segment = Mux(placing, found, kept)[POSITION_BITS:]
        coefficient = wire(m, "coefficient", Array(self.coefficients)[segment], signed(cfg.width))
        return kept[:POSITION_BITS], coefficient

    def _result(
        self, m: Module, a: Fields, b: Fields, h: Value, power: Value, product: Value
    ) -> None:
        """Product or function; the exponent is the sum of two terms and a constant."""
        control, fraction, out = self.control, self.cfg.fraction, self.unrounded
        large = {
            limit: wire(m, f"beyond_{limit}", a.exponent >= limit) for limit in set(LARGE.values())
        }
        one, two = (Signal(signed(WORK_EXPONENT), name=f"exponent_{k}") for k in "ab")
        last = Signal(signed(WORK_EXPONENT))
        m.d.comb += [
            out.magnitude.eq(h[:-1]),
            one.eq(a.exponent),
            two.eq(power),
            last.eq(-fraction),
            out.exponent.eq(one + two + last),
            out.sign.eq(a.sign),
            out.nan.eq(a.nan),
        ]
        with m.If(control.magnitude == Magnitude.PRODUCT):
            m.d.comb += [
                out.magnitude.eq(product),
                two.eq(b.exponent),
                last.eq(-2 * FRACTION_BITS),
                out.sign.eq(a.sign ^ b.sign),
                out.inf.eq(a.inf | b.inf),
                out.nan.eq(a.nan | b.nan | a.inf & b.zero | a.zero & b.inf),
                out.zero.eq(a.zero | b.zero),
            ]
        with m.Else(), m.Switch(control.op):
            with m.Case(Op.EXP):
                beyond = large[LARGE["exp"]]
                m.d.comb += [
                    one.eq(0),
                    out.sign.eq(0),
                    out.inf.eq(beyond & ~a.sign),
                    out.zero.eq(beyond & a.sign),
                ]
            with m.Case(Op.RECIPROCAL):
                m.d.comb += [
                    one.eq(-a.exponent),
                    two.eq(0),
                    out.inf.eq(a.zero),
                    out.zero.eq(a.inf),
                ]
            with m.Case(Op.RSQRT):
                m.d.comb += [
                    one.eq(-(a.exponent >> 1)),
                    two.eq(0),
                    out.inf.eq(a.zero),
                    out.nan.eq(a.nan | a.sign & ~a.zero),
                    out.zero.eq(a.inf),
                ]
            with m.Case(Op.SIGMOID):
                beyond = large[LARGE["sigmoid"]]
                m.d.comb += [one.eq(0), out.sign.eq(0), out.zero.eq(beyond & a.sign)]
                with m.If(beyond):
                    m.d.comb += [out.magnitude.eq(1 << fraction), two.eq(0)]
            with m.Default():
                # SiLU and GELU: x, or -0, where x is large.
                silu = control.op == Op.SILU
                beyond = wire(m, "beyond", Mux(silu, large[LARGE["silu"]], large[LARGE["gelu"]]))
                m.d.comb += [
                    out.magnitude.eq(product),
                    last.eq(-fraction - FRACTION_BITS),
                    out.inf.eq(a.inf & ~a.sign),
                    out.zero.eq(a.zero | beyond & a.sign),
                ]
                with m.If(beyond):
                    m.d.comb += [
                        out.magnitude.eq(a.significand),
                        two.eq(0),
                        last.eq(-FRACTION_BITS),
                    ]
