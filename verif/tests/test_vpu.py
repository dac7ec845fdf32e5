# amaranth: UnusedElaboratable=no
"""The VPU in Verilog against its golden model, bit for bit: programs, accumulator, control."""

from __future__ import annotations

import numpy as np
import pytest

from dstar.gen.config import PRESETS, ConfigError
from dstar.golden.vpu.isa import Instruction, Op, Program, Source
from dstar.golden.vpu.programs import (
    layer_norm,
    modulate,
    normalize,
    residual,
    softmax,
    softmax_row,
)
from dstar.golden.vpu.steps import body_cycles, program_cycles
from dstar.rtl.vpu.vpu import VPU
from dstar.verif.tests.vpu_tools import (
    LONE,
    ODD,
    TINY,
    Bench,
    Half,
    accumulations,
    make,
    random_programs,
    vectors,
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return make(tmp_path_factory.mktemp("vpu"), TINY)


@pytest.fixture(scope="module", params=[TINY, ODD, LONE], ids=["tiny", "odd", "lone"])
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return make(tmp_path_factory.mktemp("vpu"), request.param)


@pytest.mark.parametrize("wait", [0.0, 0.4])
def test_programs(bench: Bench, wait: float, seed: int) -> None:
    """All programs one after the other; without waits they take the cycles that they state."""
    rng = np.random.default_rng(seed)
    count = 30
    programs: list[Program] = []
    inputs: list[Half] = []
    x = vectors(rng, count, bench.lanes)
    for one in (softmax(count), softmax(count, scale=0.125), softmax_row(count)):
        # Normalizing takes the exponentials, for which any vectors will do here.
        programs += [*one, *normalize(count)]
        inputs += [x] * 3
    programs += layer_norm(count)
    inputs += [x] * 3
    programs += layer_norm(count, modulate=True)
    inputs += [vectors(rng, count, bench.lanes)] * 3
    programs += [*modulate(count), *residual(count), *residual(count, gate=True)]
    inputs += [x] * 5
    scalars = rng.standard_normal(5 * count).astype(np.float16)
    stream = np.concatenate(inputs)
    result = bench.check(programs, stream, scalars, idle=wait, backpressure=wait, seed=seed)
    if not wait:
        # The first words need a cycle each to arrive and to leave.
        stated = sum(program_cycles(program, bench.lanes) for program in programs)
        assert result.cycles == stated + 2


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
    programs, x = accumulations(np.random.default_rng(seed), bench.cfg, terms=terms)
    bench.check(programs, x)


def test_reset_in_mid_run(tiny: Bench, seed: int) -> None:
    x = vectors(np.random.default_rng(seed), 20, tiny.lanes)
    tiny.check(softmax(20), np.concatenate([x, x]), resets=(57, 203))


def test_latencies_are_those_of_the_golden_model() -> None:
    unit = VPU(PRESETS["paper"])
    expected = {"move": 2, "add": 3, "multiply": 3, "exp": 8, "gelu": 16, "sum": 15, "peak": 8}
    assert {name: unit.latencies[name] for name in expected} == expected
    assert all(
        unit.latencies[op.name.lower()] == body_cycles(Program((Instruction(op),)), 64) for op in Op
    )


def test_a_configuration_that_misses_its_bound_is_refused() -> None:
    with pytest.raises(ConfigError, match="silu must be within 1 unit in the last place"):
        VPU(PRESETS["tiny"].replace({"vector.width": 20}))
