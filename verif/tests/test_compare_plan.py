"""The compare planner against a NumPy stand-in for the matrix unit, with and without faults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dstar.gen.config import PRESETS, ArrayConfig, Config, NumericConfig
from dstar.verif.compare import plan, segments, session
from dstar.verif.compare.plan import Stimulus
from dstar.verif.packing import Words
from dstar.verif.tests.compare_tools import SHAPES, STEPS, TINY, run, tiles_of
from dstar.verif.tests.dump_tools import save_random
from dstar.verif.tests.stand_in import StandIn

ODD = Config(
    preset="odd",
    array=ArrayConfig(rows=6, cols=10, lanes=2, cluster=2),
    numeric=NumericConfig(k_tile=5),
)


@pytest.fixture(scope="module")
def dump_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five steps of three layers, one of them with a single token."""
    path = tmp_path_factory.mktemp("dump") / "toy.safetensors"
    return save_random(path, SHAPES, steps=STEPS)


@pytest.mark.parametrize("cfg", [TINY, ODD, PRESETS["edge"]], ids=lambda cfg: cfg.preset)
@pytest.mark.parametrize("limit", [1, 2000])
def test_bit_exact(
    dump_path: Path, cfg: Config, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every tile product appears once, whatever the sizes of runs and windows."""
    monkeypatch.setattr(session, "MIN_RUN_CYCLES", limit)
    monkeypatch.setattr(session, "WINDOW_BYTES", limit)
    monkeypatch.setattr(segments, "SEGMENT_TILES", 3)
    seen: list[tuple[int, int]] = []
    simulator = StandIn(cfg)
    report = run(dump_path, simulator, progress=lambda *p: seen.append(p))
    assert report.bit_exact
    assert report.names == tuple(SHAPES)
    total = STEPS * sum(tiles_of(cfg, name) for name in SHAPES)
    assert report.total.tiles == total == seen[-1][0] == seen[-1][1]
    assert [f.tiles for f in report.layers] == [STEPS * tiles_of(cfg, name) for name in SHAPES]
    places = [job.place for part in simulator.runs for job in part.jobs]
    assert len(set(places)) == len(places) == total
    assert report.total.cycles == 4 * total * cfg.array.cols
    assert report.total.seconds == pytest.approx(0.5 * len(simulator.runs))


def test_figures(dump_path: Path) -> None:
    report = run(dump_path, StandIn(TINY))
    for figures in (*report.layers, report.total):
        assert 0.3 < figures.issue_utilization < 1  # type: ignore[operator]
        assert figures.array_utilization < figures.issue_utilization  # type: ignore[operator]
        assert 2 < figures.average_bits < 8  # type: ignore[operator]
        assert 15 < figures.sqnr_db < 60  # type: ignore[operator]
    lanes = report.total.slices / (TINY.array.lanes * report.total.beats)
    assert report.total.issue_utilization == lanes


def test_operands_stay_loaded(dump_path: Path) -> None:
    """Weight tiles are loaded once a window, or the single activation tile once."""
    simulator = StandIn(TINY)
    run(dump_path, simulator, layers="*.fc")
    loads = sum(len(part.weights) for part in simulator.runs)
    # 2 k tiles x 4 column tiles and 1 x 1, for all steps and token tiles.
    assert loads == 2 * 4 + 1
    simulator = StandIn(TINY)
    run(dump_path, simulator, layers="*.adaln", steps=range(2, 3))
    assert sum(len(part.slices) for part in simulator.runs) == 1
    assert sum(len(part.weights) for part in simulator.runs) == 8


def test_steps_keep_their_history(dump_path: Path) -> None:
    whole, part = StandIn(TINY), StandIn(TINY)
    run(dump_path, whole, layers="blocks.1.fc")
    report = run(dump_path, part, layers="blocks.1.fc", steps=range(3, 5))
    assert report.total.tiles == 2 * tiles_of(TINY, "blocks.1.fc")

    def codes(simulator: StandIn) -> dict[Any, Any]:
        jobs = [job for stimulus in simulator.runs for job in stimulus.jobs]
        return {job.place: job.tile.codes for job in jobs}

    expected, got = codes(whole), codes(part)
    assert {place.step for place in got} == {3, 4}
    for place, value in got.items():
        np.testing.assert_array_equal(value, expected[place])


@pytest.mark.parametrize("place", [(0, 3, 2, 1, 2), (1, 4, 0, 0, 7), (2, 0, 1, 0, 0)])
def test_planted_fault_is_found(dump_path: Path, place: tuple[int, ...]) -> None:
    """One flipped bit of one sum is reported with its layer, step, tile, row and column."""
    cfg, target = TINY, plan.Place(*place)
    row, column, bit = 0, 1 if place[0] else 0, 3

    def corrupt(stimulus: Stimulus, words: Words) -> None:
        for i, job in enumerate(stimulus.jobs):
            if job.place == target:
                at = row * cfg.numeric.acc_width + bit
                words[i * cfg.array.cols + column, at // 8] ^= np.uint8(1 << at % 8)

    report = run(dump_path, StandIn(cfg, corrupt))
    assert not report.bit_exact
    assert report.total.mismatches == 1
    assert [f.mismatches for f in report.layers] == [int(i == place[0]) for i in range(3)]
    first = report.as_dict()["first_mismatch"]
    assert first["expected"] ^ first["got"] == 1 << bit or first["expected"] - first["got"] in (
        8,
        -8,
    )
    assert first | {"expected": 0, "got": 0} == {
        "layer": list(SHAPES)[place[0]],
        "step": place[1],
        "tile": dict(zip(("token_tile", "k_tile", "col_tile"), place[2:], strict=True)),
        "row": row,
        "column": column,
        "what": "sum",
        "expected": 0,
        "got": 0,
    }


@pytest.mark.parametrize("place", [(0, 3, 2, 1, 2), (1, 4, 0, 0, 7), (2, 0, 1, 0, 0)])
def test_planted_fault_in_an_output_is_found(dump_path: Path, place: tuple[int, ...]) -> None:
    """One flipped bit of one binary16 output, of a job that ends its k tiles."""
    target = plan.Place(*place)

    def corrupt(stimulus: Stimulus, words: Words) -> None:
        tiles = [job.place for job in stimulus.jobs if job.y is not None]
        if target in tiles:
            words.view(np.uint16)[tiles.index(target) * TINY.array.cols + 1, 0] ^= 1

    report = run(dump_path, StandIn(TINY, corrupt_outputs=corrupt))
    assert report.total.mismatches == 1
    first = report.total.first
    assert first is not None
    assert (first.place, first.column, first.row, first.what) == (target, 1, 0, "y")
    assert first.expected ^ first.got == 1


def test_first_of_many_faults(dump_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With everything wrong, the first mismatch is the first in the order of the dump."""
    monkeypatch.setattr(session, "MIN_RUN_CYCLES", 100)

    def corrupt(stimulus: Stimulus, words: Words) -> None:
        words[:] ^= 0xFF

    report = run(dump_path, StandIn(TINY, corrupt))
    assert report.total.first is not None
    assert report.total.first.place == plan.Place(0, 0, 0, 0, 0)
    assert (report.total.first.row, report.total.first.column) == (0, 0)
    values = sum(t * o for t, _, o in SHAPES.values())
    assert report.total.mismatches > values * STEPS


def test_padding_is_not_compared(dump_path: Path) -> None:
    """Garbage in padding rows and columns is nobody's business."""
    cfg = TINY

    def corrupt_outputs(stimulus: Stimulus, words: Words) -> None:
        ends = [job for job in stimulus.jobs if job.y is not None]
        for i, job in enumerate(ends):
            columns = words.view(np.uint16)[i * cfg.array.cols : (i + 1) * cfg.array.cols]
            columns[len(job.weights) :] ^= 0xFFFF
            columns[:, job.tokens :] ^= 0xFFFF

    def corrupt(stimulus: Stimulus, words: Words) -> None:
        for i, job in enumerate(stimulus.jobs):
            columns = words[i * cfg.array.cols : (i + 1) * cfg.array.cols]
            columns[len(job.weights) :] ^= 0xFF
            if job.tokens == 1:
                columns[:, cfg.numeric.acc_width * 2 // 8] ^= 0xFF

    assert run(dump_path, StandIn(cfg, corrupt, corrupt_outputs)).bit_exact


@pytest.mark.parametrize("what", ["exponent", "last"])
def test_exponent_and_last_are_compared(dump_path: Path, what: str) -> None:
    cfg = TINY
    at = cfg.numeric.acc_width * cfg.array.rows + (6 if what == "last" else 0)

    def corrupt(stimulus: Stimulus, words: Words) -> None:
        words[0, at // 8] ^= np.uint8(1 << at % 8)

    report = run(dump_path, StandIn(cfg, corrupt), layers="blocks.1.fc", jobs=1)
    assert report.total.mismatches == 1
    assert report.total.first is not None
    assert report.total.first.what == what


@pytest.mark.parametrize("tokens", [1, 63, 64, 65])
def test_any_number_of_tokens(tmp_path: Path, tokens: int) -> None:
    """Token counts around the 64 rows of the paper's array."""
    path = save_random(tmp_path / "a", {"blocks.0.fc": (tokens, 130, 66)}, steps=3)
    report = run(path, StandIn(PRESETS["paper"]))
    assert report.bit_exact
    assert report.total.tiles == 3 * (1 + (tokens > 64)) * 2 * 2


def test_weights_that_vanish(tmp_path: Path) -> None:
    """An all-zero weight row and one of 1e-6, which has no float16 scale: exact, not zeroed."""
    path = save_random(
        tmp_path / "a",
        {"blocks.0.fc": (4, 64, 2)},
        steps=2,
        rows={0: 0.0, 1: 1e-6},
        dtype="float16",
    )
    simulator = StandIn(TINY)
    report = run(path, simulator)
    assert report.bit_exact
    weights = np.concatenate([job.weights[1] for part in simulator.runs for job in part.jobs])
    assert np.all(weights == weights[0])
    assert weights[0] >= 126
