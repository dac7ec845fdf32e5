"""Verilog emission: one module each, lint, other tools, manifest, reset styles, idempotence."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

import dstar.gen
from dstar.gen.config import ConfigError, load_config
from dstar.gen.emit import UNITS, emit
from dstar.gen.library import VerilogLibrary
from dstar.verif.cache import cache_folder
from dstar.verif.verilate import usable_verilator

ODD = ("rows=6", "cols=10", "lanes=2", "k_tile=10")
#: A core's words are a power of two of beats.
ODD_CORE = ("rows=8", "cols=12", "lanes=2", "k_tile=10", "columns=36", "banks=7")
CONFIGS = [("tiny", ()), ("tiny", ODD), ("tiny", ("cluster=1", "reset=async_low")), ("edge", ())]


def generate(unit: str, preset: str, overrides: tuple[str, ...], folder: Path) -> Path:
    if unit == "mpc" and overrides == ODD:
        overrides = ODD_CORE
    emit(unit, load_config(preset=preset, overrides=overrides), folder)
    return folder / f"{unit}.v"


def run(*command: object, env: dict[str, str] | None = None) -> str:
    result = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **(env or {})},
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout + result.stderr


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(("preset", "overrides"), CONFIGS, ids=str)
def test_verilator_lints_it(
    unit: str, preset: str, overrides: tuple[str, ...], tmp_path: Path
) -> None:
    """Not one warning, but for the waivers that gen/lint.vlt justifies."""
    verilog = generate(unit, preset, overrides, tmp_path)
    verilator = usable_verilator(cache_folder())
    waivers = Path(dstar.gen.__path__[0]) / "lint.vlt"
    command = [verilator.executable, "--lint-only", "-Wall", "--top-module", unit]
    assert "%" not in run(*command, waivers, verilog, env=verilator.environment)


class _Loop(wiring.Component):
    """A sum that needs itself."""

    def __init__(self) -> None:
        super().__init__({"a": In(4), "b": Out(4)})

    def elaborate(self, platform: Any) -> Module:
        """Through an operator, and back."""
        m = Module()
        m.d.comb += self.b.eq((self.b + self.a) ^ self.a)
        return m


def test_lint_finds_loops(tmp_path: Path) -> None:
    """Which Amaranth's own search, left out, would find in one module only."""
    (tmp_path / "loop.v").write_text(VerilogLibrary(load_config()).emit("loop", _Loop()))
    verilator = usable_verilator(cache_folder())
    result = subprocess.run(
        [verilator.executable, "--lint-only", "-Wall", tmp_path / "loop.v"],
        capture_output=True,
        text=True,
        env={**os.environ, **verilator.environment},
        check=False,
    )
    assert "Circular combinational logic" in result.stderr


def test_fields_have_no_wires_of_their_own(tmp_path: Path) -> None:
    text = generate("mpu", "tiny", (), tmp_path).read_text()
    assert "weights__payload" in text
    assert "weights__payload." not in text


@pytest.mark.parametrize("unit", UNITS)
def test_icarus_takes_it(unit: str, tmp_path: Path) -> None:
    icarus = shutil.which("iverilog") or pytest.skip("Icarus Verilog is not installed")
    verilog = generate(unit, "tiny", (), tmp_path)
    output = run(icarus, "-g2005", "-Wall", "-s", unit, "-o", tmp_path / "a.out", verilog)
    assert [line for line in output.splitlines() if "timescale" not in line] == []


@pytest.mark.parametrize("unit", UNITS)
def test_yosys_takes_it(unit: str, tmp_path: Path) -> None:
    """Yosys elaborates it, and finds no undriven, looped or doubly driven net."""
    pytest.importorskip("pyosys")
    verilog = generate(unit, "tiny", ODD, tmp_path)
    script = (
        "import sys; from pyosys import libyosys as ys; design = ys.Design()\n"
        "for command in sys.argv[1:]: ys.run_pass(command, design)"
    )
    passes = [f"read_verilog {verilog}", f"hierarchy -check -top {unit}", "proc", "check -assert"]
    assert "Found and reported 0 problems" in run(sys.executable, "-c", script, *passes)


def test_each_module_once(tmp_path: Path) -> None:
    """More rows and columns make no more modules, and hardly more text."""
    texts = []
    for size in (8, 32):
        overrides = (f"rows={size}", f"cols={size}")
        texts.append(generate("mpu", "tiny", overrides, tmp_path / str(size)).read_text())
    names = [re.findall(r"^module (\S+?)\s*\(", text, re.MULTILINE) for text in texts]
    assert len(set(names[0])) == len(names[0])
    assert names[0] == names[1]
    assert len(texts[1]) < 4 * len(texts[0])


def test_nothing_depends_on_initial_values(tmp_path: Path) -> None:
    """No initial value of a register, no initial contents of a memory (synthesis ignores them)."""
    text = generate("mpu", "edge", (), tmp_path).read_text()
    assert "$meminit" not in text
    assert "init =" not in text
    initialised = [
        line
        for line in re.findall(r"^ *(?:initial|reg .*=).*$", text, re.MULTILINE)
        if "verilog_backend" not in line
    ]
    assert initialised == []


def test_manifest(tmp_path: Path) -> None:
    cfg = load_config(preset="tiny", overrides=("reset=async_low",))
    emit("mpu", cfg, tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["config_hash"] == cfg.hash
    assert manifest["config"] == cfg.as_dict()
    assert manifest["derived"]["acc_width"] == cfg.numeric.acc_width
    assert manifest["reset"] == {"name": "rst_n", "active": "low", "synchronous": False}
    assert [stream["name"] for stream in manifest["streams"]] == [
        "slices", "weights", "command", "output",
    ]  # fmt: skip
    ports = {port["name"]: port for port in manifest["ports"]}
    output = ports["output__payload"]
    assert output["direction"] == "output"
    assert output["fields"]["sums"]["length"] == cfg.array.rows
    assert output["fields"]["sums"]["element"] == {"width": cfg.numeric.acc_width, "signed": True}
    text = (tmp_path / "mpu.v").read_text()
    assert cfg.hash in text.splitlines()[0]
    for name, port in ports.items():
        width = f"[{port['width'] - 1}:0] " if port["width"] > 1 else ""
        assert f"{port['direction']} {width}{name}" in text
    assert (tmp_path / "mpu.f").read_text().split() == ["mpu.v"]


def test_same_input_same_files(tmp_path: Path) -> None:
    """Emitting again writes the same bytes, and does not touch the files."""
    cfg = load_config(preset="tiny")
    emit("mpu", cfg, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    emit("mpu", cfg, tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before
    assert len(before) == 3


def test_unknown_unit(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown unit 'npu'; units are pe, pe_tile, mpu"):
        emit("npu", load_config(preset="tiny"), tmp_path / "new")
    assert not (tmp_path / "new").exists()
