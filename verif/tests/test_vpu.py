# amaranth: UnusedElaboratable=no
"""The VPU in Verilator against its golden model, bit for bit."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dstar.gen.config import PRESETS, Config, ConfigError
from dstar.golden.vpu import vpu as golden
from dstar.golden.vpu.isa import Instruction, Op, Program, Source, nearest_constant
from dstar.golden.vpu.programs import (
    layer_norm,
    modulate,
    normalize,
    residual,
    softmax,
    softmax_row,
    unary,
)
from dstar.golden.vpu.steps import body_cycles, program_cycles
from dstar.golden.vpu.unary import FUNCTIONS
from dstar.rtl.vpu.vpu import VPU
from dstar.verif.harness import Dut, build_harness
from dstar.verif.player import PlayResult
from dstar.verif.process import SimulationError
from dstar.verif.tests.rtl_bench import build_bench
from dstar.verif.verilate import Build
from dstar.verif.vpu_run import run_programs

Half = npt.NDArray[np.float16]

ALL = np.arange(2**16, dtype=np.uint16).view(np.float16)
_FUNCTIONS = tuple(Op(Op.EXP + i) for i in range(len(FUNCTIONS)))


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


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """Four lanes, the default tables."""
    return make(tmp_path_factory.mktemp("vpu"), PRESETS["tiny"])


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """Three lanes, and every parameter away from its default."""
    array = {"rows": 3, "cols": 3, "cluster": 3}
    vector = {"segments": 16, "width": 24, "acc_width": 47, "acc_fraction": 25, "program": 20}
    return make(tmp_path_factory.mktemp("vpu_odd"), PRESETS["tiny"].replace(array | vector))


@pytest.fixture(params=["tiny", "odd"])
def bench(request: pytest.FixtureRequest) -> Bench:
    made: Bench = request.getfixturevalue(request.param)
    return made


@pytest.mark.parametrize("op", [Op.MOVE, *_FUNCTIONS], ids=lambda op: op.name.lower())
def test_functions_on_every_half(tiny: Bench, op: Op) -> None:
    programs = unary(op, len(ALL) // tiny.lanes)
    result = tiny.check(programs, ALL.reshape(-1, tiny.lanes))
    # Throughput as stated; the first words need a cycle each to arrive and to leave.
    assert result.cycles == sum(program_cycles(p, tiny.lanes) for p in programs) + 2


@pytest.mark.parametrize("op", _FUNCTIONS, ids=lambda op: op.name.lower())
def test_functions_with_other_tables(odd: Bench, op: Op) -> None:
    odd.check(
        unary(op, 2**16 // 7 // odd.lanes),
        ALL[: 7 * (2**16 // 7)][::7]
        .reshape(-1)[: 2**16 // 7 // odd.lanes * odd.lanes]
        .reshape(-1, odd.lanes),
    )


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


def vectors(rng: np.random.Generator, count: int, lanes: int) -> Half:
    """Ordinary values, and lanes of -inf, of equal values, of subnormals, with one huge value."""
    x = (rng.standard_normal((count, max(lanes, 4))) * 3).astype(np.float16)
    if rng.random() < 0.7:
        x[:, 0] = -np.inf
        x[:, 1] = 1
        x[:, 2] = np.arange(count) * 2.0**-24
        x[rng.integers(count), 3] = 65504
    return np.ascontiguousarray(rng.permuted(x, axis=1)[:, :lanes])


@pytest.mark.parametrize("wait", [0.0, 0.4])
def test_programs(bench: Bench, wait: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    lanes, count = bench.lanes, 30
    options: dict[str, Any] = {"idle": wait, "backpressure": wait, "seed": seed}
    x, scalars = vectors(rng, count, lanes), rng.standard_normal(2 * count).astype(np.float16)
    for program in (softmax(count), softmax(count, scale=0.125), softmax_row(count)):
        # Normalizing takes the exponentials, for which any vectors will do here.
        bench.check([*program, *normalize(count)], np.concatenate([x] * 3), **options)
    bench.check(layer_norm(count), np.concatenate([x] * 3), **options)
    thrice = np.concatenate([vectors(rng, count, lanes)] * 3)
    bench.check(layer_norm(count, modulate=True), thrice, scalars, **options)
    bench.check(modulate(count), x, scalars, **options)
    bench.check(residual(count), np.concatenate([x, x]), **options)
    bench.check(residual(count, gate=True), np.concatenate([x, x]), scalars[:count], **options)


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
        return Instruction(
            Op(int(rng.choice(len(Op), p=weights / weights.sum()))),
            int(rng.integers(4)),
            Source(int(rng.integers(7))),
            Source(int(rng.integers(7))),
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


@pytest.mark.parametrize("wait", [0.0, 0.2])
def test_random_programs(bench: Bench, wait: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    programs = random_programs(rng, 200, bench.cfg.vector.program)
    shape = (sum(p.words(Source.INPUT) for p in programs), bench.lanes)
    x = rng.integers(0, 2**16, shape, dtype=np.uint16).view(np.float16)
    x[::2] = rng.standard_normal(x[::2].shape).astype(np.float16)
    scalars = rng.standard_normal(sum(p.words(Source.SCALAR) for p in programs)).astype(np.float16)
    bench.check(programs, x, scalars, idle=wait, backpressure=wait, seed=seed)


@pytest.mark.parametrize("terms", [1, 3])
def test_accumulator_at_both_ends(bench: Bench, terms: int, seed: int) -> None:
    """Terms that end around the accumulator's last place, ties among them, and around its first."""
    rng = np.random.default_rng(seed)
    programs, inputs = [], []
    cfg = bench.cfg.vector
    top = cfg.acc_width - 1 - cfg.acc_fraction
    for power in (*range(-7 - cfg.acc_fraction, 2 - cfg.acc_fraction), top - 10, top - 9):
        # Integers of up to 11 bits times a power of two, brought back to where binary16 is.
        scale = Instruction(
            Op.MULTIPLY, 0, Source.INPUT, Source.CONSTANT, accumulate=True, constant=2.0**power
        )
        back = Instruction(
            Op.MULTIPLY, 1, Source.R1, Source.CONSTANT, emit=True, constant=2.0**-power / 8
        )
        for _ in range(20):
            programs += [Program((scale,), terms), Program((Instruction(Op.TAKE, 1), back))]
            values = rng.integers(-2048, 2049, (terms, bench.lanes))
            inputs.append(values >> rng.integers(0, 10))
    bench.check(programs, np.concatenate(inputs).astype(np.float16))


