"""The PE against its golden model, cycle by cycle, and a fault in it."""

from __future__ import annotations

import re
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


#: A place in the Verilog (as a regular expression) and what stands there instead.
FAULTS = {
    "a lane's selection": (r"(assign lane2_minus_two = ).*;", r"\g<1>1'h0;"),
    "no doubling": (r"(assign base = \S+) .*;", r"\1 ;"),
    "doubling twice": (r"\{ acc\[19:0\], 1'h0 \}", "{ acc[18:0], 2'h0 }"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_caught(fault: str, tmp_path: Path, seed: int) -> None:
    text, count = re.subn(*FAULTS[fault], verilog("", tmp_path))
    assert count == 1
    with pytest.raises(SimulationError, match="simulating"):
        simulate(text, "", seed)


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
