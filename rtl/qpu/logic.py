"""Small pieces of logic that the QPU's stages share."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value

from dstar.rtl.qpu.rows import Q_BITS


def or_all(values: list[Value]) -> Value:
    """Bitwise or; the second half of an AND-OR multiplexer."""
    total: Value = values[0]
    for value in values[1:]:
        total = total | value
    return total


def merged(flags: list[Value], values: list[Value]) -> Value:
    """The value whose flag is set (at most one), else 0."""
    return or_all([v & f.replicate(len(v)) for f, v in zip(flags, values, strict=True)])


def delayed(m: Module, enable: Value, value: Value, cycles: int, name: str) -> Value:
    """``value`` as it was ``cycles`` enabled cycles ago; data, without reset."""
    for stage in range(cycles):
        kept = Signal(len(value), name=f"{name}_{stage}", reset_less=True)
        with m.If(enable):
            m.d.sync += kept.eq(value)
        value = kept
    return value


def added(m: Module, name: str, a: Any, b: Any, modulus: int) -> Signal:
    """``(a + b) % modulus`` for ``a < modulus`` and ``b <= modulus``."""
    total = Signal(range(2 * modulus + 1), name=f"{name}_total")
    result = Signal(range(modulus), name=name)
    m.d.comb += [total.eq(a + b), result.eq(Mux(total >= modulus, total - modulus, total))]
    return result


def twos_complement(negatives: Value, magnitudes: Value) -> Value:
    """Codes of 8 bits from signs and magnitudes, token by token."""
    codes = []
    for row in range(len(negatives)):
        sign, magnitude = negatives[row], magnitudes.word_select(row, Q_BITS)
        codes.append(((Cat(magnitude, Const(0, 1)) ^ sign.replicate(Q_BITS + 1)) + sign)[:-1])
    return Cat(*codes)
