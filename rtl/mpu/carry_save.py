"""Carry-save addition: many operands to two, without carry propagation."""

from __future__ import annotations

from collections.abc import Sequence

from amaranth.hdl import Cat, Const, Module, Signal, Value


def full_adders(m: Module, name: str, a: Value, b: Value, c: Value) -> tuple[Value, Value]:
    """One row of full adders: ``a + b + c == sum + 2 * carry``, bit by bit."""
    total = Signal(len(a), name=f"{name}_sum")
    carry = Signal(len(a), name=f"{name}_carry")
    m.d.comb += [total.eq(a ^ b ^ c), carry.eq(a & b | c & (a ^ b))]
    return total, carry


def carry_save_sum(
    m: Module, operands: Sequence[Value], *, width: int, carry_ins: Sequence[Value] = ()
) -> Value:
    """Sum of unsigned ``operands`` and single-bit ``carry_ins``, modulo ``2**width``.

    Operands are compressed three to two, the narrowest first, so that rows stay as short as the
    numbers in them; a late or wide operand (an accumulator) goes last in the list and joins last.
    Every carry vector leaves its lowest bit free and the final adder has a carry input: as many
    carry-ins as operands less one cost nothing.

    Raises:
        ValueError: more carry-ins than free places.
    """
    if len(carry_ins) > len(operands) - 1:
        raise ValueError(
            f"carry_ins must be at most {len(operands) - 1} (operands less one), "
            f"got {len(carry_ins)}"
        )
    free = list(carry_ins)

    def next_carry_in() -> Value:
        # The lowest bit of a carry vector, or the final adder's carry input.
        return free.pop(0) if free else Const(0, 1)

    rows = list(operands)
    level = 0
    while len(rows) > 2:
        a, b, c = rows[:3]
        span = max(len(a), len(b), len(c))
        a, b, c = (Cat(v, Const(0, span - len(v))) if len(v) < span else v for v in (a, b, c))
        total, carry = full_adders(m, f"level{level}", a, b, c)
        rows[:3] = [total, Cat(next_carry_in(), carry)[:width]]
        level += 1
    # A constant one under one addend turns the last carry-in into the adder's carry input.
    first, second = rows
    total = Cat(Const(1, 1), first) + Cat(next_carry_in(), second)
    return total[1 : width + 1]
