"""From a power-up where nothing is known, through reset, to the same sums (four-state Icarus)."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import dstar.verif
from dstar.gen.config import load_config
from dstar.verif.generated import generate
from dstar.verif.packing import Words, pack_commands, pack_slices, pack_weights
from dstar.verif.tests.mpu_tools import check_words, random_products


def write_hex(path: Path, words: Words, width: int) -> None:
    """One word of ``width`` bits a line, most significant digit first, for $readmemh."""
    numbers = (int.from_bytes(word.tobytes(), "little") for word in words)
    path.write_text("".join(f"{number:0{(width + 3) // 4}x}\n" for number in numbers))


def test_mpu_from_unknown_state(tmp_path: Path, seed: int) -> None:
    icarus = shutil.which("iverilog") or pytest.skip("Icarus Verilog is not installed")
    cfg = load_config(preset="tiny", overrides=("cols=6", "rows=2"))
    dut = generate("mpu", cfg, tmp_path)
    products = random_products(np.random.default_rng(seed), cfg, 12)
    streams = {
        "slices": np.concatenate([pack_slices(p.tile, cfg) for p in products]),
        "weights": np.concatenate([pack_weights(p.weights, cfg) for p in products]),
        "command": pack_commands(np.ones(12, bool), np.ones(12, bool)),
    }
    width = {stream.name: stream.width for stream in dut.streams}
    for name, words in streams.items():
        write_hex(tmp_path / f"{name}.hex", words, width[name])
    parameters = {
        "SLICES": len(streams["slices"]),
        "WEIGHTS": len(streams["weights"]),
        "COMMANDS": len(products),
        "OUTPUTS": len(products) * cfg.array.cols,
        "SLICES_WIDTH": width["slices"],
        "WEIGHTS_WIDTH": width["weights"],
        "OUTPUT_WIDTH": width["output"],
    }
    bench = Path(dstar.verif.__path__[0]) / "sv" / "unknown_state.v"
    options = [f"-Punknown_state.{name}={value}" for name, value in parameters.items()]
    command = [icarus, "-g2005", *options, "-o", "a.out", str(bench), *map(str, dut.sources)]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=120)
    result = subprocess.run(
        ["vvp", "-n", "a.out"],
        cwd=tmp_path,
        check=True,
        timeout=300,
        capture_output=True,
        text=True,
    )
    assert result.stdout == ""
    lines = (tmp_path / "output.hex").read_text().split()
    assert len(lines) == parameters["OUTPUTS"]
    size = (width["output"] + 7) // 8
    # int() refuses an x in any digit.
    received = [np.frombuffer(int(line, 16).to_bytes(size, "little"), np.uint8) for line in lines]
    check_words(np.stack(received), cfg, [(p.tile, p.weights) for p in products])
