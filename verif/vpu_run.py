"""Runs VPU programs in the simulator: programs and vectors to stream words and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dstar.golden.vpu.float import WIDTH
from dstar.golden.vpu.isa import Instruction, Program, Source
from dstar.golden.vpu.steps import program_cycles
from dstar.verif.harness import Dut
from dstar.verif.packing import Field, Words, pack
from dstar.verif.player import PlayResult, play
from dstar.verif.verilate import Build

Half = npt.NDArray[np.float16]

#: :func:`dstar.rtl.vpu.sequencer.command_layout`, from the least significant bit: an instruction
#: (op, dst, a, b, accumulate, emit, takes input, takes scalar, constant), last, repeat.
COMMAND = [
    Field(4),
    Field(2),
    Field(3),
    Field(3),
    *[Field(1)] * 4,
    Field(WIDTH),
    Field(1),
    Field(16),
]


def _fields(item: Instruction, last: bool, count: int) -> list[int]:
    return [
        item.op,
        item.dst,
        item.a,
        item.b,
        item.accumulate,
        item.emit,
        item.reads(Source.INPUT),
        item.reads(Source.SCALAR),
        item.constant_bits,
        last,
        count - 1 if last else 0,
    ]


def command_words(programs: Sequence[Program]) -> Words:
    """Words of the command stream."""
    rows = [
        _fields(item, number + 1 == len(program.instructions), program.count)
        for program in programs
        for number, item in enumerate(program.instructions)
    ]
    return pack(COMMAND, list(np.array(rows, np.int64).T))


def half_words(values: Half) -> Words:
    """binary16 vectors (vectors, lanes), or scalars (scalars,), as stream words."""
    bits = np.ascontiguousarray(values, np.float16).reshape(len(values), -1)
    return bits.view(np.uint8)


def dut_lanes(dut: Dut) -> int:
    """Lanes of a VPU, from the width of its output."""
    return dut.outputs()[0].width // 16


def run_programs(
    build: Build,
    dut: Dut,
    programs: Sequence[Program],
    vectors: Half,
    scalars: Half | None = None,
    **options: Any,
) -> tuple[Half, PlayResult]:
    """Play programs and streams; return the output vectors, binary16 (vectors, lanes).

    ``options`` as for :func:`dstar.verif.player.play`; ``max_cycles`` is by default several
    times what the programs take, so that a unit that loses a word does not run for ever.
    """
    lanes = dut_lanes(dut)
    patience = 10_000 + 5 * sum(program_cycles(program, lanes) for program in programs)
    options.setdefault("max_cycles", patience)
    inputs = {"command": command_words(programs)}
    if len(vectors):
        inputs["input"] = half_words(vectors)
    if scalars is not None:
        inputs["scalar"] = half_words(scalars)
    expect = {"output": sum(program.emitted for program in programs)}
    result = play(build, dut, inputs=inputs, expect=expect, **options)
    return np.ascontiguousarray(result.outputs["output"]).view(np.float16), result
