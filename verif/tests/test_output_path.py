# amaranth: UnusedElaboratable=no
"""The MPU's output path in Verilog against its golden model."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from dstar.gen.config import Config
from dstar.rtl.output.path import OutputPath
from dstar.verif.generated import generate_component
from dstar.verif.harness import Dut, build_harness
from dstar.verif.tests.fault_tools import Fault, plant, switch_on
from dstar.verif.tests.output_tools import (
    ODD,
    TINY,
    hidden_saturation,
    layer_steps,
    random_layer,
    run,
    streams,
    ties,
)
from dstar.verif.tests.rtl_bench import build_bench
from dstar.verif.verilate import Build


@pytest.fixture(scope="module", params=[TINY, ODD], ids=["tiny", "odd"])
def bench(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Build, Dut, Config, OutputPath]:
    cfg = request.param
    unit = OutputPath(cfg, columns=5 * cfg.array.cols, k_tiles=8)
    return *build_bench("output_path", unit, tmp_path_factory.mktemp("output"), cfg), cfg, unit


@pytest.mark.parametrize("wait", [0.0, 0.4])
@pytest.mark.parametrize("tiles_inside", [False, True])
def test_rtl_equals_golden(
    bench: tuple[Build, Dut, Config, OutputPath], tiles_inside: bool, wait: float, seed: int
) -> None:
    build, dut, cfg, unit = bench
    steps = []
    for i, size in enumerate((1.0, 1.0, 2.0**-10, 200.0)):
        channels = cfg.numeric.k_tile * (1 + 3 * (i % 2)) - 2
        steps += layer_steps(cfg, seed + i, out=5 * cfg.array.cols, channels=channels, size=size)
    assert any(not tile.any() for step in steps for tile in step.sums)
    words, expected = streams(steps, cfg, unit.columns, tiles_inside=tiles_inside)
    got, result = run(build, dut, cfg, words, len(expected), seed, wait)
    np.testing.assert_array_equal(got.view(np.uint16), expected.view(np.uint16))
    assert result.probes["saturated"] == any(step.saturated for step in steps)
    if not wait:
        # One column a cycle, and the first after the pipeline's latency.
        assert result.cycles == len(words["sums"]) + unit.latency + 1


def test_rtl_saturates(bench: tuple[Build, Dut, Config, OutputPath], seed: int) -> None:
    build, dut, cfg, unit = bench
    steps = layer_steps(cfg, seed, out=cfg.array.cols, channels=4 * cfg.numeric.k_tile, size=3e4)
    assert any(step.saturated for step in steps)
    words, expected = streams(steps, cfg, unit.columns, tiles_inside=False)
    got, result = run(build, dut, cfg, words, len(expected), seed)
    np.testing.assert_array_equal(got.view(np.uint16), expected.view(np.uint16))
    assert result.probes["saturated"] == 1


def test_rtl_equals_golden_on_any_sums(
    bench: tuple[Build, Dut, Config, OutputPath], seed: int
) -> None:
    build, dut, cfg, unit = bench
    rng = np.random.default_rng(seed)
    size = cfg.numeric.acc_width
    steps = [random_layer(cfg, rng, out=5 * cfg.array.cols, size=size) for _ in range(60)]
    words, expected = streams(steps, cfg, unit.columns, tiles_inside=True)
    got, _ = run(build, dut, cfg, words, len(expected), seed, 0.2)
    np.testing.assert_array_equal(got.view(np.uint16), expected.view(np.uint16))


@pytest.mark.parametrize("hidden", [False, True])
def test_saturation_that_the_addend_hides(
    bench: tuple[Build, Dut, Config, OutputPath], hidden: bool, seed: int
) -> None:
    build, dut, cfg, unit = bench
    step = hidden_saturation(cfg, hidden=hidden)
    assert step.saturated == hidden
    words, expected = streams([step], cfg, unit.columns, tiles_inside=False)
    got, result = run(build, dut, cfg, words, len(expected), seed)
    np.testing.assert_array_equal(got, expected)
    assert result.probes["saturated"] == hidden


_LANE = f"output_lane_{OutputPath(TINY, k_tiles=8).width}"
FAULTS = {
    "ties": Fault(_LANE, "scaled_up", "scaled_spread[14]"),
    "alignment of k tiles": Fault(_LANE, "total", "{right} ^ 1"),
    "saturation unnoticed": Fault(_LANE, "over", "1'h0"),
    "hidden saturation": Fault(_LANE, "over", "saturated_over"),
}


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Build, Dut, OutputPath]:
    """One build that holds all faults."""
    unit = OutputPath(TINY, columns=5 * TINY.array.cols, k_tiles=8)
    dut = generate_component("output_path", unit, TINY, tmp_path_factory.mktemp("output"))
    (source,) = dut.sources
    path = source.with_suffix(".sv")
    path.write_text(plant(source.read_text(), FAULTS))
    dut = dataclasses.replace(dut, sources=(path,))
    return build_harness(dut), dut, unit


def exercise(bench: tuple[Build, Dut, OutputPath], seed: int, fault: str | None) -> None:
    """Any sums and ties, then a sum that saturates before the addend brings it back."""
    build, dut, unit = bench
    rng = np.random.default_rng(seed)
    plusargs = switch_on(FAULTS, fault)
    width, out = TINY.numeric.acc_width, 5 * TINY.array.cols
    steps = [random_layer(TINY, rng, out=out, size=width) for _ in range(20)]
    steps.append(ties(TINY))
    for number, size in enumerate((1.0, 2.0**-10, 200.0)):
        channels = 4 * TINY.numeric.k_tile - 2
        steps += layer_steps(TINY, seed + number, out=out, channels=channels, size=size)
    calm = [step for step in steps if not step.saturated]
    for part, flag in ((calm, False), ([hidden_saturation(TINY, hidden=True)], True)):
        words, expected = streams(part, TINY, unit.columns, tiles_inside=False)
        got, result = run(build, dut, TINY, words, len(expected), seed, 0.2, plusargs)
        np.testing.assert_array_equal(got.view(np.uint16), expected.view(np.uint16))
        assert result.probes["saturated"] == flag


def test_no_fault(broken: tuple[Build, Dut, OutputPath], seed: int) -> None:
    exercise(broken, seed, None)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_caught(broken: tuple[Build, Dut, OutputPath], fault: str, seed: int) -> None:
    with pytest.raises(AssertionError):
        exercise(broken, seed, fault)


def test_parameters_are_checked() -> None:
    with pytest.raises(ValueError, match="columns must be at least 4, got 3"):
        OutputPath(TINY, columns=3)
    with pytest.raises(ValueError, match="k_tiles must be at least 1, got 0"):
        OutputPath(TINY, k_tiles=0)
