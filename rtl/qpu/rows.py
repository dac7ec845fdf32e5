"""QPU stage 3 for one token: quantize a difference; reconstruct the activation."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed
from amaranth.lib.wiring import In, Out

from dstar.gen.config import EXPONENT_BITS, MAX_PRECISION, MAX_Q
from dstar.rtl.fp16.add import FRACTION_BITS, INFINITY, MAX_FINITE, FP16Add, leading_zeros
from dstar.rtl.hierarchy import Shared, shared
from dstar.rtl.qpu.streams import HALF_BITS, SLICES_BITS

#: A finite number is ``significand * 2**(exponent - UNIT)``, exponent 1 to 30.
UNIT = 25
#: Exponent bias of binary16.
BIAS = 15
#: Bits of a significand with its hidden bit.
SIGNIFICAND_BITS = FRACTION_BITS + 1
#: Bits of |q|.
Q_BITS = MAX_Q.bit_length()
#: Registers of the adder.
ADDER_STAGES = 2


class QuantizeRow(Shared):
    """``q = clip(rne(d * 2**f), -limit, limit)``, ``limit = 2**(p-1) - 1`` (numerics.md, 3).

    A shifter, a rounder (to nearest, ties to even), a clipper.  NaN gives 0, infinity clips, no
    slices give 0.

    Members
    -------
    difference: d, binary16.
    reach: ``UNIT - f``, so that ``d * 2**f`` is the significand shifted right by ``reach -
    exponent``.  slices: p / 2.
    magnitude: |q|.  q: q, two's complement.

    Latency: 0.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "difference": In(HALF_BITS),
                "reach": In(signed(EXPONENT_BITS + 1)),
                "slices": In(SLICES_BITS),
                "magnitude": Out(Q_BITS),
                "q": Out(MAX_PRECISION),
            }
        )

    @property
    def module_name(self) -> str:
        """Verilog module name."""
        return "quantize_row"

    def elaborate(self, platform: Any) -> Module:
        """Shift, round, clip, negate."""
        m = Module()
        fraction, field = self.difference[:FRACTION_BITS], self.difference[FRACTION_BITS:15]
        normal, special = field.any(), field.all()
        right = Signal(signed(EXPONENT_BITS + 2))
        m.d.comb += right.eq(self.reach - Cat(field[0] | ~normal, field[1:]))

        # Up to 11 places keep something; the first bit shifted out is worth a half.
        shifted = Signal(2 * SIGNIFICAND_BITS)
        whole = Signal(SIGNIFICAND_BITS)
        rounded = Signal(SIGNIFICAND_BITS + 1)
        up = Signal()
        m.d.comb += [
            shifted.eq(Cat(Const(0, SIGNIFICAND_BITS), fraction, normal) >> right[:4]),
            whole.eq(shifted[SIGNIFICAND_BITS:]),
            up.eq(
                shifted[SIGNIFICAND_BITS - 1] & (shifted[: SIGNIFICAND_BITS - 1].any() | whole[0])
            ),
            rounded.eq(whole + up),
        ]
        # A shift to the left needs an exponent above 1: a significand beyond every limit.
        nan, huge, tiny = Signal(), Signal(), Signal()
        m.d.comb += [
            nan.eq(special & fraction.any()),
            huge.eq(special | (right < 0)),
            tiny.eq(right > SIGNIFICAND_BITS),
        ]
        with m.Switch(self.slices):
            for slices in range(1, MAX_PRECISION // 2 + 1):
                with m.Case(slices):
                    bits = 2 * slices - 1
                    limit = (1 << bits) - 1
                    over = huge | (rounded[bits:].any() & ~tiny)
                    kept = Mux(tiny, 0, rounded[:bits])
                    m.d.comb += self.magnitude.eq(Mux(nan, 0, Mux(over, limit, kept)))
        negative = self.difference[-1]
        m.d.comb += self.q.eq(
            (Cat(self.magnitude, Const(0, 1)) ^ negative.replicate(MAX_PRECISION)) + negative
        )
        return m


class ReconstructRow(Shared):
    """The next reference of one token (numerics.md, 1 and 8).

    ``carry + q * 2**-f`` in binary16, rounded to nearest even; infinity becomes the largest
    finite number.  With ``bypass`` it is ``carry`` itself.  ``q * 2**-f`` is a binary16 number
    for every legal table.

    Members
    -------
    enable: moves the pipeline on.
    negative, magnitude: sign and magnitude of q.
    lift: ``BIAS - f``, the exponent field of ``2**-f``.
    carry, bypass: the old reference, or the activation.
    total: the new reference.  saturated: it was infinite.

    Latency: :attr:`latency`.
    """

    #: Cycles with ``enable``: the conversion of q, then the addition.
    latency = 1 + ADDER_STAGES

    def __init__(self) -> None:
        super().__init__(
            {
                "enable": In(1),
                "negative": In(1),
                "magnitude": In(Q_BITS),
                "lift": In(signed(EXPONENT_BITS + 1)),
                "carry": In(HALF_BITS),
                "bypass": In(1),
                "total": Out(HALF_BITS),
                "saturated": Out(1),
            }
        )

    @property
    def module_name(self) -> str:
        """Verilog module name."""
        return "reconstruct_row"

    def elaborate(self, platform: Any) -> Module:
        """Integer to binary16, adder, saturation; the bypass beside them."""
        m = Module()
        zeros = leading_zeros(m, "magnitude", self.magnitude)
        leading = Signal(SIGNIFICAND_BITS)
        field = Signal(signed(EXPONENT_BITS + 2))
        below = Signal(4)
        tail = Signal(SIGNIFICAND_BITS)
        m.d.comb += [
            leading.eq(Cat(Const(0, SIGNIFICAND_BITS - Q_BITS), self.magnitude) << zeros),
            field.eq(self.lift + (Q_BITS - 1) - zeros),
            below.eq(1 - field),
            tail.eq(leading >> below),
        ]
        step = Signal(HALF_BITS, reset_less=True)
        value = Mux(field < 1, tail[:FRACTION_BITS], Cat(leading[:FRACTION_BITS], field[:5]))
        with m.If(self.enable):
            m.d.sync += step.eq(Cat(Mux(self.magnitude.any(), value, 0)[:15], self.negative))

        adder = FP16Add(stages=ADDER_STAGES)
        m.submodules.adder = shared(platform, adder)
        carry, bypass = self.carry, self.bypass
        for stage in range(self.latency):
            kept = Signal(HALF_BITS, name=f"carry_{stage}", reset_less=True)
            kept_bypass = Signal(name=f"bypass_{stage}", reset_less=True)
            with m.If(self.enable):
                m.d.sync += [kept.eq(carry), kept_bypass.eq(bypass)]
            carry, bypass = kept, kept_bypass
            if stage == 0:
                m.d.comb += adder.a.eq(carry)
        infinite = adder.sum[:15] == INFINITY
        m.d.comb += [
            adder.b.eq(step),
            adder.enable.eq(self.enable),
            self.saturated.eq(infinite & ~bypass),
            self.total.eq(
                Mux(
                    bypass,
                    carry,
                    Cat(Mux(infinite, MAX_FINITE, adder.sum[:15])[:15], adder.sum[15]),
                )
            ),
        ]
        return m
