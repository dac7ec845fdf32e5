"""Whole comparisons against the generated QPU, alone and with an MPU behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dstar.gen.config import PRESETS, Config
from dstar.golden.dump import DumpReader
from dstar.verif.compare import CompareError, CompareReport
from dstar.verif.compare.qpu import QPUSimulator, compare_qpu, qpu_simulator
from dstar.verif.generated import generate
from dstar.verif.harness import build_harness
from dstar.verif.tests.compare_cases import ODD, SHAPES, tables_of
from dstar.verif.tests.dump_tools import save_random

TINY = PRESETS["tiny"]


def run(path: Path, simulator: QPUSimulator, **options: Any) -> CompareReport:
    tables = tables_of(simulator.cfg)
    with DumpReader(path) as dump:
        return compare_qpu(dump, simulator.cfg, simulator, tables=tables, **options)


@pytest.mark.parametrize(
    ("cfg", "unit"),
    [(TINY, "qpu"), (TINY, "qpu+mpu"), (ODD, "qpu+mpu")],
    ids=["tiny-qpu", "tiny-qpu+mpu", "odd-qpu+mpu"],
)
def test_bit_exact(tmp_path: Path, cfg: Config, unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From binary16 activations to codes, references and sums, over several simulator runs."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("dstar.verif.compare.qpu.RUN_CYCLES", 500)
    path = save_random(tmp_path / "a", SHAPES, steps=3)
    calls: list[tuple[int, int]] = []
    with qpu_simulator(cfg, unit) as simulator:
        report = run(path, simulator, progress=lambda *done: calls.append(done))
    assert report.bit_exact
    assert report.unit == unit
    assert calls[-1] == (report.total.tiles, report.total.tiles)
    assert 2 < (report.total.average_bits or 0) < 8
    assert list((tmp_path / "temporary").iterdir()) == []


def test_fault_in_the_rtl_is_found(tmp_path: Path) -> None:
    """A lane's copy of the codes has a wrong bit: slices are wrong, references are right."""
    dut = generate("qpu", TINY, tmp_path / "verilog")
    source = tmp_path / "verilog" / "qpu.v"
    text = source.read_text()
    head, module, rest = text.partition("module store_32x")
    right = "[write_address] <= write_data;"
    assert rest.count(right) >= 1
    source.write_text(head + module + rest.replace(right, right.replace(";", " ^ 1;"), 1))
    path = save_random(tmp_path / "a", SHAPES, steps=2)
    simulator = QPUSimulator(TINY, "qpu", build_harness(dut), dut, tmp_path)
    report = run(path, simulator, layers="*.fc")
    assert not report.bit_exact
    first = report.total.first
    assert first is not None
    assert (first.what, first.row) == ("code", 0)
    assert first.place.layer == 0


def test_refuses_unit() -> None:
    with (
        pytest.raises(CompareError, match=r"unit must be one of qpu, qpu\+mpu, got 'vpu'"),
        qpu_simulator(TINY, "vpu"),
    ):
        pass
