"""The core's instruction set: one table of fields, from which everything else is made.

Encoder, decoder, assembler text (:mod:`dstar.golden.mpc.text`), documentation
(:mod:`dstar.golden.mpc.manual`) and the RTL's decoder read :data:`INSTRUCTIONS`.  An instruction
is 32 bytes, little endian: opcode, wait mask, signal mask, and from bit 40 on the operands of its
opcode, in the table's order without gaps; bits beyond them are zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

from dstar.gen.config import EXPONENT_BITS, Config
from dstar.golden.vpu.isa import Op, Source

from .fields import Field, IsaError, Status
from .geometry import Geometry

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
    Field("b", 3, "operand b, likewise", high=max(Source)),
    Field("accumulate", 1, "add the result to the accumulator"),
    Field("emit", 1, "send the result to the output"),
    Field("constant", 24, "private float"),
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


def fields(opcode: Opcode) -> tuple[Field, ...]:
    """All fields of an opcode, from the least significant bit."""
    form = INSTRUCTIONS[opcode]
    masks = (_WAIT, _SIGNAL) if form.ordered else (_NO_WAIT, _NO_SIGNAL)
    return (_OPCODE, *masks, *form.operands)


def mask(semaphores: Iterable[int]) -> int:
    """A mask of semaphores."""
    return sum(1 << s for s in set(semaphores))


@dataclass(frozen=True)
class Instruction:
    """One instruction: its opcode and the values of :func:`fields`, the opcode's among them.

    Raises
    ------
    IsaError
        ``FIELD``, if a value does not fit its field's width.
    """

    opcode: Opcode
    values: tuple[int, ...]

    def __post_init__(self) -> None:
        for field, value in zip(fields(self.opcode), self.values, strict=True):
            low, high = field.bounds
            if not low <= value <= high:
                raise IsaError(
                    Status.FIELD,
                    f"{self.name}: {field.name} must be from {low} to {high}, got {value}",
                )

    @classmethod
    def make(
        cls, opcode: Opcode, operands: Mapping[str, int] | None = None, /, **more: int
    ) -> Instruction:
        """An instruction of named fields; those not named are zero.

        Raises
        ------
        IsaError
            ``FIELD``, if a name is no field of the opcode or a value does not fit.
        """
        given = {**(operands or {}), **more, "opcode": int(opcode)}
        names = [field.name for field in fields(opcode)]
        for name in given:
            if name not in names:
                raise IsaError(
                    Status.FIELD,
                    f"{opcode.name}: field must be one of {', '.join(names[1:])}, got {name!r}",
                )
        return cls(opcode, tuple(given.get(name, 0) for name in names))

    @property
    def name(self) -> str:
        """The opcode's name."""
        return self.opcode.name

    @property
    def engine(self) -> Engine:
        """Who carries it out."""
        return INSTRUCTIONS[self.opcode].engine

    @property
    def operands(self) -> dict[str, int]:
        """Fields by name, without the opcode."""
        names = [field.name for field in fields(self.opcode)]
        return dict(zip(names[1:], self.values[1:], strict=True))

    def __getitem__(self, name: str) -> int:
        return self.operands[name]

    def encode(self) -> bytes:
        """The instruction's 32 bytes."""
        word = at = 0
        for field, value in zip(fields(self.opcode), self.values, strict=True):
            word |= (value & ((1 << field.width) - 1)) << at
            at += field.width
        return word.to_bytes(INSTRUCTION_BYTES, "little")

    def check(self, cfg: Config) -> None:
        """Refuse what the configured core stops at when it decodes or runs the instruction.

        Raises
        ------
        IsaError
            ``FIELD`` or ``RANGE``; the message names the field, the rule and the value.
        """
        geometry = Geometry(cfg)
        ranges = _ranges(cfg)[self.opcode]
        for (field, low, high), value in zip(ranges, self.values, strict=True):
            if not low <= value <= high:
                rule = f"from {low} to {high}"
            elif field.aligned and value % geometry.word_bytes:
                rule = f"a multiple of {geometry.word_bytes} bytes"
            else:
                continue
            shown = hex(value) if field.aligned else value
            raise IsaError(Status.FIELD, f"{self.name}: {field.name} must be {rule}, got {shown}")
        for name, first, span in _spans(self, geometry):
            limit = cfg.core.columns if name == "base" else geometry.words
            if first + span > limit:
                what = "columns" if name == "base" else "words"
                raise IsaError(
                    Status.RANGE,
                    f"{self.name}: {name} + {span} {what} must be at most {limit}, "
                    f"got {first + span}",
                )


@lru_cache
def _ranges(cfg: Config) -> dict[Opcode, tuple[tuple[Field, int, int], ...]]:
    return {o: tuple((field, *field.range(cfg)) for field in fields(o)) for o in Opcode}


def _spans(i: Instruction, geometry: Geometry) -> list[tuple[str, int, int]]:
    """What an instruction touches: field, first, extent; a VECTOR's is found as it runs."""
    v = i.operands
    if i.opcode in (Opcode.LOAD, Opcode.STORE):
        return [("buffer", v["buffer"], (v["rows"] - 1) * v["step"] + v["length"])]
    if i.opcode == Opcode.QUANTIZE:
        used = {"x": True, "reference": not v["keyframe"], "next": bool(v["write"])}
        return [(name, v[name], v["channels"]) for name, on in used.items() if on]
    if i.opcode == Opcode.MULTIPLY:
        cols = geometry.cfg.array.cols * v["tiles"]
        weights = (v["tiles"] - 1) * v["weight_step"] + geometry.weight_words(v["channels"])
        spans = [("base", v["base"], cols), ("weights", v["weights"], weights)]
        if v["last"]:
            words = v["tiles"] * geometry.parameter_words
            spans += [("parameters", v["parameters"], words), ("output", v["output"], cols)]
            if not v["keyframe"]:
                spans.append(("before", v["before"], cols))
        return spans
    return []


def decode(data: bytes) -> Instruction:
    """The instruction of 32 bytes; the inverse of :meth:`Instruction.encode`.

    Raises
    ------
    IsaError
        ``OPCODE``, or ``FIELD`` for bits that belong to no field.
    """
    if len(data) != INSTRUCTION_BYTES:
        raise ValueError(f"an instruction must have {INSTRUCTION_BYTES} bytes, got {len(data)}")
    word = int.from_bytes(data, "little")
    number = word & 0xFF
    if number not in set(Opcode):
        known = f"{min(Opcode)} to {max(Opcode)}"
        raise IsaError(Status.OPCODE, f"opcode must be from {known}, got {number}")
    opcode, values, at = Opcode(number), [], 0
    for field in fields(opcode):
        value = word >> at & ((1 << field.width) - 1)
        if field.signed and value >> (field.width - 1):
            value -= 1 << field.width
        values.append(value)
        at += field.width
    if word >> at:
        raise IsaError(
            Status.FIELD, f"{opcode.name}: bits from {at} on must be zero, got {word >> at:#x}"
        )
    return Instruction(opcode, tuple(values))


def encode_program(program: Iterable[Instruction]) -> bytes:
    """Instructions one after the other."""
    return b"".join(i.encode() for i in program)
