"""The operations of a DiT block as VPU programs.

A vector is one channel (or key) of all lanes' tokens (queries), unless said otherwise.  The VPU
has no memory for vectors: an operation of several passes takes its input as often as its
docstring says.
"""

from __future__ import annotations

from .isa import Instruction, Op, Program, Source, nearest_constant

R0, R1, R2, R3 = Source.R0, Source.R1, Source.R2, Source.R3
INPUT, SCALAR, CONSTANT = Source.INPUT, Source.SCALAR, Source.CONSTANT

_LOWEST = Instruction(Op.MOVE, 0, CONSTANT, constant=float("-inf"))


def unary(op: Op, count: int) -> list[Program]:
    """One function of each of ``count`` vectors: GELU in both forms, SiLU, exp, ..."""
    return [Program((Instruction(op, 0, INPUT, emit=True),), count)]


def _exponential(scale: float) -> tuple[Instruction, ...]:
    factor = (Instruction(Op.MULTIPLY, 1, R1, CONSTANT, constant=nearest_constant(scale)),)
    return (
        Instruction(Op.SUBTRACT, 1, INPUT, R0),
        *(factor if scale != 1.0 else ()),
        Instruction(Op.EXP, 1, R1, accumulate=True, emit=True),
    )


def softmax(keys: int, *, scale: float = 1.0) -> list[Program]:
    """``exp(s (x - max x))`` over ``keys`` vectors, a vector a key, and their sum's reciprocal.

    In: the keys twice.  Out: the exponentials, which :func:`normalize` divides by their sum.
    ``scale``: s > 0; costs nothing when it is 1 (folded into the query projection).  A row of
    -inf alone gives NaN, as in IEEE arithmetic; missing keys of a last block are given as -inf.
    """
    return [
        Program((_LOWEST,)),
        Program((Instruction(Op.MAXIMUM, 0, R0, INPUT),), keys),
        Program(_exponential(scale), keys),
        Program((Instruction(Op.TAKE, 2), Instruction(Op.RECIPROCAL, 2, R2))),
    ]


def softmax_row(blocks: int, *, scale: float = 1.0) -> list[Program]:
    """:func:`softmax` in the other layout: one query, keys along the lanes of ``blocks`` vectors.

    In: the blocks twice.  Out: the exponentials, for :func:`normalize`.
    """
    first, peak, exponentials, _ = softmax(blocks, scale=scale)
    return [
        first,
        peak,
        Program((Instruction(Op.PEAK, 0, R0),)),
        exponentials,
        Program((Instruction(Op.SUM, 2), Instruction(Op.RECIPROCAL, 2, R2))),
    ]


def normalize(count: int) -> list[Program]:
    """``count`` vectors times register 2: softmax's last pass.  In: the exponentials once."""
    return [Program((Instruction(Op.MULTIPLY, 1, INPUT, R2, emit=True),), count)]


def layer_norm(channels: int, *, epsilon: float = 1e-6, modulate: bool = False) -> list[Program]:
    """``(x - mean) / sqrt(var + epsilon)`` over ``channels`` vectors, a vector a channel.

    In: the channels three times.  The first pass gives the mean in two parts, so that values
    near it keep their relative accuracy: m, rounded, and the exact rest of the sum (less m times
    ``channels``, as a sum of powers of two) over ``channels``.  The second gives the variance.
    ``modulate``: the result times ``1 + scale`` plus ``shift`` (adaLN); the scalar stream then
    holds, for each channel, ``1 + scale`` and ``shift`` (the one is added to the bias of the
    layer that makes the scale).
    """
    share = nearest_constant(1 / channels)
    rest = [
        Instruction(Op.MULTIPLY, 1, R0, CONSTANT, accumulate=True, constant=-float(1 << bit))
        for bit in range(channels.bit_length())
        if channels >> bit & 1
    ]
    centred = (Instruction(Op.SUBTRACT, 2, INPUT, R0), Instruction(Op.SUBTRACT, 2, R2, R1))
    last = [*centred, Instruction(Op.MULTIPLY, 2, R2, R3, emit=not modulate)]
    if modulate:
        last += [
            Instruction(Op.MULTIPLY, 2, R2, SCALAR),
            Instruction(Op.ADD, 2, R2, SCALAR, emit=True),
        ]
    return [
        Program((Instruction(Op.MOVE, 2, INPUT, accumulate=True),), channels),
        Program(
            (
                Instruction(Op.READ, 0),
                Instruction(Op.MULTIPLY, 0, R0, CONSTANT, constant=share),
                *rest,
            )
        ),
        Program(
            (Instruction(Op.TAKE, 1), Instruction(Op.MULTIPLY, 1, R1, CONSTANT, constant=share))
        ),
        Program((*centred, Instruction(Op.MULTIPLY, 2, R2, R2, accumulate=True)), channels),
        Program(
            (
                Instruction(Op.TAKE, 3),
                Instruction(Op.MULTIPLY, 3, R3, CONSTANT, constant=share),
                Instruction(Op.ADD, 3, R3, CONSTANT, constant=nearest_constant(epsilon)),
                Instruction(Op.RSQRT, 3, R3),
            )
        ),
        Program(tuple(last), channels),
    ]


def modulate(count: int) -> list[Program]:
    """``x * a + b`` with a and b from the scalar stream for each vector: adaLN by itself."""
    return [
        Program(
            (
                Instruction(Op.MULTIPLY, 0, INPUT, SCALAR),
                Instruction(Op.ADD, 0, R0, SCALAR, emit=True),
            ),
            count,
        )
    ]


def residual(count: int, *, gate: bool = False) -> list[Program]:
    """``x + h``, or ``x + gate * h`` with the gate from the scalar stream (adaLN).

    In: h, x, for each of ``count`` vectors in turn.
    """
    first = Instruction(Op.MULTIPLY, 0, INPUT, SCALAR) if gate else Instruction(Op.MOVE, 0, INPUT)
    return [Program((first, Instruction(Op.ADD, 0, R0, INPUT, emit=True)), count)]
