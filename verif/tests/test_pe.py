"""The PE against its golden model, cycle by cycle, and a fault in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dstar.gen.config import load_config
from dstar.gen.emit import emit
from dstar.golden.pe import PE
from dstar.verif.process import SimulationError
from dstar.verif.runner import build, run

CONFIGS = ["", "lanes=1", "lanes=2 weight_bits=5 k_tile=9", "lanes=8 exponent_span=6"]


def simulate(text: str, overrides: str, seed: int) -> None:
    """Run the bench on the Verilog ``text``."""
    simulator = build([("pe.v", text)], "pe")
    run(simulator, "dstar.verif.benches.pe_bench", env={"DSTAR_CONFIG": overrides}, seed=seed)


def verilog(overrides: str, folder: Path) -> str:
    cfg = load_config(preset="tiny", overrides=tuple(overrides.split()))
    emit("pe", cfg, folder)
    return (folder / "pe.v").read_text()


@pytest.mark.parametrize("overrides", CONFIGS)
def test_every_cycle(overrides: str, tmp_path: Path, seed: int) -> None:
    simulate(verilog(overrides, tmp_path), overrides, seed)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("lane2_two = digits[5] &", "lane2_two = digits[5] |"),
        ("base = \\$1  | \\$2 ;", "base = \\$1 ;"),
        ("{ acc[19:0], 1'h0 }", "{ acc[18:0], 2'h0 }"),
    ],
    ids=["a lane's selection", "no doubling", "doubling twice"],
)
def test_a_fault_is_caught(right: str, wrong: str, tmp_path: Path, seed: int) -> None:
    text = verilog("", tmp_path)
    assert text.count(right) == 1
    with pytest.raises(SimulationError):
        simulate(text.replace(right, wrong), "", seed)


def test_golden_counts_bias_and_wraps() -> None:
    """The model itself, by hand: bias of 4 lanes x 2**8, doubling, capture, modulo."""
    pe = PE(cfg=load_config(preset="tiny"))
    pe.step([1, -2, 0, 0], [100, 100, 7, 7], keep=False, double=False)
    assert pe.acc == 1024 - 100
    pe.step([0, 0, 0, 0], [0, 0, 0, 0], keep=False, double=True)
    assert pe.acc == 2 * (1024 - 100) + 1024
    pe.step([0, 0, 0, 0], [0, 0, 0, 0], keep=False, double=False)
    assert (pe.shadow, pe.acc) == (2 * (1024 - 100) + 1024, 1024)
    pe.acc = 2**pe.cfg.numeric.acc_width - 1024
    pe.step([0, 0, 0, 0], [0, 0, 0, 0], keep=True, double=False)
    assert pe.acc == 0
