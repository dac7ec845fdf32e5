"""The VPU's private float in logic: fields, conversions, the rounding stage.

The format is that of :mod:`dstar.golden.vpu.float`: sign, 8 exponent bits, 15 fraction bits, no
subnormals, one NaN.
"""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data

from dstar.golden.vpu.float import (
    BIAS,
    EXPONENT_BITS,
    FRACTION_BITS,
    SIGNIFICAND_BITS,
    WIDTH,
)

#: Bits of a signed exponent in the unit, wide enough for every product's.
WORK_EXPONENT = 10
#: Fields of binary16.
HALF_FRACTION, HALF_EXPONENT, HALF_BIAS = 10, 5, 15
_NAN = ((1 << EXPONENT_BITS) - 1) << FRACTION_BITS | 1 << (FRACTION_BITS - 1)
_SPECIAL = (1 << EXPONENT_BITS) - 1


def wire(m: Module, name: str, value: Any, shape: Any = None) -> Signal:
    """A named signal that carries ``value``."""
    made = Signal(Value.cast(value).shape() if shape is None else shape, name=name)
    m.d.comb += made.eq(value)
    return made


class Fields:
    """A private float taken apart: ``sign``, true ``exponent``, ``significand``, and its kind."""

    def __init__(self, m: Module, name: str, bits: Value) -> None:
        stored = bits[FRACTION_BITS : WIDTH - 1]
        fraction = bits[:FRACTION_BITS]
        self.bits, self.sign = bits, bits[WIDTH - 1]
        self.fraction = fraction
        self.zero = wire(m, f"{name}_zero", ~stored.any())
        special = wire(m, f"{name}_special", stored.all())
        self.nan = wire(m, f"{name}_nan", special & fraction.any())
        self.inf = wire(m, f"{name}_inf", special & ~fraction.any())
        self.exponent = wire(m, f"{name}_exponent", stored - BIAS, signed(WORK_EXPONENT))
        self.significand = wire(m, f"{name}_significand", Cat(fraction, ~self.zero))


def normalize(m: Module, name: str, value: Value) -> tuple[Value, Value]:
    """``value`` shifted left until its top bit is one, and by how much; zero stays zero."""
    width = len(value)
    amount: list[Value] = []
    for bit in reversed(range((width - 1).bit_length())):
        step = 1 << bit
        empty = wire(m, f"{name}_empty{step}", ~value[-step:].any())
        value = wire(m, f"{name}_shift{step}", Mux(empty, value << step, value)[:width])
        amount.insert(0, empty)
    return value, Cat(*amount)


def shift_right(m: Module, name: str, value: Value, amount: Value) -> Value:
    """``value`` moved right; its last bit also gathers whatever one was lost (sticky)."""
    width = len(value)
    for bit in range(len(amount)):
        step = min(1 << bit, width - 1)
        moved = Cat(value[: step + 1].any(), value[step + 1 :], Const(0, step))
        value = wire(m, f"{name}_right{1 << bit}", Mux(amount[bit], moved, value), width)
    return value


def at_most(value: Value, bits: int) -> Value:
    """An unsigned value in ``bits`` bits: all ones if it does not fit."""
    return value[:bits] | value[bits:].any().replicate(bits)


def from_half(m: Module, name: str, half: Value) -> Value:
    """binary16 to private float, exact."""
    fraction = half[:HALF_FRACTION]
    stored = half[HALF_FRACTION : HALF_FRACTION + HALF_EXPONENT]
    shifted, amount = normalize(m, f"{name}_subnormal", fraction)
    special, tiny = (
        wire(m, f"{name}_{k}", v) for k, v in (("all", stored.all()), ("tiny", ~stored.any()))
    )
    low = FRACTION_BITS - HALF_FRACTION
    offset = BIAS - HALF_BIAS
    exponent = Signal(EXPONENT_BITS, name=f"{name}_exponent")
    digits = Signal(FRACTION_BITS, name=f"{name}_fraction")
    sign = half[-1]
    with m.If(special):
        nan = fraction.any()
        m.d.comb += [exponent.eq(_SPECIAL), digits.eq(nan << (FRACTION_BITS - 1))]
        sign = sign & ~(special & nan)
    with m.Elif(~tiny):
        m.d.comb += [exponent.eq(stored + offset), digits.eq(fraction << low)]
    with m.Elif(fraction.any()):
        # A subnormal's highest bit becomes the hidden one.
        m.d.comb += [exponent.eq(offset - amount), digits.eq(shifted[:-1] << (low + 1))]
    return Cat(digits, exponent, sign)


