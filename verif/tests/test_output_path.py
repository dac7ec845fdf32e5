# amaranth: UnusedElaboratable=no
"""The MPU's output path: golden against the layer model, RTL against golden."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from dstar.gen.config import PRESETS, Config
from dstar.golden.bins import BinTable
from dstar.golden.linear import FMDQLinear, LayerTables
from dstar.golden.output import output, total_sums
from dstar.rtl.output.path import OutputPath
from dstar.verif.harness import Dut, build_harness
from dstar.verif.output_words import channel_words, command_words, sums_words, vector_words
from dstar.verif.player import PlayResult, play
from dstar.verif.tests.rtl_bench import build_bench
from dstar.verif.verilate import Build

Half = npt.NDArray[np.float16]
TINY = PRESETS["tiny"]
ODD = TINY.replace({"rows": 6, "cols": 6, "cluster": 2, "k_tile": 5, "exponent_span": 4})


@dataclass
class Layer:
    """One token tile of a layer at one step, as the output path sees it."""

    sums: npt.NDArray[np.int64]
    exponents: npt.NDArray[np.int8]
    finest: int
    scale: npt.NDArray[np.float32]
    bias: Half
    before: Half | None
    y: Half
    saturated: bool

    @property
    def addend(self) -> Half:
        """What the reverse differential adds."""
        return self.bias if self.before is None else self.before


def layer_steps(
    cfg: Config, seed: int, *, out: int, channels: int, steps: int = 4, size: float = 1.0
) -> list[Layer]:
    """A random layer over some steps, from the layer model."""
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal((out, channels)) * np.exp2(np.linspace(-14, 2, out))[:, None]
    bias = rng.standard_normal(out)
    table = BinTable.paper(4, span=cfg.numeric.exponent_span)
    layer = FMDQLinear(weight, bias, tables=LayerTables(delta=table), cfg=cfg)
    x = rng.standard_normal((cfg.array.rows, channels)) * size
    result, before = [], None
    for _ in range(steps):
        step = layer.step(x)
        tiles = step.tiles[0]
        sums = np.array([step.acc(0, k) for k in range(len(tiles))])
        result.append(
            Layer(
                sums,
                np.array([tile.last_exponent for tile in tiles], np.int8),
                step.table.finest,
                layer.weight.scale,
                bias.astype(np.float16),
                before,
                step.y,
                step.saturated,
            )
        )
        before = step.y
        # Every other step nothing changes but a few channels: some tiles are empty.
        change = rng.standard_normal(x.shape) * size * np.exp2(rng.integers(-9, 0, channels))
        change[:, cfg.numeric.k_tile :] *= len(result) % 2
        x = x + change
    return result


@pytest.mark.parametrize("cfg", [PRESETS["paper"], TINY, ODD], ids=["paper", "tiny", "odd"])
def test_golden_equals_layer_model(cfg: Config, seed: int) -> None:
    for step in layer_steps(cfg, seed, out=70, channels=3 * cfg.numeric.k_tile - 1):
        y, saturated = output(
            step.sums, step.exponents, finest=step.finest, scale=step.scale, addend=step.addend
        )
        np.testing.assert_array_equal(y.view(np.uint16), step.y.view(np.uint16))
        assert saturated == step.saturated


def test_golden_saturates_and_says_so(seed: int) -> None:
    steps = layer_steps(TINY, seed, out=4, channels=64, size=3e4)
    results = [
        output(s.sums, s.exponents, finest=s.finest, scale=s.scale, addend=s.addend) for s in steps
    ]
    assert any(saturated for _, saturated in results)
    assert all(np.isfinite(y).all() for y, _ in results)
    for step, (y, _) in zip(steps, results, strict=True):
        np.testing.assert_array_equal(y, step.y)


def test_exponent_beyond_finest_is_refused() -> None:
    with pytest.raises(ValueError, match=r"exponents must be at most 3 \(finest\), got 4"):
        total_sums(np.ones((1, 1, 1), np.int64), np.array([4], np.int8), 3)


def streams(
    steps: list[Layer], cfg: Config, columns: int, *, tiles_inside: bool
) -> tuple[dict[str, npt.NDArray[np.uint8]], Half]:
    """Stream words and the expected output (columns, rows), column tile by column tile.

    ``tiles_inside``: all column tiles of a k tile before the next k tile.
    """
    cols = cfg.array.cols
    commands, sums, exponents, channels, before, expected = [], [], [], [], [], []
    for step in steps:
        k_tiles, out = len(step.sums), step.sums.shape[2]
        tiles = range(out // cols)
        order = [(k, t) for t in tiles for k in range(k_tiles)]
        for k, tile in sorted(order) if tiles_inside else order:
            last, keyframe = k + 1 == k_tiles, step.before is None
            part = slice(tile * cols, (tile + 1) * cols)
            base = tile * cols if tiles_inside else 0
            commands.append([k == 0, last, keyframe, step.finest, base])
            sums.append(step.sums[k][:, part].T)
            exponents += [step.exponents[k]] * cols
            if last:
                channels.append(channel_words(step.scale[part], step.bias[part]))
                expected.append(step.y[:, part].T)
                if step.before is not None:
                    before.append(step.before[:, part].T)
    words = {
        "command": command_words(commands, columns),
        "sums": sums_words(np.concatenate(sums), np.array(exponents), cfg),
        "channel": np.concatenate(channels),
        "before": vector_words(np.concatenate(before)),
    }
    return words, np.concatenate(expected)


def run(
    build: Build,
    dut: Dut,
    cfg: Config,
    words: dict[str, npt.NDArray[np.uint8]],
    count: int,
    seed: int,
    wait: float = 0.0,
) -> tuple[Half, PlayResult]:
    """Play the streams; the output as (columns, rows)."""
    result = play(
        build,
        dut,
        inputs=words,
        expect={"output": count},
        idle=wait,
        backpressure=wait,
        seed=seed,
        stamps=True,
    )
    return np.ascontiguousarray(result.outputs["output"]).view(np.float16), result


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


def random_layer(cfg: Config, rng: np.random.Generator, *, out: int, size: int) -> Layer:
    """Any sums, exponents, scales and addends that the path must take; y from the golden path."""
    rows, gaps = cfg.array.rows, cfg.numeric.max_shift
    finest = int(rng.integers(-6, 25))
    gap = rng.integers(0, gaps + 1, 8)
    gap[rng.random(8) < 0.5] = 0
    bound = (cfg.numeric.acc_bound >> gap)[:, None, None]
    sums = rng.integers(-bound, bound + 1, (8, rows, out)) >> rng.integers(0, size, (8, 1, out))
    scale = np.ldexp(rng.integers(128, 256, out), rng.integers(-36, 4, out) + finest // 2)
    before = rng.integers(-0x7BFF, 0x7C00, (rows, out))
    addend = np.where(before < 0, 0x8000 - before, before).astype(np.uint16).view(np.float16)
    y, saturated = output(
        sums,
        (finest - gap).astype(np.int8),
        finest=finest,
        scale=scale.astype(np.float32),
        addend=addend,
    )
    exponents = (finest - gap).astype(np.int8)
    bias = np.zeros(out, np.float16)
    return Layer(sums, exponents, finest, scale.astype(np.float32), bias, addend, y, saturated)


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
    rows, cols = cfg.array.rows, cfg.array.cols
    sums = np.full((1, rows, cols), 65536 if hidden else 65504)
    addend = np.full((rows, cols), -65504, np.float16)
    exponents, scale = np.zeros(1, np.int8), np.ones(cols, np.float32)
    y, saturated = output(sums, exponents, finest=0, scale=scale, addend=addend)
    assert saturated == hidden
    bias = np.zeros(cols, np.float16)
    step = Layer(sums, exponents, 0, scale, bias, addend, y, saturated)
    words, expected = streams([step], cfg, unit.columns, tiles_inside=False)
    got, result = run(build, dut, cfg, words, len(expected), seed)
    np.testing.assert_array_equal(got, expected)
    assert result.probes["saturated"] == hidden


#: A place in the Verilog (as a regular expression) and what stands there instead.
FAULTS = {
    "ties": (r"(assign scaled_up = \S+) +& \S+ ;", r"\1 ;"),
    "saturation unnoticed": (r"(assign over = )saturated_over \| kept_over;", r"\g<1>1'h0;"),
    "hidden saturation": (r"(assign over = saturated_over) \| kept_over;", r"\1;"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_caught(fault: str, tmp_path: Path, seed: int) -> None:
    unit = OutputPath(TINY, columns=5 * TINY.array.cols, k_tiles=8)
    _, dut = build_bench("output_path", unit, tmp_path)
    path = dut.sources[0]
    text, count = re.subn(*FAULTS[fault], path.read_text(), count=1)
    assert count == 1
    path.write_text(text)
    broken = (build_harness(dut), dut, TINY, unit)

    def exercise() -> None:
        test_rtl_equals_golden(broken, False, 0.0, seed)
        test_rtl_saturates(broken, seed)
        test_rtl_equals_golden_on_any_sums(broken, seed)
        test_saturation_that_the_addend_hides(broken, True, seed)

    with pytest.raises(AssertionError):
        exercise()


def test_parameters_are_checked() -> None:
    with pytest.raises(ValueError, match="columns must be at least 4, got 3"):
        OutputPath(TINY, columns=3)
    with pytest.raises(ValueError, match="k_tiles must be at least 1, got 0"):
        OutputPath(TINY, k_tiles=0)
