"""The generated part of ``docs/isa.md``; ``python -m dstar.golden.mpc.manual`` prints it."""

from __future__ import annotations

from .fields import MEANINGS, Field, Status
from .isa import INSTRUCTIONS, Opcode, fields

#: The lines between which docs/isa.md holds :func:`manual`.
BEGIN, FINISH = "<!-- generated: begin -->", "<!-- generated: end -->"


def _rows(items: tuple[Field, ...], at: int) -> list[str]:
    lines = ["| bits | field | range | meaning |", "|---|---|---|---|"]
    for field in items:
        bits = f"{at}" if field.width == 1 else f"{at}-{at + field.width - 1}"
        signed = ", signed" if field.signed else ""
        lines.append(f"| {bits} | {field.name} | {field.range_text}{signed} | {field.meaning} |")
        at += field.width
    return lines


def manual() -> str:
    """Tables of all instructions and status codes, in Markdown."""
    common = fields(Opcode.LOAD)[:3]
    start = sum(field.width for field in common)
    lines = ["### All instructions", "", *_rows(common, 0), ""]
    for opcode, form in INSTRUCTIONS.items():
        engine = form.engine.name.lower()
        lines += [f"### {opcode.name} ({int(opcode)}), {engine} engine", "", form.meaning]
        if not form.ordered:
            lines[-1] += " Its masks are zero."
        lines.append("")
        if form.operands:
            lines += [*_rows(form.operands, start), ""]
    lines += ["### Status codes", "", "| code | name | meaning |", "|---|---|---|"]
    lines += [f"| {int(s)} | {s.name} | {MEANINGS[s]} |" for s in Status]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(manual(), end="")