def test_reset_in_mid_run(tiny: Bench, seed: int) -> None:
    x = vectors(np.random.default_rng(seed), 20, tiny.lanes)
    tiny.check(softmax(20), np.concatenate([x, x]), resets=(57, 203))


#: A place in the Verilog (as a regular expression) and what stands there instead.
FAULTS = {
    "ties in the accumulator": (r"(assign round_up = \S+) +& \S+ ;", r"\1 ;"),
    "ties in the rounding stage": (r"(assign round_up = \S+ \[23\]) +& \S+ ;", r"\1 ;"),
    "denominator": (r"(assign minus_power = ).*;", r"\g<1>11'h0;"),
    "signs in the maximum": (r"(assign maximum_b = .*\? )(operand\[23\] : )", r"\1~\2"),
    "no wait for the output": (r"(assign ready = \S+) +& \S+ ;", r"\1 ;"),
}


@pytest.mark.full
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_caught(tiny: Bench, fault: str, tmp_path: Path, seed: int) -> None:
    text, count = re.subn(*FAULTS[fault], tiny.dut.sources[0].read_text(), count=1)
    assert count == 1
    path = tmp_path / "vpu.v"
    path.write_text(text)
    dut = dataclasses.replace(tiny.dut, sources=(path,))
    broken = dataclasses.replace(tiny, build=build_harness(dut), dut=dut)

    def exercise() -> None:
        test_accumulator_at_both_ends(broken, 1, seed)
        test_random_programs(broken, 0.0, seed)
        test_programs(broken, 0.4, seed)

    with pytest.raises((AssertionError, SimulationError)):
        exercise()


def test_latencies_are_those_of_the_golden_model() -> None:
    unit = VPU(PRESETS["paper"])
    expected = {"move": 2, "add": 3, "multiply": 3, "exp": 8, "gelu": 16, "sum": 9, "peak": 8}
    assert {name: unit.latencies[name] for name in expected} == expected
    assert all(
        unit.latencies[op.name.lower()] == body_cycles(Program((Instruction(op),)), 64) for op in Op
    )


def test_a_configuration_that_misses_its_bound_is_refused() -> None:
    with pytest.raises(ConfigError, match="silu must be within 1 unit in the last place"):
        VPU(PRESETS["tiny"].replace({"vector.width": 20}))
