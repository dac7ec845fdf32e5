"""Builds a simulator of any component with streams, for unit tests."""

from __future__ import annotations

from pathlib import Path

from amaranth.lib import wiring

from dstar.gen.config import PRESETS, Config
from dstar.verif.generated import generate_component
from dstar.verif.harness import Dut, build_harness
from dstar.verif.verilate import Build


def build_bench(
    name: str, component: wiring.Component, folder: Path, cfg: Config = PRESETS["tiny"]
) -> tuple[Build, Dut]:
    """Write a component's Verilog into ``folder`` and compile it with players on its streams."""
    dut = generate_component(name, component, cfg, folder)
    return build_harness(dut), dut
