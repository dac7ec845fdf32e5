"""Programs on the simulated core and on the golden one, side by side."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np

from dstar.gen.config import Config
from dstar.golden.mpc.core import CoreError, GoldenCore
from dstar.golden.mpc.fields import Status
from dstar.golden.mpc.isa import Instruction, encode_program
from dstar.golden.mpc.memory import Memory
from dstar.verif.mpc.session import Program
from dstar.verif.tests.mpc_programs import RandomProgram

#: Where programs lie in memory, beyond the data of random programs.
PROGRAM = 0x20000


def code(program: Sequence[Instruction]) -> np.ndarray:
    return np.frombuffer(encode_program(program), np.uint8)


def golden_error(
    cfg: Config, memory: Memory, length: int, *, address: int = PROGRAM
) -> tuple[Status, int, int]:
    """Status, program counter and address with which the golden core stops on a copy of memory."""
    try:
        GoldenCore(cfg, copy.deepcopy(memory)).run(address, length)
    except CoreError as error:
        return error.status, error.pc, error.address
    return Status.OK, 0, 0


def random_run(cfg: Config, rng: np.random.Generator, length: int) -> tuple[Program, np.ndarray]:
    """A random program with its data, and what it leaves of them in the golden core."""
    made = RandomProgram(cfg, rng, length)
    memory = made.memory(PROGRAM)
    size = PROGRAM - memory.base
    data = memory.data[:size].copy()
    GoldenCore(cfg, memory).run(PROGRAM, len(made.instructions))
    program = Program(
        address=PROGRAM,
        length=len(made.instructions),
        writes=[(memory.base, data), (PROGRAM, code(made.instructions))],
        reads=[(memory.base, size)],
    )
    return program, memory.data[:size]
