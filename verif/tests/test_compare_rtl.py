"""Whole comparisons against the generated matrix unit in Verilator."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dstar.gen.config import PRESETS, Config
from dstar.golden.dump import DumpReader
from dstar.verif.compare import CompareError, CompareReport, compare
from dstar.verif.compare.mpu import (
    K_TILES,
    MPUSimulator,
    generate_observed,
    k_tiles_of,
    mpu_simulator,
)
from dstar.verif.player import build_harness
from dstar.verif.tests.compare_cases import ODD, SHAPES, tables_of
from dstar.verif.tests.dump_tools import save_random

TINY = PRESETS["tiny"]


def run(path: Path, simulator: MPUSimulator, **options: Any) -> CompareReport:
    tables = tables_of(simulator.cfg)
    with DumpReader(path) as dump:
        return compare(dump, simulator.cfg, simulator, tables=tables, **options)


@pytest.mark.parametrize("cfg", [TINY, ODD], ids=lambda cfg: cfg.preset)
def test_bit_exact(tmp_path: Path, cfg: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sum, output and cycle counter, over several simulator runs, two at a time."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("dstar.verif.compare.session.MIN_RUN_CYCLES", 1500)
    path = save_random(tmp_path / "a", SHAPES, steps=3)
    with mpu_simulator(cfg) as simulator:
        report = run(path, simulator)
    assert report.bit_exact
    assert report.total.cycles > report.total.beats
    assert list((tmp_path / "temporary").iterdir()) == []


def run_broken(tmp_path: Path, right: str, wrong: str) -> CompareReport:
    """Compare a unit in whose Verilog one place stands differently."""
    dut = generate_observed(TINY, tmp_path / "verilog")
    (source,) = dut.sources
    assert source.read_text().count(right) == 1
    source.write_text(source.read_text().replace(right, wrong))
    path = save_random(tmp_path / "a", SHAPES, steps=2)
    return run(path, MPUSimulator(TINY, build_harness(dut), dut, tmp_path), layers="*.fc")


def test_fault_in_the_array_is_found(tmp_path: Path) -> None:
    """Lane 1's copy of the weights has a wrong bit in the first column of each cluster."""
    right = "copy_1[write_address] <= write_data;"
    report = run_broken(tmp_path, right, right.replace(";", " ^ 1;"))
    assert not report.bit_exact
    assert report.total.first is not None
    # Physical columns 0 and 2 hold the output channels 3 and 1.
    assert report.total.first.column == 1
    assert report.total.first.place.layer == 0
    assert report.total.first.what == "sum"
    assert report.layers[1].mismatches > 0


def test_fault_in_the_output_path_is_found(tmp_path: Path) -> None:
    """The scaled sum is cut instead of rounded: outputs are wrong while all sums are right."""
    report = run_broken(tmp_path, "assign scaled_up = ", "assign scaled_up = 1'h0 & ")
    assert not report.bit_exact
    first = report.as_dict()["first_mismatch"]
    assert (first["layer"], first["step"], first["what"]) == ("blocks.0.fc", 0, "y")
    # The last of two k tiles.
    assert first["tile"]["k_tile"] == 1
    assert first["expected"] - first["got"] == 1


def test_more_k_tiles_than_the_unit_takes(tmp_path: Path) -> None:
    path = save_random(tmp_path / "a", {"blocks.0.fc": (4, 70, 4)}, steps=1)
    with mpu_simulator(TINY) as made:
        small = MPUSimulator(TINY, made.build, made.dut, tmp_path, k_tiles=2)
        with pytest.raises(CompareError, match="k tiles must be at most 2, got 5"):
            run(path, small)
    with DumpReader(path) as dump:
        assert k_tiles_of(dump, "*", TINY) == K_TILES
        assert k_tiles_of(dump, "*", TINY.replace({"k_tile": 1})) == 128


# A shell's background jobs ignore the interrupt, and so would their children.
SCRIPT = """
import signal
import sys
from pathlib import Path
from dstar.golden.bins import BinTable
from dstar.golden.dump import DumpReader
from dstar.golden.linear import LayerTables
from dstar.gen.config import PRESETS
from dstar.verif.compare import compare
from dstar.verif.compare.mpu import mpu_simulator

signal.signal(signal.SIGINT, signal.default_int_handler)
with DumpReader(sys.argv[1]) as dump, mpu_simulator(PRESETS["tiny"]) as simulator:
    tables = {name: LayerTables(delta=BinTable.paper(4)) for name in dump.layers}
    print("running", flush=True)
    compare(dump, PRESETS["tiny"], simulator, tables=tables)
"""


def test_interrupt_leaves_nothing(tmp_path: Path) -> None:
    """Ctrl-C ends the simulators and removes every file."""
    path = save_random(tmp_path / "a", {"fc": (256, 128, 128)}, steps=2)
    (temporary := tmp_path / "temporary").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(path)],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    deadline = time.monotonic() + 60
    while not (logs := list(temporary.glob("*/run-*/output.out"))):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in errors
    assert list(temporary.iterdir()) == []
    assert not _running(str(logs[0].parent))


def _running(text: str) -> list[int]:
    """Processes with `text` in their arguments."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if text.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found
