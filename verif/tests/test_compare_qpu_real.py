"""QPU, and QPU with MPU, on real layers of the shipped DiT."""

from __future__ import annotations

from pathlib import Path

import pytest

from dstar.gen.config import PRESETS
from dstar.golden.capture import capture_builtin
from dstar.golden.dump import DumpReader
from dstar.golden.profile import dump_tables
from dstar.verif.compare import CompareReport
from dstar.verif.compare.qpu import compare_qpu, qpu_simulator


def real(folder: Path, preset: str, unit: str, *, layers: str, steps: int) -> CompareReport:
    """Capture some layers and compare them."""
    path = folder / "dit.safetensors"
    capture_builtin(path, steps=steps, layers=layers)
    cfg = PRESETS[preset]
    with DumpReader(path) as dump, qpu_simulator(cfg, unit) as simulator:
        tables = dump_tables(dump, dump.match(layers), cfg)
        return compare_qpu(dump, cfg, simulator, tables=tables, layers=layers)


def test_a_projection(tmp_path: Path) -> None:
    """A keyframe and three differential steps: 64 token tiles with 8 k tiles each."""
    report = real(tmp_path, "tiny", "qpu", layers="blocks.2.attn.proj", steps=4)
    assert report.bit_exact
    assert report.total.tiles == 4 * 64 * 8


@pytest.mark.full
def test_every_layer_and_step_at_64x64(tmp_path: Path) -> None:
    """From binary16 activations to sums, 28 steps of every linear layer, at ``paper``."""
    report = real(tmp_path, "paper", "qpu+mpu", layers="*", steps=28)
    assert report.bit_exact
    assert len(report.names) == 20
    assert report.total.tiles == 12096
