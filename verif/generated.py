"""Units as the simulator sees them: Verilog in the cache, ports from the manifest."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from dstar.gen.config import Config
from dstar.gen.emit import emit
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
