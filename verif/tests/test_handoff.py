"""Hand-off files: what is in them, and that the tools they are for accept them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dstar.gen.config import ConfigError, load_config
from dstar.gen.emit import emit
from dstar.gen.handoff import (
    LIBRELANE,
    fusesoc_core,
    handoff_files,
    sdc,
    write_handoff,
)


def _manifest(folder: Path, unit: str = "pe", *overrides: str) -> dict[str, Any]:
    return emit(unit, load_config(preset="tiny", overrides=overrides), folder)


def test_sdc_names_every_input_once(tmp_path: Path) -> None:
    """Clock, inputs, outputs and the synchronous reset."""
    manifest = _manifest(tmp_path)
    text = sdc(manifest, period_ns=4)
    assert "create_clock -name clk -period 4 [get_ports clk]" in text
    inputs = [p["name"] for p in manifest["ports"] if p["direction"] == "input"]
    line = next(line for line in text.splitlines() if "{" in line)
    assert line.split("{")[1].split("}")[0].split() == inputs
    assert "set_input_delay 0.8 -clock clk [get_ports rst]" in text
    assert "set_output_delay 0.8 -clock clk [all_outputs]" in text


def test_asynchronous_reset_is_a_false_path(tmp_path: Path) -> None:
    """It is released in step with the clock outside."""
    manifest = _manifest(tmp_path, "pe", "clock.reset=async_low")
    assert "set_false_path -from [get_ports rst_n]" in sdc(manifest, period_ns=4)


@pytest.mark.parametrize("period", [0, -1.0, float("nan")])
def test_impossible_period(tmp_path: Path, period: float) -> None:
    """A clock period is positive."""
    with pytest.raises(ConfigError, match="clock period must be greater than 0 ns, got"):
        handoff_files(_manifest(tmp_path), period_ns=period)


def test_pdk_that_librelane_lacks(tmp_path: Path) -> None:
    """The rule and the value."""
    with pytest.raises(ConfigError, match=r"pdk must be one of sky130hd, .* got 'asap7'"):
        handoff_files(_manifest(tmp_path), pdk="asap7")


def test_files_are_written_once(tmp_path: Path) -> None:
    """Beside the Verilog; unchanged files keep their time."""
    manifest = _manifest(tmp_path)
    paths = write_handoff(manifest, tmp_path)
    assert [path.name for path in paths] == ["pe.sdc", "pe.core", "config.json"]
    times = [path.stat().st_mtime_ns for path in paths]
    assert [path.stat().st_mtime_ns for path in write_handoff(manifest, tmp_path)] == times
    config = json.loads((tmp_path / "config.json").read_text())
    for name in [*config["VERILOG_FILES"], config["PNR_SDC_FILE"], config["SIGNOFF_SDC_FILE"]]:
        assert (tmp_path / name.removeprefix("dir::")).is_file()


def test_fusesoc_loads_the_core(tmp_path: Path) -> None:
    """Its own loader lists the core and sets up the lint target."""
    program = shutil.which("fusesoc", path=str(Path(sys.executable).parent)) or shutil.which(
        "fusesoc"
    )
    if program is None:
        pytest.skip("fusesoc is not installed")
    write_handoff(_manifest(tmp_path), tmp_path)
    for command in (["core", "show", "dstar:rtl:pe"], ["run", "--setup", "--target=lint",
                                                       "dstar:rtl:pe"]):  # fmt: skip
        run = subprocess.run(
            [program, "--cores-root", ".", *command],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stdout + run.stderr
        assert "ERROR" not in run.stdout + run.stderr


def test_core_names_its_files(tmp_path: Path) -> None:
    """Name, version, sources and top module."""
    text = fusesoc_core(_manifest(tmp_path))
    assert text.startswith("CAPI=2:\n")
    assert 'name: "dstar:rtl:pe:' in text
    assert "      - pe.v\n" in text
    assert "toplevel: pe\n" in text


@pytest.mark.parametrize("pdk", sorted(LIBRELANE))
def test_librelane_loads_the_configuration(tmp_path: Path, pdk: str) -> None:
    """Its own loader takes every value; each key is a variable of its Classic flow.

    A stand-in of the PDK says its name; the variables that its files set are left out.
    """
    flows = pytest.importorskip("librelane.flows", reason="librelane is not installed")
    config = pytest.importorskip("librelane.config")
    manifest = _manifest(tmp_path)
    write_handoff(manifest, tmp_path, pdk=pdk)
    path = tmp_path / "config.json"
    classic = flows.Flow.factory.get("Classic")
    steps = [variable for step in classic.Steps for variable in step.config_vars]
    every = (*config.universal_flow_config_variables, *classic.config_vars, *steps)
    known = {variable.name: variable for variable in every}
    assert json.loads(path.read_text()).keys() - known.keys() == {"meta"}
    family, library, period = LIBRELANE[pdk]
    technology = tmp_path / family / "libs.tech" / "librelane"
    (technology / library).mkdir(parents=True)
    (technology / "config.tcl").write_text(f"set ::env(STD_CELL_LIBRARY) {library}\n")
    (technology / library / "config.tcl").touch()
    own = [v for v in known.values() if not v.pdk or v.name == "STD_CELL_LIBRARY"]
    loaded, folder = config.Config.load(str(path), own, pdk_root=str(tmp_path))
    assert Path(folder) == tmp_path
    assert loaded["DESIGN_NAME"] == manifest["top"]
    assert [Path(str(name)) for name in loaded["VERILOG_FILES"]] == [tmp_path / "pe.v"]
    assert float(loaded["CLOCK_PERIOD"]) == period
