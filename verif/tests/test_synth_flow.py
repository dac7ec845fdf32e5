"""The flow from a unit to its report, mostly on a small made-up library."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from amaranth.sim import Simulator

from dstar.gen.config import Config, load_config
from dstar.synth.command import run_synth
from dstar.synth.errors import SynthError
from dstar.synth.flow import run_yosys, synthesize
from dstar.synth.known import PDKS
from dstar.synth.liberty import parse_liberty
from dstar.synth.pdk import CUSTOM, GENERIC, find_pdk
from dstar.synth.reference import BoothPE, Int8PE, Int8Tile
from dstar.synth.report import synth_unit
from dstar.synth.script import Plan
from dstar.synth.timing import abc_delays, sta_delay, sta_program
from dstar.verif.tests.synth_tools import LOGIC, flip_flop, installed, library, toy

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
    assert "$_DFF_PN" in str(error.value)


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


@pytest.mark.parametrize("pe", [Int8PE, BoothPE])
def test_reference_is_an_int8_systolic_tile(pe: type[Int8PE]) -> None:
    """Sums of products modulo the accumulator's width, captured and shifted out."""
    cfg = load_config(preset="tiny", overrides=("k_tile=4",))
    tile = Int8Tile(cfg, rows=2, pe=pe)
    # Four products whose sign bits are inverted instead of extended.
    bias = sum(1 << (8 + 2 * digit) for digit in range(4)) if pe is BoothPE else 0
    rng = random.Random(3)
    width, steps = cfg.numeric.acc_width, 9
    a = [[rng.randrange(-128, 128) for _ in range(2)] for _ in range(steps)]
    w = [[rng.randrange(-128, 128) for _ in range(2)] for _ in range(steps)]

    def pack(values: list[int], bits: int) -> int:
        return sum((v % (1 << bits)) << (bits * i) for i, v in enumerate(values))

    async def bench(ctx: Any) -> None:
        for step in range(steps):
            ctx.set(tile.activations_i, pack(a[step], 8))
            ctx.set(tile.weights_i, pack(w[step], 8))
            ctx.set(tile.keep_i, step > 0)
            await ctx.tick()
        ctx.set(tile.keep_i, 0)
        await ctx.tick()
        ctx.set(tile.keep_i, 1)
        ctx.set(tile.start, 1)
        await ctx.tick()
        ctx.set(tile.shift, 1)
        for col in (1, 0):
            got = ctx.get(tile.shadow_o)
            for row in range(2):
                exact = sum(a[s][row] * w[s][col] for s in range(steps)) + steps * bias
                assert got >> (width * row) & ((1 << width) - 1) == exact % (1 << width)
            await ctx.tick()

    simulator = Simulator(tile)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()


def _each(*fast: str) -> list[Any]:
    """Every library; the large ones only in the full suite."""
    return [pytest.param(n, marks=[] if n in fast else [pytest.mark.full]) for n in sorted(PDKS)]


@pytest.mark.parametrize("name", _each("sky130hd", "osu018"))
def test_every_library_maps_the_pe(name: str, tmp_path: Path) -> None:
    """Our PE is no larger than 1.1 and no slower than 1.05 INT8 PEs, in the tiny preset too."""
    installed(name)
    report = synth_unit("pe", load_config(preset="tiny"), pdk=name, folder=tmp_path)
    assert report["area_um2"] > 0
    assert report["timer"] == ("opensta" if sta_program() else "abc")
    assert report["reference"]["area_ratio"] <= 1.1
    assert report["reference"]["delay_ratio"] <= 1.05
    if name in ("sky130hd", "asap7"):
        assert report["excluded_cells"]
    assert not set(report["excluded_cells"]) & set(report["cell_mix"])


def test_sum_by_instances_equals_the_flat_result(tmp_path: Path) -> None:
    """A 4 x 4 array, both ways, within 3 %; memories are the same."""
    installed("sky130hd")
    cfg = load_config(preset="tiny")
    areas = {}
    for hierarchical in (True, False):
        folder = tmp_path / str(hierarchical)
        report = synth_unit(
            "mpu", cfg, pdk="sky130hd", folder=folder, reference=False, hierarchical=hierarchical
        )
        areas[hierarchical] = report["area_um2"], report["memory_area_um2"]
    assert areas[True][0] == pytest.approx(areas[False][0], rel=0.03)
    assert areas[True][1] == pytest.approx(areas[False][1])


@pytest.mark.parametrize("name", _each())
def test_every_library_maps_a_tiny_mpu(name: str, tmp_path: Path) -> None:
    """Area, delay and memories on each library that is there."""
    installed(name)
    report = synth_unit("mpu", load_config(preset="tiny"), pdk=name, folder=tmp_path)
    assert report["area_um2"] > report["sequential_area_um2"] > 0
    assert report["memory_area_um2"] > 0
    assert report["delay_ps"] > 0


@pytest.mark.full
@pytest.mark.parametrize("name", ["sky130hd", "asap7"])
def test_pe_figures_at_paper_size(name: str, tmp_path: Path) -> None:
    """The PE, averaged over its 4 x 4 block with operand registers, against INT8."""
    installed(name)
    report = synth_unit("pe", load_config(preset="paper"), pdk=name, folder=tmp_path)
    reference = report["reference"]
    assert reference["area_ratio"] <= 1.1
    assert reference["delay_ratio"] <= 1.05
    assert reference["throughput_per_area"] >= 2.2


def test_flip_flop_with_reset_is_recognized() -> None:
    """Set or reset pins of a flip-flop in the library."""
    text = "library (x) { " + flip_flop().replace("next_state", 'clear : "!R"; next_state') + "}"
    assert parse_liberty(text + "", Path("x.lib")).cells["DFF"].resets
    assert not parse_liberty("library (x) { " + LOGIC + "}", Path("x")).cells["INV"].resets
