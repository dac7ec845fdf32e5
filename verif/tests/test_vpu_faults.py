# amaranth: UnusedElaboratable=no
"""A fault planted in each part of the VPU is caught by random programs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from dstar.golden.vpu.isa import Instruction, Op, Program, Source
from dstar.rtl.vpu.vpu import VPU
from dstar.verif.generated import generate_component
from dstar.verif.harness import build_harness
from dstar.verif.process import SimulationError
from dstar.verif.tests.fault_tools import Fault, plant, switch_on
from dstar.verif.tests.vpu_tools import TINY, Bench, accumulations, random_programs

FAULTS = {
    "operand for all lanes": Fault("vpu", "broadcast", "{right} ^ 1"),
    "sequencer: no wait": Fault("vpu.sequencer", "ready", "fetch"),
    "lane: subnormal inputs": Fault("vpu_lane", "vector_subnormal_empty1", "1'h0"),
    "lane: signs in the maximum": Fault("vpu_lane", "maximum_b", "less"),
    "lane: sticky bit of the sum": Fault("vpu_lane", "sum_right16", "{right} & ~1"),
    "lane: reductions": Fault("vpu_lane", "other", "operand_b"),
    "lane: rounding": Fault("vpu_lane", "round_up", "1'h0"),
    "lane: rounding to binary16": Fault("vpu_lane", "half_up", "1'h0"),
    "function: multiplier": Fault("vpu_function", "product", "{right} ^ (1 << 14)"),
    "function: alignment": Fault("vpu_function", "shifted", "{right} & ~1"),
    "accumulator: rounding": Fault("vpu_accumulator", "round_up", "1'h0"),
    "accumulator: overflow": Fault("vpu_accumulator", "over", "1'h0"),
}


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """One build that holds all faults."""
    dut = generate_component("vpu", VPU(TINY), TINY, tmp_path_factory.mktemp("vpu"))
    (source,) = dut.sources
    path = source.with_suffix(".sv")
    path.write_text(plant(source.read_text(), FAULTS))
    dut = dataclasses.replace(dut, sources=(path,))
    return Bench(build_harness(dut), dut, TINY)


def exercise(bench: Bench, seed: int, fault: str | None) -> None:
    """Random programs on random vectors, some waits, then sums; all bits compared."""
    rng = np.random.default_rng(seed)
    programs = random_programs(rng, 150, bench.cfg.vector.program)
    shape = (sum(p.words(Source.INPUT) for p in programs), bench.lanes)
    x = rng.integers(0, 2**16, shape, dtype=np.uint16).view(np.float16)
    x[::2] = rng.standard_normal(x[::2].shape).astype(np.float16)
    scalars = rng.standard_normal(sum(p.words(Source.SCALAR) for p in programs)).astype(np.float16)
    sums, terms = accumulations(rng, bench.cfg, terms=3)
    # The accumulator starts empty.
    programs = [*programs, Program((Instruction(Op.TAKE),)), *sums]
    stream = np.concatenate([x, terms])
    plusargs = switch_on(FAULTS, fault)
    bench.check(programs, stream, scalars, idle=0.2, backpressure=0.2, seed=seed, plusargs=plusargs)


def test_no_fault(broken: Bench, seed: int) -> None:
    exercise(broken, seed, None)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_caught(broken: Bench, fault: str, seed: int) -> None:
    with pytest.raises((AssertionError, SimulationError)):
        exercise(broken, seed, fault)
