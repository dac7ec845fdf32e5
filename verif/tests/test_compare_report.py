"""What a comparison refuses, how it ends early, and what it reports."""

from __future__ import annotations

import io
import json
import threading
import time
from pathlib import Path

import pytest
from rich.console import Console

from dstar.golden.dump import DumpError
from dstar.verif.compare import CompareError, Played, parse_steps, session
from dstar.verif.compare.plan import Stimulus
from dstar.verif.compare.simulate import Poll
from dstar.verif.packing import Words
from dstar.verif.tests.compare_tools import SHAPES, STEPS, TINY, run, tiles_of
from dstar.verif.tests.dump_tools import save_random
from dstar.verif.tests.stand_in import StandIn


@pytest.fixture(scope="module")
def dump_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five steps of three layers, one of them with a single token."""
    path = tmp_path_factory.mktemp("dump") / "toy.safetensors"
    return save_random(path, SHAPES, steps=STEPS)


def test_refusals(dump_path: Path) -> None:
    with pytest.raises(DumpError, match=r"no linear layer matches 'x'; layers are blocks\.0\.fc"):
        run(dump_path, StandIn(TINY), layers="x")
    for steps in (range(0), range(2, 6), range(0, 4, 2), range(3, 2)):
        with pytest.raises(CompareError, match="steps must be A:B with 0 <= A < B <= 5"):
            run(dump_path, StandIn(TINY), steps=steps)
    with pytest.raises(CompareError, match="jobs must be at least 1, got 0"):
        run(dump_path, StandIn(TINY), jobs=0)


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


def test_counters_must_agree(dump_path: Path) -> None:
    class Miscounting(StandIn):
        def __call__(self, stimulus: Stimulus, poll: Poll) -> Played:
            played = super().__call__(stimulus, poll)
            return Played(**{**vars(played), "beats": played.beats + 1})

    with pytest.raises(CompareError, match="counters contradict the schedule over"):
        run(dump_path, Miscounting(TINY))


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
