"""The core's instructions: every opcode's engine, fields and meaning, said once."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

from dstar.gen.config import EXPONENT_BITS
from dstar.golden.vpu.float import WIDTH
from dstar.golden.vpu.isa import Op, Source

from .fields import Field

#: Bytes of an instruction.
INSTRUCTION_BYTES = 32
#: Largest value of a semaphore.
SEMAPHORE_MAX = 255
#: Encoded tiles that the MPU holds: from the start of their QUANTIZE to their release.
HELD_TILES = 2


class Opcode(IntEnum):
    """Instructions; 0 is none of them, so empty memory is no program."""

    LOAD = 1
    STORE = 2
    TABLE = 3
    QUANTIZE = 4
    MULTIPLY = 5
    OPERATE = 6
    VECTOR = 7
    SYNC = 8
    END = 9


class Engine(IntEnum):
    """Who carries instructions out, each engine its own in program order."""

    CONTROL = 0
    LOAD = 1
    QUANTIZE = 2
    MULTIPLY = 3
    VECTOR = 4
    STORE = 5


@dataclass(frozen=True)
class Form:
    """What an opcode does: its engine, its operands, one sentence.

    ``ordered``: it may wait for semaphores and signal them.
    """

    engine: Engine
    operands: tuple[Field, ...]
    meaning: str
    ordered: bool = True


def _buffer(name: str, meaning: str) -> Field:
    return Field(name, 16, meaning, high="words - 1")


def _step(name: str, meaning: str) -> Field:
    return Field(name, 16, meaning, high="words")


_OPCODE = Field("opcode", 8, "what to do")
_WAIT = Field("wait", 16, "semaphores from which one is taken before the start", mask=True)
_SIGNAL = Field("signal", 16, "semaphores that get one at the end", mask=True)
_NO_WAIT = Field("wait", 16, "zero", high=0)
_NO_SIGNAL = Field("signal", 16, "zero", high=0)

_MOVE = (
    Field("address", 40, "of the first row in memory", high="2^address_bits - 1", aligned=True),
    Field("stride", 32, "bytes from a row to the next in memory", aligned=True),
    _buffer("buffer", "of the first row in the buffer"),
    _step("step", "words from a row to the next in the buffer"),
    Field("length", 16, "words of a row", low=1, high="words"),
    Field("rows", 16, "rows", low=1),
)
_COMPUTE = (
    Field("op", 4, "operation of the VPU, 0 to 15", high=max(Op)),
    Field("dst", 2, "register"),
    Field("a", 3, "operand a: register, 4 input, 5 scalar, 6 constant", high=max(Source)),
    Field("b", 3, "operand b, likewise; not 5 with 6", high=max(Source)),
    Field("accumulate", 1, "add the result to the accumulator"),
    Field("emit", 1, "send the result to the output"),
    Field("constant", 24, "private float", high=(1 << WIDTH) - 1),
)

#: Every opcode's form.
INSTRUCTIONS: dict[Opcode, Form] = {
    Opcode.LOAD: Form(Engine.LOAD, _MOVE, "Moves rows of words from memory to the buffer."),
    Opcode.STORE: Form(
        Engine.STORE,
        _MOVE,
        "Moves rows of words from the buffer to memory; done when the memory has answered.",
    ),
    Opcode.TABLE: Form(
        Engine.QUANTIZE,
        (
            Field("index", 4, "row to write"),
            Field("threshold", 15, "largest magnitude that the row serves, binary16 without sign"),
            Field("slices", 3, "half the precision", high=4),
            Field("exponent", EXPONENT_BITS, "scale exponent f", signed=True),
        ),
        "Writes a row of the QPU's bin table, for the tiles that follow.",
    ),
    Opcode.QUANTIZE: Form(
        Engine.QUANTIZE,
        (
            _buffer("x", "activations, a word a channel"),
            _buffer("reference", "references, likewise; not read at a keyframe"),
            _buffer("next", "where the next references go, likewise, if they are written"),
            Field("channels", 16, "channels of the tile", low=1, high="k_tile"),
            Field("keyframe", 1, "the difference is x itself"),
            Field("previous", 1, "the next reference is x, not the reconstruction"),
            Field("write", 1, "write the next references"),
        ),
        "Quantizes a tile and hands it to the MPU, which holds up to two; waits for a free place.",
    ),
    Opcode.MULTIPLY: Form(
        Engine.MULTIPLY,
        (
            Field("freed", 16, "semaphores that get one when the weights are read", mask=True),
            _buffer("weights", "weight rows of the first column tile, from channel 0 on"),
            _step("weight_step", "words from a column tile's weights to the next one's"),
            Field("channels", 16, "input channels: as many as the tile has", low=1, high="k_tile"),
            Field("tiles", 16, "column tiles", low=1, high="columns / cols"),
            Field("base", 16, "where the first column's sum is kept", high="columns - 1"),
            Field("first", 1, "of the k tiles: sums start at zero"),
            Field("last", 1, "of the k tiles: sums leave"),
            Field("keyframe", 1, "add the bias, not last step's output"),
            Field("release", 1, "the encoded tile is not used again"),
            Field("finest", EXPONENT_BITS, "largest exponent of the bin table", signed=True),
            _buffer("parameters", "scales and biases, a column tile after the other; read if last"),
            _buffer("before", "last step's outputs, a word a column; read if last, no keyframe"),
            _buffer("output", "where outputs go, a word a column; written if last"),
        ),
        "Multiplies the oldest encoded tile by column tiles of weights, and adds up the sums.",
    ),
    Opcode.OPERATE: Form(
        Engine.VECTOR,
        _COMPUTE,
        "Appends an operation to a VPU program, which a VECTOR completes.",
        ordered=False,
    ),
    Opcode.VECTOR: Form(
        Engine.VECTOR,
        (
            *_COMPUTE,
            Field("count", 16, "how often the program runs", low=1),
            _buffer("input", "first word of the input"),
            _step("inner", "words from an input to the next in one run of the program"),
            _step("outer", "words from a run's first input to the next run's"),
            _buffer("scalar", "first word of the scalars, binary16 one after the other"),
            _buffer("output", "first word of the output; the others follow"),
        ),
        "Appends the last operation of a VPU program and runs it.",
    ),
    Opcode.SYNC: Form(
        Engine.CONTROL,
        (),
        "Waits until every engine is done, then sets all semaphores to zero.",
        ordered=False,
    ),
    Opcode.END: Form(
        Engine.CONTROL,
        (),
        "Waits until every engine is done, then stops the core and raises the interrupt.",
        ordered=False,
    ),
}


@lru_cache
def fields(opcode: Opcode) -> tuple[Field, ...]:
    """All fields of an opcode, from the least significant bit."""
    form = INSTRUCTIONS[opcode]
    masks = (_WAIT, _SIGNAL) if form.ordered else (_NO_WAIT, _NO_SIGNAL)
    return (_OPCODE, *masks, *form.operands)
