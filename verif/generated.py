"""Units as the simulator sees them: Verilog in the cache, ports from the manifest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from amaranth.hdl import Shape
from amaranth.lib import stream, wiring

from dstar.gen.config import Config
from dstar.gen.emit import emit
from dstar.gen.library import VerilogLibrary, flat_ports
from dstar.verif.harness import Dut, ScalarPort, StreamPort


def dut_from_manifest(directory: Path, manifest: dict[str, Any]) -> Dut:
    """The harness's view of a generated unit.

    ``directory``: where its files are.  ``manifest``: as :func:`dstar.gen.emit.emit` returns it.
    """
    streams = {item["name"]: item for item in manifest["streams"]}
    belongs = {f"{name}__{signal}" for name in streams for signal in ("payload", "valid", "ready")}
    directions: dict[str, Literal["in", "out"]] = {"input": "in", "output": "out"}
    return Dut(
        sources=tuple(directory / name for name in manifest["files"]),
        top=manifest["top"],
        streams=tuple(
            StreamPort(name=name, direction=directions[item["direction"]], width=item["width"])
            for name, item in streams.items()
        ),
        scalars=tuple(
            ScalarPort(
                name=port["name"], direction=directions[port["direction"]], width=port["width"]
            )
            for port in manifest["ports"]
            if port["name"] not in belongs
        ),
        clock=manifest["clock"],
        reset=manifest["reset"]["name"],
        reset_active_low=manifest["reset"]["active"] == "low",
        hier_blocks=tuple(manifest["blocks"]),
    )


def generate(unit: str, cfg: Config, directory: Path) -> Dut:
    """Write a unit's Verilog into ``directory`` and describe it."""
    return dut_from_manifest(directory, emit(unit, cfg, directory))


def generate_component(
    name: str,
    component: wiring.Component,
    cfg: Config,
    directory: Path,
    *,
    blocks: Sequence[str] = (),
) -> Dut:
    """The same for a component that is not a unit of ``dstar gen``, as module ``name``.

    ``blocks``: modules that occur many times, to compile once each.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}.v"
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
    low = cfg.clock.reset == "async_low"
    return Dut(
        sources=(path,),
        top=name,
        streams=tuple(streams),
        scalars=tuple(scalars),
        reset="rst_n" if low else "rst",
        reset_active_low=low,
        hier_blocks=tuple(blocks),
    )
