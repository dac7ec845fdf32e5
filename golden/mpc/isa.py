"""The core's instruction set: one table of fields, from which everything else is made.

Encoder, decoder, assembler text (:mod:`dstar.golden.mpc.text`), documentation
(:mod:`dstar.golden.mpc.manual`) and the RTL's decoder read :data:`INSTRUCTIONS`.  An instruction
is 32 bytes, little endian: opcode, wait mask, signal mask, and from bit 40 on the operands of its
opcode, in the table's order without gaps; bits beyond them are zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

from dstar.gen.config import Config
from dstar.golden.vpu.isa import Source

from .fields import Field, IsaError, Status
from .forms import (
    HELD_TILES,
    INSTRUCTION_BYTES,
    INSTRUCTIONS,
    SEMAPHORE_MAX,
    Engine,
    Form,
    Opcode,
    fields,
)
from .geometry import Geometry

__all__ = [
    "HELD_TILES",
    "INSTRUCTIONS",
    "INSTRUCTION_BYTES",
    "SEMAPHORE_MAX",
    "Engine",
    "Form",
    "Instruction",
    "Opcode",
    "decode",
    "encode_program",
    "fields",
    "mask",
]


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

    @cached_property
    def operands(self) -> dict[str, int]:
        """Fields by name, without the opcode."""
        return {
            field.name: value
            for field, value in zip(fields(self.opcode)[1:], self.values[1:], strict=True)
        }

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
        if self.engine == Engine.VECTOR and {self["a"], self["b"]} == {
            Source.SCALAR,
            Source.CONSTANT,
        }:
            raise IsaError(
                Status.FIELD,
                f"{self.name}: a and b must not be scalar and constant, got {self['a']} and "
                f"{self['b']}",
            )
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
