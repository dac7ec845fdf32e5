"""The flow from a unit to its report, mostly on a small made-up library."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from dstar.gen.config import Config, load_config
from dstar.synth.command import run_synth
from dstar.synth.errors import SynthError
from dstar.synth.flow import run_yosys, synthesize
from dstar.synth.pdk import CUSTOM, GENERIC, find_pdk
from dstar.synth.report import synth_unit
from dstar.synth.script import Plan
from dstar.synth.timing import abc_delays, sta_delay, sta_program
from dstar.verif.tests.synth_tools import flip_flop, library, toy

pytest.importorskip("pyosys")

SMALL = ("lanes=1", "cluster=1", "k_tile=4")
KEYS = {
    "unit", "preset", "pdk", "area_um2", "sequential_area_um2", "memory_area_um2", "cells",
    "delay_ps", "timer", "excluded_cells",
}  # fmt: skip
COUNTER = "module t(input clk, rst, output reg [3:0] q);\n{}\nendmodule\n"


@pytest.fixture
def small() -> Config:
    """The smallest PE."""
    return load_config(preset="tiny", overrides=SMALL)


def test_report_on_a_small_library(tmp_path: Path, small: Config) -> None:
    """Every key of the contract; sums agree; the exact script lies beside the report."""
    report = synth_unit("pe", small, pdk=CUSTOM, liberty=toy(tmp_path), folder=tmp_path / "out")
    assert report.keys() >= KEYS
    assert report["reference"].keys() >= {"area_um2", "delay_ps", "area_ratio", "delay_ratio"}
    areas = {"INV": 2, "BUF": 3, "NAND2": 4, "NOR2": 4, "DFF": 20}
    mix = report["cell_mix"]
    assert report["area_um2"] == sum(areas[name] * count for name, count in mix.items())
    assert report["sequential_area_um2"] == 20 * mix["DFF"]
    # accumulator, shadow, operands, three control bits
    assert mix["DFF"] == 2 * small.numeric.acc_width + 2 + 8 + 3
    assert report["cells"] == sum(mix.values())
    assert report["delay_ps"] > 0
    assert report["logic_depth"] > 4
    folder = Path(report["folder"])
    assert json.loads((folder / "report.json").read_text()) == report
    script = (folder / "design" / "synth.ys").read_text()
    assert script.startswith("libcache -scl -disable\n")


def test_repeated_modules_are_synthesized_once(tmp_path: Path, small: Config) -> None:
    """Blocks of PEs, rows of blocks, memories: modules of the MPU, counted by instance."""
    report = synth_unit(
        "mpu", small, pdk=CUSTOM, liberty=toy(tmp_path), folder=tmp_path, reference=False
    )
    instances = {name: module["instances"] for name, module in report["modules"].items()}
    rows, cols = small.array.rows, small.array.cols
    assert instances.pop("mpu") == 1
    assert instances == {
        "pe_tile_1x1": rows * cols,
        "pe_tile_offset_1x1": cols,
        "pe_row_1": rows,
        "pe_row_offset": 1,
        "weight_column": cols,
        "slice_bank": instances["slice_bank"],
    }


def test_replaced_library_is_read_anew(tmp_path: Path, small: Config) -> None:
    """ABC's cache of parsed libraries, which went by time stamps, stays out of it."""
    files = toy(tmp_path)
    out = tmp_path / "out"
    first = synth_unit("pe", small, pdk=CUSTOM, liberty=files, folder=out, reference=False)
    library(files[1], flip_flop(area=40.0), "toy_seq")
    os.utime(files[1], (1, 1))
    second = synth_unit("pe", small, pdk=CUSTOM, liberty=files, folder=out, reference=False)
    assert second["sequential_area_um2"] == 2 * first["sequential_area_um2"]


def test_reset_that_the_library_lacks(tmp_path: Path) -> None:
    """An asynchronous reset needs a flip-flop that has one."""
    cfg = load_config(preset="tiny", overrides=(*SMALL, "clock.reset=async_low"))
    with pytest.raises(SynthError, match=r"logic\.lib, seq\.lib .* no flip-flop") as error:
        synth_unit("pe", cfg, pdk=CUSTOM, liberty=toy(tmp_path), folder=tmp_path, reference=False)
    assert "$_DFF_PP" in str(error.value)  # the reset is inverted once, at the top


