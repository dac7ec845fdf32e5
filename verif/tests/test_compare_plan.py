"""The compare planner against a NumPy stand-in for the MPU, with and without planted faults."""

from __future__ import annotations

import io
import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from dstar.gen.config import PRESETS, ArrayConfig, Config, NumericConfig
from dstar.golden.bins import BinTable
from dstar.golden.dump import DumpError, DumpReader
from dstar.golden.linear import LayerTables
from dstar.verif.compare import (
    CompareError,
    CompareReport,
    Played,
    compare,
    parse_steps,
    plan,
    session,
)
from dstar.verif.compare.plan import Stimulus
from dstar.verif.compare.simulate import Poll
from dstar.verif.packing import Words
from dstar.verif.tests.dump_tools import save_random
from dstar.verif.tests.stand_in import StandIn

TINY = PRESETS["tiny"]
ODD = Config(
    preset="odd",
    array=ArrayConfig(rows=6, cols=10, lanes=2, cluster=2),
    numeric=NumericConfig(k_tile=5),
)
#: Layers of the test dump: tokens, in, out.  Ragged in every direction; one with a single token.
SHAPES = {"blocks.0.fc": (9, 21, 13), "blocks.0.adaln": (1, 8, 30), "blocks.1.fc": (8, 16, 4)}
STEPS = 5


