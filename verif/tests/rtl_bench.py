"""Builds a simulator of any component with streams, for unit tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from amaranth.hdl import Shape
from amaranth.lib import stream, wiring

from dstar.gen.config import PRESETS, Config
from dstar.gen.library import VerilogLibrary, flat_ports
from dstar.verif.harness import Dut, ScalarPort, StreamPort, build_harness
from dstar.verif.verilate import Build


def build_bench(
    name: str, component: wiring.Component, folder: Path, cfg: Config = PRESETS["tiny"]
) -> tuple[Build, Dut]:
    """Write a component's Verilog into ``folder`` and compile it with players on its streams."""
    path = folder / f"{name}.v"
    path.write_text(VerilogLibrary(cfg).emit(name, component))
    streams: list[StreamPort] = []
    for member_name, member in component.signature.members.items():
        if member.is_signature and isinstance(member.signature, stream.Signature):
            payload: Any = member.signature.members["payload"].shape
            streams.append(
                StreamPort(
                    name=member_name,
                    direction="in" if member.flow == wiring.In else "out",
                    width=Shape.cast(payload).width,
                )
            )
    owned = {f"{s.name}__{field}" for s in streams for field in ("payload", "valid", "ready")}
    scalars = [
        ScalarPort(name=port, direction="in" if flow == wiring.In else "out", width=len(value))
        for port, flow, value in flat_ports(component)
        if port not in owned
    ]
    dut = Dut(sources=(path,), top=name, streams=tuple(streams), scalars=tuple(scalars))
    return build_harness(dut), dut