def to_half(m: Module, name: str, bits: Value) -> Value:
    """Private float to binary16, to nearest even; subnormals kept, infinite from 65520."""
    x = Fields(m, name, bits)
    low = FRACTION_BITS - HALF_FRACTION
    smallest = 1 - HALF_BIAS
    # Below the normal range the significand moves right; from 13 places on nothing is left.
    down = wire(m, f"{name}_down", smallest - x.exponent, signed(WORK_EXPONENT + 1))
    subnormal = wire(m, f"{name}_subnormal", down > 0)
    by = at_most(down[:-1], 4) & subnormal.replicate(4)
    moved = shift_right(m, name, x.significand, by)
    kept, guard, sticky = moved[low:], moved[low - 1], moved[: low - 1].any()
    up = wire(m, f"{name}_up", guard & (sticky | kept[0]))
    # Exponent and fraction in one word: the hidden one adds to the exponent, a carry too.
    base = Mux(subnormal, 0, (x.exponent + HALF_BIAS - 1)[:HALF_EXPONENT])
    total = wire(m, f"{name}_total", (base << HALF_FRACTION) + kept + up, 16)
    over = wire(
        m, f"{name}_over", (x.exponent > HALF_BIAS) | total[HALF_FRACTION:15].all() | total[15]
    )
    magnitude = Mux(over, 0x7C00, total[:15])
    magnitude = Mux(x.nan, 0x7E00, Mux(x.zero, 0, magnitude))
    return Cat(magnitude[:15], x.sign & ~x.nan)


def smaller(m: Module, name: str, a: Value, b: Value) -> Value:
    """Whether the magnitude of private float ``a`` is below that of ``b``."""
    return wire(m, name, a[:-1] < b[:-1])


def maximum(m: Module, name: str, a: Fields, b: Fields, less: Value) -> Value:
    """IEEE ``maximum``: NaN if either is, +0 above -0; ``less``: their :func:`smaller`."""
    larger = wire(m, f"{name}_b", Mux(a.sign ^ b.sign, a.sign, less ^ a.sign))
    chosen = Mux(larger, b.bits, a.bits)
    return Mux(a.nan | b.nan, Const(_NAN, WIDTH), chosen)


def add(m: Module, a: Fields, b: Fields, swap: Value, layout: data.StructLayout) -> Any:
    """``a + b`` before its rounding, with three places below the larger operand's last.

    The last of them is sticky.  Only differences of neighbouring exponents cancel more than one
    place, and those are exact.  ``swap``: b is the larger (:func:`smaller`).  ``layout``:
    :func:`dstar.rtl.vpu.control.unrounded_layout`.
    """
    extra = 3
    big, small = Mux(swap, b.significand, a.significand), Mux(swap, a.significand, b.significand)
    high = wire(m, "sum_high", Mux(swap, b.exponent, a.exponent))
    apart = wire(m, "sum_apart", high - Mux(swap, a.exponent, b.exponent))
    moved = shift_right(m, "sum", Cat(Const(0, extra), small), at_most(apart[:-1], 5))
    aligned = Cat(moved, Const(0, 1))
    subtract = wire(m, "sum_subtract", a.sign ^ b.sign)
    width = SIGNIFICAND_BITS + extra + 1
    total = wire(
        m,
        "sum_total",
        Cat(Const(0, extra), big) + (aligned ^ subtract.replicate(width)) + subtract,
        width,
    )
    out = Signal(layout, name="sum")
    # An exact zero is +0 unless both operands are -0.
    sign = Mux(total.any(), Mux(swap, b.sign, a.sign), a.sign & b.sign)
    m.d.comb += [
        out.magnitude.eq(total),
        out.exponent.eq(high - (FRACTION_BITS + extra)),
        out.sign.eq(Mux(a.inf, a.sign, Mux(b.inf, b.sign, sign))),
        out.inf.eq(a.inf | b.inf),
        out.nan.eq(a.nan | b.nan | a.inf & b.inf & subtract),
    ]
    return out


def round_magnitude(m: Module, value: Any) -> Value:
    """The rounding stage: an unrounded value to a private float, to nearest even."""
    magnitude = value.magnitude
    width = len(magnitude)
    shifted, amount = normalize(m, "round", magnitude)
    kept = shifted[-SIGNIFICAND_BITS:]
    guard = shifted[width - SIGNIFICAND_BITS - 1]
    sticky = shifted[: width - SIGNIFICAND_BITS - 1].any()
    up = wire(m, "round_up", guard & (sticky | kept[0]))
    total = wire(m, "round_total", kept + up, SIGNIFICAND_BITS + 1)
    stored = wire(
        m,
        "round_exponent",
        value.exponent + (width - 1 + BIAS) - amount + total[-1],
        signed(WORK_EXPONENT + 2),
    )
    empty = wire(m, "round_empty", value.zero | ~magnitude.any() | (stored <= 0))
    over = wire(m, "round_over", value.inf | (~empty & (stored >= _SPECIAL)))
    # A carry out leaves an all-zero fraction, so the fraction needs no shift.
    digits = Cat(total[:FRACTION_BITS], stored[:EXPONENT_BITS])
    digits = Mux(over, _SPECIAL << FRACTION_BITS, Mux(empty, 0, digits))
    return Mux(value.nan, Const(_NAN, WIDTH), Cat(digits[: WIDTH - 1], value.sign))
