# amaranth: UnusedElaboratable=no
"""DMA engines and fetch against a memory on AXI4: data, rules of the bus, errors, stops."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from amaranth.hdl import Value

import dstar.gen
import dstar.verif
from dstar.gen.config import PRESETS
from dstar.gen.library import VerilogLibrary
from dstar.rtl.mpc.bursts import BurstSplitter
from dstar.rtl.mpc.bus import BusShape
from dstar.rtl.mpc.dma_read import BurstReader
from dstar.rtl.mpc.fetch import Fetch
from dstar.rtl.mpc.read_mux import ReadMux
from dstar.verif.benches.memory_top import MemoryTop
from dstar.verif.cache import cache_folder
from dstar.verif.runner import build, run
from dstar.verif.verilate import usable_verilator

TESTS = (
    "random_transfers",
    "full_speed",
    "errors",
    "stop_and_restart",
    "reset_in_mid_transfer",
)

#: Buses: a beat a word, and more beats a word; instructions of four beats, two, and half a beat.
BUSES: dict[str, dict[str, int]] = {
    "equal": {"data_bits": 64, "word_bits": 64, "max_beats": 16, "outstanding": 4},
    "narrower": {"data_bits": 128, "word_bits": 512, "max_beats": 8, "outstanding": 3},
    "wide": {"data_bits": 512, "word_bits": 1024, "max_beats": 4, "outstanding": 2},
}
COMMON = {"address_bits": 40, "buffer_bits": 6}
BANKS = {"banks": 4, "bank_words": 16}


def simulate(bus: dict[str, int], folder: Path, seed: int, tests: tuple[str, ...]) -> None:
    settings = {**COMMON, **bus}
    top = MemoryTop(BusShape(**settings), **BANKS)
    path = folder / "memory_top.v"
    path.write_text(VerilogLibrary(PRESETS["tiny"]).emit("memory_top", top))
    run(
        build([path], "memory_top"),
        "dstar.verif.benches.dma_bench",
        testcase=tests,
        env={"DSTAR_BUS": json.dumps(settings)},
        seed=seed,
    )


@pytest.mark.parametrize("bus", ["equal", "wide", pytest.param("narrower", marks=pytest.mark.full)])
def test_dma(bus: str, tmp_path: Path, seed: int) -> None:
    simulate(BUSES[bus], tmp_path, seed, TESTS)


@pytest.mark.parametrize("preset", PRESETS)
def test_lint(preset: str, tmp_path: Path) -> None:
    """At each preset's sizes: no warning of Verilator, so no loop and nothing without a driver."""
    cfg = PRESETS[preset]
    top = MemoryTop(BusShape.of(cfg), banks=cfg.core.banks, bank_words=cfg.core.bank_words)
    path = tmp_path / "memory_top.v"
    path.write_text(VerilogLibrary(cfg).emit("memory_top", top))
    verilator = usable_verilator(cache_folder())
    waivers = Path(dstar.gen.__path__[0]) / "lint.vlt"
    command = [str(verilator.executable), "--lint-only", "-Wall", "--top-module", "memory_top"]
    result = subprocess.run(
        [*command, str(waivers), str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, **verilator.environment},
    )
    assert "%" not in result.stdout + result.stderr
    assert result.returncode == 0


def test_from_unknown_state(tmp_path: Path) -> None:
    """Reset alone makes it work (four-state Icarus): no control signal is ever unknown."""
    icarus = shutil.which("iverilog") or pytest.skip("Icarus Verilog is not installed")
    shape = BusShape(**{**COMMON, **BUSES["equal"]})
    source = tmp_path / "memory_top.v"
    source.write_text(VerilogLibrary(PRESETS["tiny"]).emit("memory_top", MemoryTop(shape, **BANKS)))
    job = {"address": 64, "stride": 0, "buffer": 15, "step": 0, "length": 2, "rows": 1}
    word: Any = Value.cast(shape.transfer.const(job))
    size = shape.transfer.size
    parameters = {"TRANSFER": size}
    parameters |= dict.fromkeys(("LOAD", "STORE"), f"{size}'d{word.value}")
    options = [f"-Punknown_memory.{name}={value}" for name, value in parameters.items()]
    bench = Path(dstar.verif.__path__[0]) / "sv" / "unknown_memory.v"
    command = [icarus, "-g2005", *options, "-o", "a.out", str(bench), str(source)]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=120)
    result = subprocess.run(
        ["vvp", "-n", "a.out"],
        cwd=tmp_path,
        check=True,
        timeout=120,
        capture_output=True,
        text=True,
    )
    words = [line for line in result.stdout.splitlines() if "finish" not in line]
    assert words == [f"{5 << 2 | left:016x}" for left in (2, 1)]


SHAPE = BusShape(address_bits=32, data_bits=64, word_bits=128, buffer_bits=4, max_beats=8)


@pytest.mark.parametrize(
    ("create", "message"),
    [
        (
            lambda: BusShape(data_bits=512, word_bits=256),
            r"word_bits must be a multiple of data_bits \(512\), got 256",
        ),
        (lambda: BusShape(outstanding=0), "outstanding must be at least 1, got 0"),
        (
            lambda: BurstReader(SHAPE, receiver_beats=4),
            r"receiver_beats must be 0 or at least max_beats \(8\), got 4",
        ),
        (
            lambda: Fetch(SHAPE, instruction_bits=96, ahead_beats=8),
            r"instruction_bits must be a divisor or a multiple of data_bits \(64\), got 96",
        ),
        (lambda: ReadMux(SHAPE, clients=3), "clients must be from 1 to 2, got 3"),
        (
            lambda: BurstSplitter(
                address_bits=32, buffer_bits=4, data_bits=48, word_beats=1, max_beats=4
            ),
            "data_bits must be a power of two from 8 to 1024, got 48",
        ),
    ],
)
def test_refuses(create: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        create()
