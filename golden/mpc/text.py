"""Assembler text: an instruction a line, ``name field=value ...``, both ways."""

from __future__ import annotations

from collections.abc import Iterable

from .fields import IsaError, Status
from .isa import Instruction, Opcode, fields, mask


def format_instruction(instruction: Instruction) -> str:
    """One line; fields of zero are left out, masks are lists, wide fields are hexadecimal."""
    parts = [instruction.name.lower()]
    for field, value in zip(fields(instruction.opcode)[1:], instruction.values[1:], strict=True):
        if value == 0:
            continue
        if field.mask:
            text = ",".join(str(s) for s in range(field.width) if value >> s & 1)
        else:
            text = hex(value) if field.width > 16 else str(value)
        parts.append(f"{field.name}={text}")
    return " ".join(parts)


def disassemble(program: Iterable[Instruction]) -> str:
    """A program as text, a line an instruction."""
    return "".join(format_instruction(i) + "\n" for i in program)


def assemble(text: str) -> list[Instruction]:
    """Instructions of a text; ``#`` starts a comment, empty lines are skipped.

    Raises
    ------
    IsaError
        ``OPCODE`` or ``FIELD``; the message tells the line.
    """
    program = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            program.append(_line(words))
        except IsaError as error:
            raise IsaError(error.status, f"line {number}: {error}") from None
    return program


def _line(words: list[str]) -> Instruction:
    name = words[0].upper()
    if name not in Opcode.__members__:
        known = ", ".join(o.name.lower() for o in Opcode)
        raise IsaError(Status.OPCODE, f"instruction must be one of {known}, got {words[0]!r}")
    opcode = Opcode[name]
    masks = {field.name for field in fields(opcode) if field.mask}
    operands: dict[str, int] = {}
    for word in words[1:]:
        key, _, value = word.partition("=")
        if key in operands:
            raise IsaError(Status.FIELD, f"{name}: {key} must be given once, got {word!r}")
        try:
            if key in masks:
                operands[key] = mask(int(part) for part in value.split(","))
            else:
                operands[key] = int(value, 0)
        except ValueError:
            raise IsaError(
                Status.FIELD, f"{name}: a field must be written name=number, got {word!r}"
            ) from None
    return Instruction.make(opcode, operands)
