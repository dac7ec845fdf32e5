"""The core's control and engines as units of synthesis: their queues are registers."""

from __future__ import annotations

from pathlib import Path

import pytest

from dstar.gen.config import load_config
from dstar.golden.mpc.geometry import Geometry
from dstar.golden.mpc.isa import Engine
from dstar.rtl.mpc.buffer import BufferBank
from dstar.rtl.mpc.slot import entry_layout
from dstar.synth.flow import synthesize
from dstar.synth.netlist import Netlist
from dstar.synth.pdk import CUSTOM, GENERIC, find_pdk
from dstar.synth.report import synth_unit
from dstar.synth.script import Plan
from dstar.synth.units import CONTROL_PARTS, verilog
from dstar.verif.tests.synth_tools import toy

pytest.importorskip("pyosys")

#: As few queued bits as it takes.
SMALL = ("core.queue=2", "core.semaphores=2", "core.outstanding=1")


def test_parts_and_queues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part is a module; queues are flip-flops, and nothing is a memory."""
    monkeypatch.setattr("dstar.rtl.mpc.control.AHEAD", 4)
    cfg = load_config(preset="tiny", overrides=SMALL)
    report = synth_unit("control", cfg, pdk=CUSTOM, liberty=toy(tmp_path), folder=tmp_path)
    assert report["memories"] == []
    assert report["memory_area_um2"] == 0
    names = {name.rpartition(".")[2] for name in report["modules"]}
    assert names == {"control", *(part.removeprefix("*.") for part in CONTROL_PARTS)}
    for engine in Engine:
        if engine != Engine.CONTROL:
            slot = report["modules"][f"control.control.{engine.name.lower()}"]
            assert slot["sequential_area_um2"] / 20 > 2 * entry_layout(cfg, engine).size
    assert report["area_um2"] == sum(module["area_um2"] for module in report["modules"].values())


@pytest.mark.parametrize(
    "name", ["vector", "quantize", pytest.param("multiply", marks=pytest.mark.full)]
)
def test_engines_have_no_memories(name: str, tmp_path: Path) -> None:
    """Their queues of words are registers too."""
    cfg = load_config(preset="tiny")
    report = synth_unit(f"{name}_engine", cfg, pdk=GENERIC, folder=tmp_path)
    assert report["memory_bits"] == 0
    assert report["cell_mix"]["$_DFF_P_"] > 2 * 8 * Geometry(cfg).word_bytes


def test_a_bank_of_the_buffer_has_one_port(tmp_path: Path) -> None:
    cfg = load_config(preset="tiny")
    text = verilog("t", BufferBank(width=4, depth=8), cfg)
    found = find_pdk(CUSTOM, liberty=toy(tmp_path))
    synthesize(text, Plan(top="t", clock_ps=1000), found, tmp_path / "bank")
    (shape,) = Netlist.read(tmp_path / "bank" / "netlist.json", "t").memories("t")
    assert shape.single_port