def test_yosys_errors_are_one_message(tmp_path: Path) -> None:
    """Whatever stops the child process."""
    with pytest.raises(SynthError, match=r"synthesis failed: .*nowhere\.v"):
        run_yosys(tmp_path, "read_verilog nowhere.v\n")


def _run(tmp_path: Path, capsys: pytest.CaptureFixture[str], *args: Any, **kw: Any) -> str:
    """Standard error of a run that must fail."""
    assert run_synth(*args, folder=tmp_path / "out", **kw) == 2
    text = capsys.readouterr().err
    assert "Traceback" not in text
    return text


def test_command_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str], small: Config) -> None:
    """Exit code 2 and one message."""
    assert "unknown unit 'nix'; units are pe, pe_tile" in _run(tmp_path, capsys, "nix", small)
    assert "unknown PDK 'x'" in _run(tmp_path, capsys, "pe", small, pdk="x")
    broken = tmp_path / "broken.lib.gz"
    broken.write_bytes(b"\x1f\x8b nonsense")
    assert "broken.lib.gz is a corrupt gzip" in _run(
        tmp_path, capsys, "pe", small, liberty=[broken]
    )
    text = _run(tmp_path, capsys, "pe", small, pdk=GENERIC, json_file=tmp_path / "no" / "x.json")
    assert "no folder" in text


def test_command_prints_and_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], small: Config
) -> None:
    """The table, and the same report as JSON."""
    path = tmp_path / "report.json"
    files = toy(tmp_path)
    assert run_synth("pe", small, liberty=files, json_file=path, folder=tmp_path / "out") == 0
    output = capsys.readouterr().out
    for part in ("flip-flop share", "delay / INT8", "cell mix: NAND2", "pre-layout"):
        assert part in output
    assert json.loads(path.read_text())["pdk"] == CUSTOM


def test_without_a_library(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """NAND2 equivalents always work, memories are counted in bits."""
    cfg = load_config(preset="tiny", overrides=("k_tile=4",))
    assert run_synth("mpu", cfg, pdk=GENERIC, folder=tmp_path, json_file=tmp_path / "r") == 0
    report = json.loads((tmp_path / "r").read_text())
    assert report.keys() >= KEYS
    assert 5_000 < report["nand2_equivalents"] < 100_000
    assert report["memory_bits"] > 0
    assert "NAND2 equivalents" in capsys.readouterr().out


def test_abc_estimate_without_opensta(
    tmp_path: Path, small: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timer is always named."""
    monkeypatch.setattr("dstar.synth.flow.sta_program", lambda: None)
    report = synth_unit(
        "pe", small, pdk=CUSTOM, liberty=toy(tmp_path), folder=tmp_path, reference=False
    )
    assert report["timer"] == "abc"
    assert report["delay_ps"] > 0
    assert abc_delays("nothing here") == {}


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("Error: x.lib line 3, syntax error", "syntax error"),
        ("", "ended early with exit code 0"),
        ("Warning: cannot read file x.lib", "cannot read file"),
    ],
)
def test_opensta_is_judged_by_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, message: str
) -> None:
    """It ends with exit code 0 whatever happened."""
    program = tmp_path / "sta"
    program.write_text(f"#!/bin/sh\necho '{output}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(SynthError, match=message):
        sta_delay(
            tmp_path, module="t", netlist="t.v", libraries=["x.lib"], clock="clk",
            inputs=["a"], clock_ps=1000, time_ps=1000,
        )  # fmt: skip


@pytest.mark.skipif(sta_program() is None, reason="OpenSTA is not installed")
def test_period_is_clock_to_output_logic_and_setup(tmp_path: Path) -> None:
    """One inverter between two flip-flops; the period tried does not change the answer."""
    found = find_pdk(CUSTOM, liberty=toy(tmp_path))
    body = "always @(posedge clk) q <= {q[2:0], ~q[3]};"
    delays = [
        synthesize(COUNTER.format(body), Plan(top="t", clock_ps=ps), found, tmp_path / str(ps))
        for ps in (500, 5000)
    ]
    first, second = (result.timing.delay_ps for result in delays)
    assert first == pytest.approx(second, abs=1)
    assert 350 < first < 1200  # 0.2 ns, 0.05 ns and 0.1 ns at the least, more with slew and load
