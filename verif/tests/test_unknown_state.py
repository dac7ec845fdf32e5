"""From a power-up where nothing is known, through reset, to the same words (four-state Icarus)."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from dstar.gen.config import PRESETS, Config, load_config
from dstar.verif.four_state import play_from_unknown
from dstar.verif.generated import generate
from dstar.verif.packing import pack_commands, pack_slices, pack_weights
from dstar.verif.process import SimulationError
from dstar.verif.qpu.stimulus import QPUStimulus, stimulus
from dstar.verif.tests.mpu_tools import check_words, random_products
from dstar.verif.tests.qpu_tools import activations

pytestmark = pytest.mark.skipif(
    shutil.which("iverilog") is None, reason="Icarus Verilog is not installed"
)


def test_mpu(tmp_path: Path, seed: int) -> None:
    cfg = load_config(preset="tiny", overrides=("cols=6", "rows=2"))
    products = random_products(np.random.default_rng(seed), cfg, 12)
    words = play_from_unknown(
        generate("mpu", cfg, tmp_path),
        tmp_path,
        inputs={
            "slices": np.concatenate([pack_slices(p.tile, cfg) for p in products]),
            "weights": np.concatenate([pack_weights(p.weights, cfg) for p in products]),
            "command": pack_commands(np.ones(12, bool), np.ones(12, bool)),
        },
        expect={"output": len(products) * cfg.array.cols},
    )
    check_words(words["output"], cfg, [(p.tile, p.weights) for p in products])


def qpu_stimulus(cfg: Config, seed: int) -> QPUStimulus:
    """Some ragged tiles in all modes under changing tables."""
    return stimulus(activations(np.random.default_rng(seed), cfg, 6), cfg)


@pytest.mark.parametrize("reset", ["sync", "async_low"])
def test_qpu(reset: str, tmp_path: Path, seed: int) -> None:
    cfg = load_config(preset="tiny", overrides=(f"reset={reset}",))
    want = qpu_stimulus(cfg, seed)
    words = play_from_unknown(
        generate("qpu", cfg, tmp_path),
        tmp_path,
        inputs=want.inputs,
        expect={name: len(golden) for name, golden in want.outputs.items()},
    )
    for name, golden in want.outputs.items():
        np.testing.assert_array_equal(words[name], golden, name)


def test_register_without_reset_is_noticed(tmp_path: Path, seed: int) -> None:
    """A counter of the QPU that reset does not reach is unknown for good."""
    cfg = PRESETS["tiny"]
    dut = generate("qpu", cfg, tmp_path)
    text = dut.sources[0].read_text()
    assert "if (rst) begin" in text
    dut.sources[0].write_text(text.replace("if (rst) begin", "if (0) begin", 1))
    want = qpu_stimulus(cfg, seed)
    with pytest.raises(SimulationError, match="a handshake or flag is unknown"):
        play_from_unknown(
            dut,
            tmp_path,
            inputs=want.inputs,
            expect={name: len(golden) for name, golden in want.outputs.items()},
        )
