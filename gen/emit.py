"""Writes a unit's Verilog, its file list and its manifest."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from amaranth.hdl import Shape
from amaranth.lib import data, stream, wiring

from dstar.gen.config import Config, ConfigError
from dstar.gen.library import VerilogLibrary, flat_ports
from dstar.gen.registers import c_header
from dstar.golden.mpc.geometry import Geometry
from dstar.rtl.matrix import MatrixUnit
from dstar.rtl.mpc.mpc import MPC
from dstar.rtl.mpu.mpu import MPU
from dstar.rtl.mpu.pe import PE
from dstar.rtl.mpu.tile import PETile
from dstar.rtl.output.path import OutputPath
from dstar.rtl.qpu.qpu import QPU
from dstar.rtl.qpu_mpu import QPUWithMPU
from dstar.rtl.vpu.vpu import VPU


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A unit that can be generated.

    ``create``: its component.  ``latency``: cycles, by name.  ``blocks``: modules worth compiling
    on their own in a simulator (they occur many times).  ``texts``: other files, by name.
    """

    create: Callable[[Config], wiring.Component]
    latency: Callable[[Any], dict[str, int]]
    blocks: Callable[[Config], list[str]]
    texts: Callable[[], dict[str, str]] = dict


def _rows(cfg: Config) -> list[str]:
    """The array's row, where compiling it once saves more than calling it costs."""
    small = cfg.array.rows * cfg.array.cols <= 64
    return [] if small else [f"pe_row_{cfg.array.cluster}"]


def _core(cfg: Config) -> MPC:
    """A core, if the configuration's sections fit together."""
    Geometry(cfg)
    return MPC(cfg)


UNITS: dict[str, Unit] = {
    "pe": Unit(create=PE, latency=lambda _: {"accumulate": 1, "capture": 1}, blocks=lambda _: []),
    "pe_tile": Unit(
        create=lambda cfg: PETile(cfg, rows=cfg.array.cluster),
        latency=lambda _: {"operand": 1, "accumulate": 1, "capture": 1},
        blocks=lambda _: [],
    ),
    "mpu": Unit(
        create=MPU,
        latency=lambda mpu: {"last_beat_to_output": mpu.latency},
        blocks=_rows,
    ),
    "qpu": Unit(create=QPU, latency=lambda qpu: qpu.latency, blocks=lambda _: []),
    "qpu_mpu": Unit(
        create=QPUWithMPU,
        latency=lambda both: both.latency,
        blocks=_rows,
    ),
    "vpu": Unit(create=VPU, latency=lambda vpu: vpu.latencies, blocks=lambda _: ["vpu_lane"]),
    "output_path": Unit(
        create=OutputPath, latency=lambda path: {"column": path.latency}, blocks=lambda _: []
    ),
    "matrix": Unit(
        create=MatrixUnit,
        latency=lambda matrix: {"last_beat_to_output": matrix.latency},
        blocks=_rows,
    ),
    "mpc": Unit(
        create=_core,
        latency=lambda _: {},
        blocks=lambda cfg: [*_rows(cfg), "vpu_lane"],
        texts=lambda: {"mpc_registers.h": c_header()},
    ),
}


def describe(shape: Any) -> dict[str, Any]:
    """A shape as JSON: width and sign, or the fields of a structure, or an array's elements."""
    if isinstance(shape, data.StructLayout):
        fields = {name: {"offset": item.offset, **describe(item.shape)} for name, item in shape}
        return {"width": shape.size, "fields": fields}
    if isinstance(shape, data.ArrayLayout):
        return {"width": shape.size, "length": shape.length, "element": describe(shape.elem_shape)}
    plain = Shape.cast(shape)
    return {"width": plain.width, "signed": plain.signed}


def _ports(component: wiring.Component) -> list[dict[str, Any]]:
    ports = []
    shapes = {
        "__".join(map(str, path)): member.shape
        for path, member, _ in component.signature.flatten(component)
    }
    for name, flow, _ in flat_ports(component):
        direction = "input" if flow == wiring.In else "output"
        ports.append({"name": name, "direction": direction, **describe(shapes[name])})
    return ports


def _streams(component: wiring.Component) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "direction": "input" if member.flow == wiring.In else "output",
            "width": Shape.cast(member.signature.members["payload"].shape).width,
        }
        for name, member in component.signature.members.items()
        if member.is_signature and isinstance(member.signature, stream.Signature)
    ]


def manifest(name: str, cfg: Config, component: wiring.Component) -> dict[str, Any]:
    """Everything a user of the Verilog needs to know, as written to ``manifest.json``."""
    unit = UNITS[name]
    low = cfg.clock.reset == "async_low"
    return {
        "generator": f"dstar-rtl {version('dstar-rtl')}",
        "unit": name,
        "top": name,
        "preset": cfg.preset,
        "config": cfg.as_dict(),
        "config_hash": cfg.hash,
        "derived": {
            "acc_width": cfg.numeric.acc_width,
            "acc_bound": cfg.numeric.acc_bound,
            "max_shift": cfg.numeric.max_shift,
        },
        "files": [f"{name}.v"],
        "clock": "clk",
        "reset": {
            "name": "rst_n" if low else "rst",
            "active": "low" if low else "high",
            "synchronous": not low,
        },
        "ports": _ports(component),
        "streams": _streams(component),
        "latency": unit.latency(component),
        "blocks": unit.blocks(cfg),
    }


def _write_if_changed(path: Path, text: str) -> None:
    """Replace ``path`` as a whole, and only when its contents differ."""
    if path.is_file() and path.read_text() == text:
        return
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def emit(name: str, cfg: Config, directory: Path) -> dict[str, Any]:
    """Write ``NAME.v``, ``NAME.f`` and ``manifest.json`` into ``directory``; return the manifest.

    The Verilog holds every distinct module once and carries the configuration's
    hash in its first line.  Files whose contents would not change are left alone.

    Raises:
        ConfigError: an unknown unit or a directory that cannot be written.
    """
    if name not in UNITS:
        raise ConfigError(f"unknown unit {name!r}; units are {', '.join(UNITS)}")
    component = UNITS[name].create(cfg)
    contents = manifest(name, cfg, component)
    stamp = f"// {name}, {contents['generator']}, preset {cfg.preset}, configuration {cfg.hash}\n"
    text = stamp + VerilogLibrary(cfg).emit(name, component)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _write_if_changed(directory / f"{name}.v", text)
        _write_if_changed(directory / f"{name}.f", f"{name}.v\n")
        for file, other in UNITS[name].texts().items():
            _write_if_changed(directory / file, other)
        _write_if_changed(directory / "manifest.json", json.dumps(contents, indent=2) + "\n")
    except OSError as error:
        raise ConfigError(f"cannot write to {directory}: {error.strerror}") from None
    return contents
