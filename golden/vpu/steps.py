"""Microcode of the VPU: the steps of every operation, one cycle each.

All lanes take the same step at the same time.  Golden cycle counts and the sequencer's read-only
memory are made from the same lists.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from .isa import Op, Program
from .tables import DEGREE, TABLES


class Magnitude(IntEnum):
    """What a step sends to the rounding stage."""

    NONE = 0
    SUM = 1
    PRODUCT = 2
    ACCUMULATOR = 3
    MANTISSA = 4
    SCALED = 5


class Place(IntEnum):
    """Where a step takes a table's position from; ``NONE`` keeps the position."""

    NONE = 0
    FRACTION = 1
    FIXED = 2
    EXPONENT = 3
    DENOMINATOR = 4


class Horner(IntEnum):
    """What a step puts into Horner's register besides a new segment's first coefficient."""

    NONE = 0
    STEP = 1
    SCALE = 2
    RATIO = 3


@dataclass(frozen=True)
class Step:
    """One step.

    ``finish``: the rounding stage's result is written.  ``direct``: operand a or, with
    ``maximum``, the larger operand is.  ``shared``: lane 0's result is written in all lanes.
    ``back``: the result goes to operand a, not to a register.  ``clear``: empties the accumulator.
    ``fold``: operand b is operand a of the lane that is so many away.  ``table``, ``power``: the
    coefficients on the bus.
    """

    name: str
    finish: bool = False
    direct: bool = False
    maximum: bool = False
    shared: bool = False
    back: bool = False
    clear: bool = False
    fold: int = 0
    magnitude: Magnitude = Magnitude.NONE
    place: Place = Place.NONE
    horner: Horner = Horner.NONE
    table: str = TABLES[0]
    power: int = 0


_FINISH = Step("finish", finish=True)


def _cubic(table: str, place: Place) -> list[Step]:
    """Find the segment, then Horner's rule."""
    first = Step(f"{table}_place", place=place, table=table, power=DEGREE)
    steps = [
        Step(f"{table}_{power}", horner=Horner.STEP, table=table, power=power)
        for power in reversed(range(DEGREE))
    ]
    return [first, *steps]


def strides(lanes: int) -> list[int]:
    """How far apart the lanes are that a reduction joins, one step after the other."""
    return [1 << bit for bit in reversed(range((lanes - 1).bit_length()))]


def _peak(lanes: int) -> list[Step]:
    """Maximum of operand a over all lanes."""
    folds = [
        Step(f"peak_{s}", direct=True, maximum=True, fold=s, back=True) for s in strides(lanes)
    ]
    return [*folds, Step("move_all", direct=True, shared=True)]


def _sum(lanes: int) -> list[Step]:
    """Sum of all lanes' accumulators, each rounded once and added by the lanes' adders."""
    back = Step("back", finish=True, back=True)
    steps = [Step("take", magnitude=Magnitude.ACCUMULATOR, clear=True)]
    for s in strides(lanes):
        steps += [back, Step(f"sum_{s}", magnitude=Magnitude.SUM, fold=s)]
    return [*steps, Step("finish_all", finish=True, shared=True)]


def steps(op: Op, lanes: int) -> list[Step]:
    """The steps of an operation after the one that fetches its operands."""
    scale = Step("scale", horner=Horner.SCALE)
    mantissa = [Step("mantissa", magnitude=Magnitude.MANTISSA), _FINISH]
    scaled = [Step("scaled", magnitude=Magnitude.SCALED), _FINISH]
    logistic = [
        *_cubic("exp2", Place.EXPONENT),
        *_cubic("reciprocal", Place.DENOMINATOR),
        Step("ratio", horner=Horner.RATIO),
    ]
    read = Step("read", magnitude=Magnitude.ACCUMULATOR)
    take = Step("take", magnitude=Magnitude.ACCUMULATOR, clear=True)
    return {
        Op.MOVE: [Step("move", direct=True)],
        Op.MAXIMUM: [Step("maximum", direct=True, maximum=True)],
        Op.ADD: [Step("add", magnitude=Magnitude.SUM), _FINISH],
        Op.SUBTRACT: [Step("add", magnitude=Magnitude.SUM), _FINISH],
        Op.MULTIPLY: [Step("multiply", magnitude=Magnitude.PRODUCT), _FINISH],
        Op.READ: [read, _FINISH],
        Op.TAKE: [take, _FINISH],
        Op.SUM: _sum(lanes),
        Op.PEAK: _peak(lanes),
        Op.EXP: [scale, *_cubic("exp2", Place.EXPONENT), *mantissa],
        Op.RECIPROCAL: [*_cubic("reciprocal", Place.FRACTION), *mantissa],
        Op.RSQRT: [*_cubic("rsqrt", Place.FRACTION), *mantissa],
        Op.SIGMOID: [scale, *logistic, *mantissa],
        Op.SILU: [scale, *logistic, *scaled],
        Op.GELU_TANH: [*_cubic("tanh_form", Place.FIXED), *logistic, *scaled],
        Op.GELU: [*_cubic("logit", Place.FIXED), *logistic, *scaled],
    }[op]


def latency(op: Op, lanes: int) -> int:
    """Cycles of an instruction, the fetch included; it starts when its operands are there."""
    return 1 + len(steps(op, lanes))


def body_cycles(program: Program, lanes: int) -> int:
    """Cycles of one repetition of a program."""
    return sum(latency(i.op, lanes) for i in program.instructions)


def program_cycles(program: Program, lanes: int) -> int:
    """Cycles of a program with streams that never wait, its loading included."""
    return len(program.instructions) + 1 + program.count * body_cycles(program, lanes)
