"""The VPU's instructions and programs.

An instruction computes ``dst = op(a, b)`` in every lane.  A program is a list of instructions
that is repeated for a number of vectors; a longer computation (softmax) is a list of programs
that run one after the other and hand values on in the registers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from .float import from_bits, round_private, to_bits


class Op(IntEnum):
    """Operations.

    ``READ``: the accumulator; ``TAKE``: the same, and it is then empty; ``SUM``: the sum of all
    lanes' accumulators, to all lanes, which are then empty; ``PEAK``: the maximum of ``a`` over
    all lanes, to all lanes.
    """

    MOVE = 0
    MAXIMUM = 1
    ADD = 2
    SUBTRACT = 3
    MULTIPLY = 4
    READ = 5
    TAKE = 6
    SUM = 7
    PEAK = 8
    EXP = 9
    RECIPROCAL = 10
    RSQRT = 11
    SIGMOID = 12
    SILU = 13
    GELU_TANH = 14
    GELU = 15


class Source(IntEnum):
    """Operands.

    ``INPUT``: the next vector of the input stream; ``SCALAR``: the next word of the scalar
    stream, for all lanes; ``CONSTANT``: the instruction's own.  An instruction that names a
    stream twice takes one word of it; none may name both SCALAR and CONSTANT.
    """

    R0 = 0
    R1 = 1
    R2 = 2
    R3 = 3
    INPUT = 4
    SCALAR = 5
    CONSTANT = 6


#: Registers of a lane, each a private float.
REGISTERS = 4


@dataclass(frozen=True)
class Instruction:
    """``dst = op(a, b)``, and what else happens to the result.

    ``accumulate``: it is added to the lane's accumulator.  ``emit``: it leaves on the output
    stream, rounded to binary16.  ``constant``: a private float; other values are refused.
    """

    op: Op
    dst: int = 0
    a: Source = Source.R0
    b: Source = Source.R0
    accumulate: bool = False
    emit: bool = False
    constant: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.dst < REGISTERS:
            raise ValueError(f"dst must be from 0 to {REGISTERS - 1}, got {self.dst}")
        value = np.float32(from_bits(np.array([self.constant_bits], np.uint32))[0])
        if self.reads(Source.SCALAR) and self.reads(Source.CONSTANT):
            raise ValueError("an instruction must not read both SCALAR and CONSTANT")
        if not (value == self.constant or np.isnan(self.constant)):
            raise ValueError(f"constant must be a private float, got {self.constant!r}")

    @property
    def constant_bits(self) -> int:
        """Encoding of the constant."""
        return int(to_bits(round_private(np.array([self.constant], np.float64)))[0])

    @property
    def sources(self) -> tuple[Source, ...]:
        """Operands that the operation reads."""
        if self.op in (Op.READ, Op.TAKE, Op.SUM):
            return ()
        two = (Op.MAXIMUM, Op.ADD, Op.SUBTRACT, Op.MULTIPLY)
        return (self.a, self.b) if self.op in two else (self.a,)

    def reads(self, source: Source) -> bool:
        """Whether the instruction takes this operand."""
        return source in self.sources


@dataclass(frozen=True)
class Program:
    """Instructions that run once for each of ``count`` vectors (1 to 65,536)."""

    instructions: tuple[Instruction, ...]
    count: int = 1

    def __post_init__(self) -> None:
        if not self.instructions:
            raise ValueError("a program must have instructions, got none")
        if not 1 <= self.count <= 2**16:
            raise ValueError(f"count must be from 1 to {2**16}, got {self.count}")

    def words(self, source: Source) -> int:
        """Words of a stream that the whole program takes."""
        return self.count * sum(i.reads(source) for i in self.instructions)

    @property
    def emitted(self) -> int:
        """Vectors that the whole program sends out."""
        return self.count * sum(i.emit for i in self.instructions)


def nearest_constant(x: float) -> float:
    """The private float nearest to ``x``."""
    return float(round_private(np.array([x], np.float64))[0])