@pytest.fixture(scope="module")
def dump_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five steps of three layers, one of them with a single token."""
    path = tmp_path_factory.mktemp("dump") / "toy.safetensors"
    return save_random(path, SHAPES, steps=STEPS)


def run(path: Path, simulator: StandIn, *, saturate: bool = False, **options: Any) -> CompareReport:
    tables = {name: LayerTables(delta=BinTable.paper(4)) for name in SHAPES}
    with DumpReader(path, saturate=saturate) as dump:
        for name in dump.linear_layers:  # as whoever chooses the tables does
            dump.x(name, 0)
        return compare(dump, simulator.cfg, simulator, tables=tables, **options)


def tiles_of(cfg: Config, name: str) -> int:
    return plan.tile_total(*SHAPES[name], cfg)


@pytest.mark.parametrize("cfg", [TINY, ODD, PRESETS["edge"]], ids=lambda cfg: cfg.preset)
@pytest.mark.parametrize("limit", [1, 2000])
def test_bit_exact(
    dump_path: Path, cfg: Config, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every tile product appears once, whatever the sizes of runs and windows."""
    monkeypatch.setattr(session, "MIN_RUN_CYCLES", limit)
    monkeypatch.setattr(session, "WINDOW_BYTES", limit)
    monkeypatch.setattr(plan, "SEGMENT_JOBS", 3)
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

    def corrupt(stimulus: Stimulus, words: Words) -> None:
        for i, job in enumerate(stimulus.jobs):
            columns = words[i * cfg.array.cols : (i + 1) * cfg.array.cols]
            columns[len(job.weights) :] ^= 0xFF
            if job.tokens == 1:
                columns[:, cfg.numeric.acc_width * 2 // 8] ^= 0xFF

    assert run(dump_path, StandIn(cfg, corrupt)).bit_exact


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


def test_counters_must_agree(dump_path: Path) -> None:
    class Miscounting(StandIn):
        def __call__(self, stimulus: Stimulus, poll: Poll) -> Played:
            played = super().__call__(stimulus, poll)
            return Played(**{**vars(played), "beats": played.beats + 1})

    with pytest.raises(CompareError, match="counters contradict the schedule over"):
        run(dump_path, Miscounting(TINY))


def test_refusals(dump_path: Path) -> None:
    with pytest.raises(DumpError, match=r"no linear layer matches 'x'; layers are blocks\.0\.fc"):
        run(dump_path, StandIn(TINY), layers="x")
    for steps in (range(0), range(2, 6), range(0, 4, 2), range(3, 2)):
        with pytest.raises(CompareError, match="steps must be A:B with 0 <= A < B <= 5"):
            run(dump_path, StandIn(TINY), steps=steps)
    with pytest.raises(CompareError, match="jobs must be at least 1, got 0"):
        run(dump_path, StandIn(TINY), jobs=0)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_error_ends_the_other_simulations(
    dump_path: Path, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "MIN_RUN_CYCLES", 100)
    ended = threading.Event()

    class Endless(StandIn):
        def __call__(self, stimulus: Stimulus, poll: Poll) -> Played:
            if stimulus.jobs[0].place.layer == 0:
                try:
                    while True:
                        poll(0)
                        time.sleep(0.01)
                finally:
                    ended.set()
            raise error

    before = threading.active_count()
    with pytest.raises(error):
        run(dump_path, Endless(TINY), jobs=2 * STEPS * tiles_of(TINY, "blocks.0.fc"))
    assert ended.is_set()
    assert threading.active_count() == before


def test_json_and_table(dump_path: Path, tmp_path: Path) -> None:
    def corrupt(stimulus: Stimulus, words: Words) -> None:
        words[0, 0] ^= 1

    report = run(dump_path, StandIn(TINY, corrupt), layers="blocks.1.*", jobs=1)
    report.write_json(tmp_path / "report.json")
    assert [p.name for p in tmp_path.iterdir()] == ["report.json"]
    data = json.loads((tmp_path / "report.json").read_text())
    keys = {"bit_exact", "tiles", "mismatches", "first_mismatch", "cycles", "issue_utilization",
            "array_utilization", "average_bits", "sqnr_db", "cycles_per_second"}  # fmt: skip
    assert keys | {"unit", "preset", "layers", "steps", "dump"} <= data.keys()
    assert keys | {"layer", "bin_table"} <= data["layers"][0].keys()
    assert (data["unit"], data["preset"], data["bit_exact"]) == ("mpu", "tiny", False)
    first = data["first_mismatch"]
    for path in (tmp_path, tmp_path / "none" / "report.json"):
        with pytest.raises(CompareError, match=f"^{path}: cannot write: "):
            report.write_json(path)
    assert [p.name for p in tmp_path.iterdir()] == ["report.json"]
    text = io.StringIO()
    report.print(Console(file=text, width=120))
    assert "NOT bit-exact: 1 wrong values; the first:" in text.getvalue()
    assert (
        "blocks.1.fc, step 0, token tile 0, k tile 0, column tile 0, row 0, column 0: "
        f"sum must be {first['expected']}, got {first['got']}"
    ) in text.getvalue()
    text = io.StringIO()
    run(dump_path, StandIn(TINY)).print(Console(file=text, width=80))
    assert "Bit-exact: " in text.getvalue()
    assert "blocks.0.adaln" in text.getvalue()


def test_clipped_inputs_are_counted(tmp_path: Path) -> None:
    path = save_random(tmp_path / "a", {"blocks.0.fc": (3, 4, 2)}, steps=1, peak=1e5)
    with pytest.raises(DumpError, match=r"blocks.0.fc/000/x: value at \[0, 3\] is beyond"):
        run(path, StandIn(TINY))
    report = run(path, StandIn(TINY), saturate=True)
    assert report.bit_exact
    assert report.as_dict()["clipped_inputs"] == 1


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


@pytest.mark.parametrize(
    ("text", "expected"), [("1:3", range(1, 3)), (":2", range(2)), ("3:", range(3, 5)), ("4", 4)]
)
def test_step_ranges(text: str, expected: range | int) -> None:
    wanted = range(expected, expected + 1) if isinstance(expected, int) else expected
    assert parse_steps(text, 5) == wanted


@pytest.mark.parametrize("text", ["", "a:b", "1:2:3", "-1:2", "3:3", "0:6", "5"])
def test_bad_step_ranges(text: str) -> None:
    with pytest.raises(
        CompareError, match=f"^steps must be A:B with 0 <= A < B <= 5, got '{text}'"
    ):
        parse_steps(text, 5)


def test_bias_beyond_binary16_names_the_layer(tmp_path: Path) -> None:
    path = save_random(tmp_path / "a", {"blocks.0.fc": (3, 4, 2)}, steps=1, bias=1e6)
    with pytest.raises(CompareError, match=r"a: blocks.0.fc: bias must be finite in binary16"):
        run(path, StandIn(TINY))
