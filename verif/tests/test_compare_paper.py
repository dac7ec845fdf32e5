"""The full 64x64 configuration on real layers of the shipped DiT."""

from __future__ import annotations

from pathlib import Path

from dstar.gen.config import PRESETS
from dstar.golden.capture import capture_builtin
from dstar.golden.dump import DumpReader
from dstar.golden.profile import dump_tables
from dstar.verif.compare import compare
from dstar.verif.compare.mpu import mpu_simulator


def test_real_layers_at_64x64(tmp_path: Path) -> None:
    """A block's projection and second MLP layer, a keyframe and three differential steps."""
    path = tmp_path / "dit.safetensors"
    capture_builtin(path, steps=4, layers="blocks.2.*")
    cfg = PRESETS["paper"]
    with DumpReader(path) as dump, mpu_simulator(cfg) as simulator:
        for layers in ("blocks.2.attn.proj", "blocks.2.mlp.fc2"):
            tables = dump_tables(dump, [layers], cfg)
            report = compare(dump, cfg, simulator, tables=tables, layers=layers)
            assert report.bit_exact
            assert report.total.tiles >= 32
