"""binary16 multiplication and conversion from integers, correctly rounded."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Value, signed
from amaranth.lib.wiring import In, Out

from dstar.rtl.fp16.round import CANONICAL_NAN, INFINITY, round_half, signed_magnitude
from dstar.rtl.hierarchy import Shared
from dstar.rtl.vpu.float import HALF_BIAS, HALF_EXPONENT, HALF_FRACTION, wire


def fp16_multiply(m: Module, a: Value, b: Value, *, name: str = "mul") -> Value:
    """``a * b`` in binary16, rounded to nearest even; subnormals kept.

    ``0 * inf`` and any NaN give 0x7E00.  ``a``, ``b``: 16-bit patterns.
    """
    significands, exponents, infinite, zero, nan = [], [], [], [], []
    for key, x in (("a", a), ("b", b)):
        field = x[HALF_FRACTION : HALF_FRACTION + HALF_EXPONENT]
        normal = wire(m, f"{name}_{key}_normal", field.any())
        special = wire(m, f"{name}_{key}_special", field.all())
        significands.append(Cat(x[:HALF_FRACTION], normal))
        # An exponent field of 0 stands for 1 without the hidden one.
        exponents.append(Cat(field[0] | ~normal, field[1:]))
        infinite.append(special & ~x[:HALF_FRACTION].any())
        nan.append(special & x[:HALF_FRACTION].any())
        zero.append(~normal & ~x[:HALF_FRACTION].any())
    product = wire(m, f"{name}_product", significands[0] * significands[1])
    exponent = wire(
        m,
        f"{name}_exponent",
        exponents[0] + exponents[1] - 2 * (HALF_BIAS + HALF_FRACTION),
        signed(8),
    )
    magnitude, _ = round_half(m, name, product, exponent)
    any_infinite = infinite[0] | infinite[1]
    invalid = nan[0] | nan[1] | any_infinite & (zero[0] | zero[1])
    magnitude = Mux(any_infinite, INFINITY, magnitude)[:15]
    return Mux(invalid, Const(CANONICAL_NAN, 16), Cat(magnitude, a[15] ^ b[15]))


class FP16Mul(Shared):
    """Product of two binary16 numbers, correctly rounded (:func:`fp16_multiply`).

    Members
    -------
    a, b: operands.
    product: the result.  Combinational.
    """

    def __init__(self) -> None:
        super().__init__({"a": In(16), "b": In(16), "product": Out(16)})

    @property
    def module_name(self) -> str:
        """Verilog module name."""
        return "fp16_mul"

    def elaborate(self, platform: Any) -> Module:
        """The function, as a component."""
        m = Module()
        m.d.comb += self.product.eq(fp16_multiply(m, self.a, self.b))
        return m


class FP16FromInteger(Shared):
    """binary16 nearest to a two's complement integer, ties to even; infinite from 65520.

    Parameters
    ----------
    width: bits of the integer, at least 13.

    Members
    -------
    integer: operand.
    half: the result.  Combinational.

    Raises
    ------
    ValueError
        If ``width`` is out of range.
    """

    def __init__(self, *, width: int) -> None:
        if not 13 <= width <= 64:
            raise ValueError(f"width must be from 13 to 64, got {width}")
        self.width = width
        super().__init__({"integer": In(signed(width)), "half": Out(16)})

    @property
    def module_name(self) -> str:
        """Verilog module name."""
        return f"fp16_from_integer_{self.width}"

    def elaborate(self, platform: Any) -> Module:
        """Sign and magnitude, then the rounding stage."""
        m = Module()
        negative, size = signed_magnitude(m, "integer", self.integer)
        magnitude, _ = round_half(m, "round", size, Const(0, signed(8)))
        m.d.comb += self.half.eq(Cat(magnitude, negative))
        return m
