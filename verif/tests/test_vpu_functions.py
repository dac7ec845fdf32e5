# amaranth: UnusedElaboratable=no
"""The VPU's functions and arithmetic in Verilog against golden, on every binary16 argument."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dstar.golden.vpu.isa import Instruction, Op, Program, Source
from dstar.golden.vpu.programs import (
    unary,
)
from dstar.golden.vpu.steps import program_cycles
from dstar.golden.vpu.unary import FUNCTIONS
from dstar.verif.tests.vpu_tools import ODD, TINY, Bench, make

ALL = np.arange(2**16, dtype=np.uint16).view(np.float16)
_FUNCTIONS = tuple(Op(Op.EXP + i) for i in range(len(FUNCTIONS)))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return make(tmp_path_factory.mktemp("vpu"), TINY)


@pytest.mark.parametrize("op", [Op.MOVE, *_FUNCTIONS], ids=lambda op: op.name.lower())
def test_functions_on_every_half(tiny: Bench, op: Op) -> None:
    programs = unary(op, len(ALL) // tiny.lanes)
    result = tiny.check(programs, ALL.reshape(-1, tiny.lanes))
    # Throughput as stated; the first words need a cycle each to arrive and to leave.
    assert result.cycles == sum(program_cycles(p, tiny.lanes) for p in programs) + 2


def test_functions_with_other_tables(tmp_path: Path) -> None:
    odd = make(tmp_path, ODD)
    some = ALL[:: 7 * 3]
    x = some[: len(some) // odd.lanes * odd.lanes].reshape(-1, odd.lanes)
    programs = [program for op in _FUNCTIONS for program in unary(op, len(x))]
    odd.check(programs, np.concatenate([x] * len(_FUNCTIONS)))


@pytest.mark.parametrize("op", [Op.ADD, Op.SUBTRACT, Op.MULTIPLY, Op.MAXIMUM])
def test_arithmetic_on_random_halves(tiny: Bench, op: Op, seed: int) -> None:
    count = 100_000 // tiny.lanes
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 2**16, (2 * count, tiny.lanes), dtype=np.uint16).view(np.float16)
    x[count:] = rng.standard_normal((count, tiny.lanes)).astype(np.float16)
    program = (
        Instruction(Op.MOVE, 0, Source.INPUT),
        Instruction(op, 0, Source.R0, Source.INPUT, emit=True),
    )
    tiny.check([Program(program, count)], x)
