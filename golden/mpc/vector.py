"""VPU programs as instructions of the core."""

from __future__ import annotations

from dstar.golden.vpu.isa import Instruction as VectorInstruction
from dstar.golden.vpu.isa import Program, Source

from .isa import Instruction, Opcode


def vector_program(
    program: Program,
    *,
    input: int = 0,
    inner: int = 0,
    outer: int = 0,
    scalar: int = 0,
    output: int = 0,
    wait: int = 0,
    signal: int = 0,
) -> list[Instruction]:
    """OPERATEs and the VECTOR that run a program of :mod:`dstar.golden.vpu.programs`.

    Buffer addresses and steps are those of VECTOR, in words; ``wait`` and ``signal`` are masks.
    """
    body = [_operands(i) for i in program.instructions]
    streams = {"input": input, "inner": inner, "outer": outer, "scalar": scalar, "output": output}
    masks = {"wait": wait, "signal": signal, "count": program.count}
    return [
        *(Instruction.make(Opcode.OPERATE, operands) for operands in body[:-1]),
        Instruction.make(Opcode.VECTOR, {**body[-1], **streams, **masks}),
    ]


def _operands(i: VectorInstruction) -> dict[str, int]:
    def used(source: Source, place: int) -> Source:
        return source if len(i.sources) > place else Source.R0

    return {
        "op": i.op,
        "dst": i.dst,
        "a": used(i.a, 0),
        "b": used(i.b, 1),
        "accumulate": i.accumulate,
        "emit": i.emit,
        "constant": i.constant_bits,
    }
