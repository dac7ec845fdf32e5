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
# Left shifts that normalize, in this order: any number of places below 16.
_SHIFTS = (8, 4, 2, 1)


def _signal(m: Module, name: str, value: Any, width: int | None = None) -> Signal:
    """A named wire."""
    wire = Signal(len(Value.cast(value)) if width is None else width, name=name)
    m.d.comb += wire.eq(value)
    return wire


def align(m: Module, name: str, significand: Value, distance: Value) -> Value:
    """``significand`` moved right by ``distance`` places, with guard, round and sticky below it."""
    bits: Value = Cat(Const(0, _GRS - 1), significand)
    sticky: Value = distance[4] & significand.any()
    for level in reversed(range(4)):
        places = 1 << level
        sticky = sticky | (distance[level] & bits[:places].any())
        bits = _signal(
            m, f"{name}_by_{places}", Mux(distance[level], bits[places:], bits), len(bits)
        )
    # From 16 places on only the sticky bit is left.
    return Cat(sticky, bits & ~distance[4].replicate(len(bits)))


def normalize(m: Module, name: str, value: Value, room: Value) -> tuple[Value, Value]:
    """``value`` moved left until its top bit is one, by at most ``room`` places; what room is left.

    Shift by shift: each looks whether its places are zero and fit, so that the exponent is ready
    with the last one.  At most 15 places.
    """
    for places in _SHIFTS:
        enough = room[places.bit_length() - 1 :]
        move = _signal(m, f"{name}_move_{places}", ~value[-places:].any() & enough.any())
        value = _signal(m, f"{name}_left_{places}", Mux(move, value << places, value), len(value))
        below = room[: places.bit_length() - 1]
        room = _signal(
            m, f"{name}_room_{places}", Cat(below, (enough - move)[: len(enough)]), len(room)
        )
    return value, room


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
    increment of exponent and fraction together that rounds, carries and overflows.  A carry out
    of the addition is just one more place to the left, with one more place of room.
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
    aligned = _signal(m, f"{name}_aligned", align(m, name, small_significand, distance))
    special = _signal(m, f"{name}_special", big[FRACTION_BITS:15].all())
    invalid = _signal(
        m,
        f"{name}_invalid",
        special & (big[:FRACTION_BITS].any() | (small[FRACTION_BITS:15].all() & (a[15] ^ b[15]))),
    )
    subtract = _signal(m, f"{name}_subtract", big[15] ^ small[15])
    sign, subtract, special, invalid, exponent, significand, aligned = cut(
        0,
        sign=big[15],
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
    sign, subtract, special, invalid, exponent, total = cut(
        1,
        sign2=sign,
        subtract2=subtract,
        special2=special,
        invalid2=invalid,
        exponent2=exponent,
        total2=total,
    )

    # Normalize.  What room is left is the exponent field less the hidden one; without a hidden
    # one the result is subnormal (or zero), and its field is 0.
    normal, room = normalize(m, name, total, exponent)
    hidden, fraction, low = normal[-1], normal[_GRS + 1 : -1], normal[: _GRS + 1]
    room = room & hidden.replicate(EXPONENT_FIELD_BITS)

    # Round: guard and (round or sticky or odd).  The field takes the hidden one and the carry.
    up = _signal(m, f"{name}_up", low[-1] & (low[:-1].any() | fraction[0]))
    carry = _signal(m, f"{name}_carry", up & fraction.all())
    field = _signal(m, f"{name}_field", room + hidden + carry, EXPONENT_FIELD_BITS)
    over = _signal(m, f"{name}_over", field.all() | special)
    kept = (fraction + up)[:FRACTION_BITS] & ~over.replicate(FRACTION_BITS)
    result = Signal(16, name=f"{name}_result")
    m.d.comb += result.eq(
        Cat(
            kept[:-1],
            kept[-1] | invalid,
            field | over.replicate(EXPONENT_FIELD_BITS),
            # x - x is +0.
            sign & ~invalid & ~(subtract & ~total.any()),
        )
    )
    return result


class FP16Add(Shared):
    """Sum of two binary16 numbers, correctly rounded (:func:`fp16_add`).

    Parameters
    ----------
    stages: pipeline registers, 0 (combinational) to 3: after the rounding, then also before the
        normalization, then also before the addition.

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

        cuts = (register if self.stages > 2 else None, register if self.stages > 1 else None)
        result: Value = fp16_add(m, self.a, self.b, registers=cuts)
        if self.stages:
            result = register("sum", result)
        m.d.comb += self.sum.eq(result)
        return m
