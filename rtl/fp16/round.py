"""Rounding to binary16 in logic: one stage for products, conversions and inverse quantization."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value

from dstar.rtl.vpu.float import HALF_BIAS, HALF_FRACTION, normalize, wire

#: Pattern of an infinite magnitude, of the largest finite one, and of the one NaN.
INFINITY, MAX_FINITE, CANONICAL_NAN = 0x7C00, 0x7BFF, 0x7E00

_SIGNIFICAND = HALF_FRACTION + 1
_SMALLEST = 1 - HALF_BIAS


def round_half(
    m: Module, name: str, magnitude: Value, exponent: Value | int
) -> tuple[Value, Value]:
    """``magnitude * 2**exponent`` rounded to binary16, nearest even, and whether it overflows.

    ``magnitude``: unsigned, at least 13 bits.  ``exponent``: signed.  Returns the 15 bits below
    the sign (infinite where the second value is one: from 65520 on).
    """
    width = len(magnitude)
    shifted, amount = normalize(m, name, magnitude)
    lead = wire(m, f"{name}_lead", exponent + (width - 1) - amount)
    # Significand, guard and sticky; below the normal range they move right.
    low = shifted[: width - _SIGNIFICAND]
    digits = Cat(low[:-1].any(), low[-1], shifted[width - _SIGNIFICAND :])
    limit = _SIGNIFICAND + 2
    down = wire(m, f"{name}_down", _SMALLEST - lead)
    subnormal = wire(m, f"{name}_subnormal", down > 0)
    by = wire(m, f"{name}_by", Mux(subnormal, Mux(down > limit, limit, down), 0)[:4], 4)
    spread = wire(m, f"{name}_spread", Cat(Const(0, limit), digits) >> by, 2 * limit)
    kept, guard, sticky = spread[limit + 2 :], spread[limit + 1], spread[: limit + 1].any()
    up = wire(m, f"{name}_up", guard & (sticky | kept[0]))
    # The hidden one adds to the exponent field, and so does a carry.
    field = Mux(subnormal, 0, (lead - _SMALLEST)[:5])
    total = wire(m, f"{name}_total", (field << HALF_FRACTION) + kept + up, 16)
    over = wire(
        m,
        f"{name}_over",
        magnitude.any() & ((lead > HALF_BIAS) | total[HALF_FRACTION:15].all() | total[15]),
    )
    return Mux(over, INFINITY, Mux(magnitude.any(), total[:15], 0))[:15], over


def signed_magnitude(m: Module, name: str, value: Value) -> tuple[Value, Value]:
    """Sign and magnitude of a two's complement value."""
    negative = value[-1]
    size = Signal(len(value), name=f"{name}_size")
    m.d.comb += size.eq(Mux(negative, -value.as_signed(), value))
    return negative, size
