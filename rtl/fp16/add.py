"""binary16 addition, correctly rounded: a combinational core and a pipelined component."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib.wiring import In, Out

from dstar.rtl.hierarchy import Shared

#: Fields of binary16: sign, exponent, fraction.
FRACTION_BITS, EXPONENT_FIELD_BITS = 10, 5
#: The NaN of every invalid sum: quiet, positive, without payload.
CANONICAL_NAN = 0x7E00
#: Largest finite magnitude, 65504.
MAX_FINITE = 0x7BFF
#: Pattern of an infinite magnitude.
INFINITY = 0x7C00
#: Most pipeline registers of :class:`FP16Add`.
MAX_STAGES = 3

#: Keeps a value for the next pipeline stage: (name, value) to the value to go on with.
Register = Callable[[str, Value], Value]

# Bits below the last place that decide the rounding: guard, round, sticky.
_GRS = 3
_SIGNIFICAND = FRACTION_BITS + 1
# Places that an alignment by up to 15 needs below the sticky bit.
_SPILL = 15 - _GRS


def _signal(m: Module, name: str, value: Any, width: int | None = None) -> Signal:
    """A named wire."""
    wire = Signal(len(Value.cast(value)) if width is None else width, name=name)
    m.d.comb += wire.eq(value)
    return wire


def leading_zeros(m: Module, name: str, value: Value) -> Signal:
    """Zeros above the highest one; ``len(value) - 1`` also where there is no one."""
    count = Signal(range(len(value)), name=f"{name}_zeros")
    m.d.comb += count.eq(len(value) - 1)
    for bit in range(len(value)):
        with m.If(value[bit]):
            m.d.comb += count.eq(len(value) - 1 - bit)
    return count


def fp16_add(
    m: Module,
    a: Value,
    b: Value,
    *,
    name: str = "add",
    registers: tuple[Register | None, Register | None] = (None, None),
) -> Signal:
    """``a + b`` in binary16, rounded to nearest, ties to even; subnormals kept.

    A sum beyond 65504 by half a unit or more is infinite.  ``inf - inf`` and any NaN give
    :data:`CANONICAL_NAN`; an exact zero is +0 unless both operands are -0 (IEEE 754, 6.3).

    Parameters
    ----------
    a, b: 16-bit patterns.
    registers: applied to what crosses the cuts after the alignment and after the addition.

    Structure: operands ordered by magnitude, the smaller aligned with a sticky bit, one addition
    or subtraction, normalization by at most the exponent's distance to the subnormals, and one
    increment of exponent and fraction together that rounds, carries and overflows.
    """

    def cut(place: int, **values: Value) -> list[Value]:
        register = registers[place]
        if register is None:
            return list(values.values())
        return [register(f"{name}_{key}", value) for key, value in values.items()]

    # Order and align.  An exponent field of 0 stands for 1 without the hidden one.
    swap = _signal(m, f"{name}_swap", a[:15] < b[:15])
    big = _signal(m, f"{name}_big", Mux(swap, b, a))
    small = _signal(m, f"{name}_small", Mux(swap, a, b))
    parts = []
    for key, operand in (("big", big), ("small", small)):
        field = operand[FRACTION_BITS:15]
        normal = _signal(m, f"{name}_{key}_normal", field.any())
        exponent = _signal(m, f"{name}_{key}_exponent", Cat(field[0] | ~normal, field[1:]))
        parts.append((exponent, Cat(operand[:FRACTION_BITS], normal)))
    (exponent, significand), (small_exponent, small_significand) = parts
    distance = _signal(m, f"{name}_distance", exponent - small_exponent, EXPONENT_FIELD_BITS)
    # Room for what 15 places shift out; from 16 places on only the sticky bit is left.
    spread = _signal(
        m,
        f"{name}_spread",
        Cat(Const(0, _SPILL + _GRS), small_significand) >> distance[:4],
        _SPILL + _GRS + _SIGNIFICAND,
    )
    aligned = _signal(
        m,
        f"{name}_aligned",
        Mux(
            distance[4],
            small_significand.any(),
            Cat(spread[: _SPILL + 1].any(), spread[_SPILL + 1 :]),
        ),
    )
    special = _signal(m, f"{name}_special", big[FRACTION_BITS:15].all())
    invalid = _signal(
        m,
        f"{name}_invalid",
        special & (big[:FRACTION_BITS].any() | (small[FRACTION_BITS:15].all() & (a[15] ^ b[15]))),
    )
    subtract = _signal(m, f"{name}_subtract", big[15] ^ small[15])
    sign, zero_sign, subtract, special, invalid, exponent, significand, aligned = cut(
        0,
        sign=big[15],
        zero_sign=big[15] & small[15],
        subtract=subtract,
        special=special,
        invalid=invalid,
        exponent=exponent,
        significand=significand,
        aligned=aligned,
    )

    # Add or subtract: the larger magnitude comes first, so the result is not negative.
    width = _SIGNIFICAND + _GRS
    total = _signal(
        m,
        f"{name}_total",
        Cat(Const(0, _GRS), significand) + (aligned ^ subtract.replicate(width)) + subtract,
        width + 1,
    )
    # A subtraction's carry out says "not negative"; it is no digit.
    total = _signal(m, f"{name}_magnitude", Cat(total[:width], total[width] & ~subtract))
    sign, zero_sign, special, invalid, exponent, total = cut(
        1,
        sign2=sign,
        zero_sign2=zero_sign,
        special2=special,
        invalid2=invalid,
        exponent2=exponent,
        total2=total,
    )

    # Normalize.  Bit `width` is a carry out; it moves everything one place down.
    zeros = leading_zeros(m, name, total[:width])
    room = _signal(m, f"{name}_room", exponent - 1, EXPONENT_FIELD_BITS)
    places = _signal(m, f"{name}_places", Mux(zeros < room, zeros, room), 4)
    carry = total[width]
    left = _signal(m, f"{name}_left", total[:width] << places, width)
    normal = _signal(
        m, f"{name}_normal", Mux(carry, Cat(total[0] | total[1], total[2:]), left), width
    )
    hidden = normal[-1]
    field = _signal(
        m,
        f"{name}_field",
        Mux(carry, exponent + 1, (exponent - places)[:EXPONENT_FIELD_BITS]),
        EXPONENT_FIELD_BITS,
    )
    # Without a hidden one the result is subnormal, whose field is 0.
    field = _signal(m, f"{name}_biased", field & hidden.replicate(EXPONENT_FIELD_BITS))

    # Round: guard and (round or sticky or odd).
    up = normal[2] & (normal[1] | normal[0] | normal[3])
    rounded = _signal(m, f"{name}_rounded", Cat(normal[_GRS:-1], field) + up, 15)
    over = rounded[FRACTION_BITS:].all() | field.all()
    result = Signal(16, name=f"{name}_result")
    with m.If(invalid):
        m.d.comb += result.eq(CANONICAL_NAN)
    with m.Elif(special | over):
        m.d.comb += result.eq(Cat(Const(INFINITY, 15), sign))
    with m.Elif(~total.any()):
        m.d.comb += result.eq(Cat(Const(0, 15), zero_sign))
    with m.Else():
        m.d.comb += result.eq(Cat(rounded, sign))
    return result


class FP16Add(Shared):
    """Sum of two binary16 numbers, correctly rounded (:func:`fp16_add`).

    Parameters
    ----------
    stages: pipeline registers, 0 (combinational) to 3: after the rounding, then also before the
        addition, then also before the normalization.

    Members
    -------
    a, b: operands; a difference is a sum with ``b``'s sign inverted.
    enable: moves the pipeline on (only with ``stages``).
    sum: the result.

    Latency: :attr:`latency`.  Throughput: one sum a cycle.

    Raises
    ------
    ValueError
        If ``stages`` is out of range.
    """

    def __init__(self, *, stages: int = 1) -> None:
        if not 0 <= stages <= MAX_STAGES:
            raise ValueError(f"stages must be from 0 to {MAX_STAGES}, got {stages}")
        self.stages = stages
        enable = {"enable": In(1, init=1)} if stages else {}
        super().__init__({"a": In(16), "b": In(16), **enable, "sum": Out(16)})

    @property
    def module_name(self) -> str:
        """Verilog module name."""
        return f"fp16_add_{self.stages}"

    @property
    def latency(self) -> int:
        """Cycles, of those with ``enable``, from the operands to ``sum``."""
        return self.stages

    def elaborate(self, platform: Any) -> Module:
        """The core with registers at the cuts."""
        m = Module()

        def register(name: str, value: Value) -> Value:
            kept = Signal(len(value), name=f"{name}_kept", reset_less=True)
            with m.If(self.enable):
                m.d.sync += kept.eq(value)
            return kept

        cuts = (register if self.stages > 1 else None, register if self.stages > 2 else None)
        result: Value = fp16_add(m, self.a, self.b, registers=cuts)
        if self.stages:
            result = register("sum", result)
        m.d.comb += self.sum.eq(result)
        return m
