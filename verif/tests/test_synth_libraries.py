"""Real libraries, where they are installed: areas, delays, and the figures of the PE."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dstar.gen.config import load_config
from dstar.synth.known import PDKS
from dstar.synth.report import synth_unit
from dstar.synth.timing import sta_program
from dstar.verif.tests.synth_tools import installed

pytest.importorskip("pyosys")


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
        assert any(name.startswith("pe_tile_") for name in report["modules"]) is hierarchical
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
