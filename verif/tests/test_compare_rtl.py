"""Whole comparisons against the generated MPU in Verilator."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dstar.gen.config import PRESETS, ArrayConfig, Config, NumericConfig
from dstar.golden.bins import BinTable
from dstar.golden.dump import DumpReader
from dstar.golden.linear import LayerTables
from dstar.verif.compare import CompareReport, compare
from dstar.verif.compare.mpu import MPUSimulator, mpu_simulator
from dstar.verif.generated import generate
from dstar.verif.player import build_harness
from dstar.verif.tests.dump_tools import save_random

TINY = PRESETS["tiny"]
ODD = Config(
    preset="odd",
    array=ArrayConfig(rows=6, cols=9, lanes=2, cluster=3),
    numeric=NumericConfig(weight_bits=5, k_tile=11, exponent_span=1),
)
SHAPES = {"blocks.0.fc": (9, 21, 13), "blocks.0.adaln": (1, 8, 30), "blocks.1.fc": (8, 16, 4)}


def run(path: Path, simulator: MPUSimulator, **options: Any) -> CompareReport:
    span = simulator.cfg.numeric.exponent_span
    tables = {name: LayerTables(delta=BinTable.paper(4, span=span)) for name in SHAPES}
    with DumpReader(path) as dump:
        return compare(dump, simulator.cfg, simulator, tables=tables, **options)


@pytest.mark.parametrize("cfg", [TINY, ODD], ids=lambda cfg: cfg.preset)
def test_bit_exact(tmp_path: Path, cfg: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sum, exponent and cycle counter, over several simulator runs, two at a time."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("dstar.verif.compare.session.MIN_RUN_CYCLES", 1500)
    path = save_random(tmp_path / "a", SHAPES, steps=3)
    with mpu_simulator(cfg) as simulator:
        report = run(path, simulator)
    assert report.bit_exact
    assert report.total.cycles > report.total.beats
    assert list((tmp_path / "temporary").iterdir()) == []


def test_fault_in_the_rtl_is_found(tmp_path: Path) -> None:
    """Lane 1's copy of the weights has a wrong bit in the first column of each cluster."""
    dut = generate("mpu", TINY, tmp_path / "verilog")
    source = tmp_path / "verilog" / "mpu.v"
    right = "copy_1[write_address] <= write_data;"
    assert source.read_text().count(right) == 1
    source.write_text(source.read_text().replace(right, right.replace(";", " ^ 1;")))
    path = save_random(tmp_path / "a", SHAPES, steps=2)
    report = run(path, MPUSimulator(TINY, build_harness(dut), dut, tmp_path), layers="*.fc")
    assert not report.bit_exact
    assert report.total.first is not None
    # Physical columns 0 and 2 hold the output channels 3 and 1.
    assert report.total.first.column == 1
    assert report.total.first.place.layer == 0
    assert report.total.first.what == "sum"
    assert report.layers[1].mismatches > 0


SCRIPT = """
import sys
from pathlib import Path
from dstar.golden.bins import BinTable
from dstar.golden.dump import DumpReader
from dstar.golden.linear import LayerTables
from dstar.gen.config import PRESETS
from dstar.verif.compare import compare
from dstar.verif.compare.mpu import mpu_simulator

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
