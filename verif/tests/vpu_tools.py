"""A compiled VPU beside its golden model, and vectors and programs for both."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dstar.gen.config import PRESETS, Config
from dstar.golden.vpu import vpu as golden
from dstar.golden.vpu.isa import Instruction, Op, Program, Source, nearest_constant
from dstar.rtl.vpu.vpu import VPU
from dstar.verif.harness import Dut
from dstar.verif.player import PlayResult
from dstar.verif.tests.rtl_bench import build_bench
from dstar.verif.verilate import Build
from dstar.verif.vpu_run import run_programs

Half = npt.NDArray[np.float16]

#: Four lanes, the default tables.
TINY = PRESETS["tiny"]
#: A single lane.
LONE = TINY.replace({"rows": 1, "cols": 2, "cluster": 1})
#: Three lanes, and every parameter away from its default.
ODD = TINY.replace(
    {"rows": 3, "cols": 3, "cluster": 3}
    | {"segments": 16, "width": 24, "acc_width": 47, "acc_fraction": 25, "program": 20}
)


@dataclass(frozen=True)
class Bench:
    """A compiled VPU and its golden model."""

    build: Build
    dut: Dut
    cfg: Config

    @property
    def lanes(self) -> int:
        """Lanes of the unit."""
        return self.cfg.array.rows

    def check(
        self, programs: list[Program], vectors: Half, scalars: Half | None = None, **options: Any
    ) -> PlayResult:
        """Run programs on both; every bit must be equal."""
        with np.errstate(all="ignore"):
            want = golden.VPU(self.lanes, self.cfg.vector).run(programs, vectors, scalars)
        got, result = run_programs(self.build, self.dut, programs, vectors, scalars, **options)
        np.testing.assert_array_equal(got.view(np.uint16), want.view(np.uint16))
        return result


def make(folder: Path, cfg: Config) -> Bench:
    return Bench(*build_bench("vpu", VPU(cfg), folder, cfg), cfg)


def vectors(rng: np.random.Generator, count: int, lanes: int) -> Half:
    """Ordinary values, and lanes of -inf, of equal values, of subnormals, with one huge value."""
    x = (rng.standard_normal((count, max(lanes, 4))) * 3).astype(np.float16)
    if rng.random() < 0.7:
        x[:, 0] = -np.inf
        x[:, 1] = 1
        x[:, 2] = np.arange(count) * 2.0**-24
        x[rng.integers(count), 3] = 65504
    return np.ascontiguousarray(rng.permuted(x, axis=1)[:, :lanes])


def random_programs(rng: np.random.Generator, count: int, longest: int) -> list[Program]:
    """Programs of any instructions, whose constants reach far beyond binary16."""
    start = [
        *(Program((Instruction(Op.MOVE, i, Source.INPUT),)) for i in range(4)),
        Program((Instruction(Op.TAKE, 0),)),
    ]
    weights = np.ones(len(Op))
    weights[[Op.ADD, Op.SUBTRACT, Op.MULTIPLY]] = 4
    special = (0.0, -0.0, np.inf, -np.inf, np.nan)

    def instruction() -> Instruction:
        reach = int(rng.choice([4, 20, 60, 120]))
        constant = rng.standard_normal() * 2.0 ** int(rng.integers(-reach, reach))
        if rng.random() < 0.05:
            constant = float(rng.choice(special))
        a, b = (Source(int(rng.integers(7))) for _ in "ab")
        if {a, b} == {Source.SCALAR, Source.CONSTANT}:
            b = a
        return Instruction(
            Op(int(rng.choice(len(Op), p=weights / weights.sum()))),
            int(rng.integers(4)),
            a,
            b,
            accumulate=bool(rng.random() < 0.5),
            emit=bool(rng.random() < 0.9),
            constant=nearest_constant(float(constant)),
        )

    return start + [
        Program(
            tuple(instruction() for _ in range(int(rng.integers(1, longest + 1)))),
            int(rng.integers(1, 6)),
        )
        for _ in range(count)
    ]


def accumulations(
    rng: np.random.Generator, cfg: Config, *, terms: int
) -> tuple[list[Program], Half]:
    """Sums of terms that end around the accumulator's last place, ties too, and its first."""
    programs, inputs = [], []
    vector = cfg.vector
    top = vector.acc_width - 1 - vector.acc_fraction
    for power in (*range(-7 - vector.acc_fraction, 2 - vector.acc_fraction), top - 10, top - 9):
        # Integers of up to 11 bits times a power of two, brought back to where binary16 is.
        scale = Instruction(
            Op.MULTIPLY, 0, Source.INPUT, Source.CONSTANT, accumulate=True, constant=2.0**power
        )
        back = Instruction(
            Op.MULTIPLY, 1, Source.R1, Source.CONSTANT, emit=True, constant=2.0**-power / 8
        )
        for _ in range(20):
            programs += [Program((scale,), terms), Program((Instruction(Op.TAKE, 1), back))]
            values = rng.integers(-2048, 2049, (terms, cfg.array.rows))
            inputs.append(values >> rng.integers(0, 10))
    return programs, np.concatenate(inputs).astype(np.float16)
