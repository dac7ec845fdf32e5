"""Files that hand generated Verilog to other flows: SDC, a FuseSoC core, LibreLane's config."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dstar.gen.config import ConfigError

#: PDK and standard-cell library as LibreLane names them, and a clock period in ns that leaves
#: about half for wires over the pre-layout estimate.
LIBRELANE = {
    "sky130hd": ("sky130A", "sky130_fd_sc_hd", 10.0),
    "gf180mcu": ("gf180mcuD", "gf180mcu_fd_sc_mcu7t5v0", 24.0),
    "ihp-sg13g2": ("ihp-sg13g2", "sg13g2_stdcell", 10.0),
}
#: Share of the clock period left to whatever drives the inputs and takes the outputs.
IO_SHARE = 0.2


def sdc(manifest: Mapping[str, Any], *, period_ns: float) -> str:
    """Timing constraints of a unit: its clock, input and output delays, the reset.

    An asynchronous reset is a false path: it must be released in step with the clock outside.

    Raises:
        ConfigError: a period that is not positive.
    """
    if not period_ns > 0:
        raise ConfigError(f"clock period must be greater than 0 ns, got {period_ns!r}")
    clock, reset = manifest["clock"], manifest["reset"]
    inputs = [port["name"] for port in manifest["ports"] if port["direction"] == "input"]
    delay = f"{IO_SHARE * period_ns:g}"
    lines = [
        f"# {manifest['unit']}, {manifest['generator']}, configuration {manifest['config_hash']}",
        f"create_clock -name {clock} -period {period_ns:g} [get_ports {clock}]",
    ]
    if inputs:
        names = " ".join(inputs)
        lines.append(f"set_input_delay {delay} -clock {clock} [get_ports {{{names}}}]")
    lines.append(f"set_output_delay {delay} -clock {clock} [all_outputs]")
    if reset["synchronous"]:
        lines.append(f"set_input_delay {delay} -clock {clock} [get_ports {reset['name']}]")
    else:
        lines.append(f"set_false_path -from [get_ports {reset['name']}]")
    return "\n".join(lines) + "\n"


def fusesoc_core(manifest: Mapping[str, Any]) -> str:
    """A FuseSoC core description (CAPI 2): the sources, a lint target, the constraints."""
    unit = manifest["unit"]
    version = manifest["generator"].rpartition(" ")[2]
    files = "".join(f"      - {name}\n" for name in manifest["files"])
    return (
        "CAPI=2:\n"
        f'name: "dstar:rtl:{unit}:{version}"\n'
        f'description: "DSTAR {unit}, preset {manifest["preset"]}, '
        f'configuration {manifest["config_hash"]}"\n'
        "filesets:\n"
        f"  rtl:\n    files:\n{files}    file_type: verilogSource\n"
        f"  constraints:\n    files:\n      - {unit}.sdc\n    file_type: SDC\n"
        "targets:\n"
        f"  default: &default\n    filesets: [rtl]\n    toplevel: {manifest['top']}\n"
        "  synth:\n    <<: *default\n    filesets: [rtl, constraints]\n"
        "  lint:\n    <<: *default\n    flow: lint\n    flow_options:\n      tool: verilator\n"
    )


def librelane_config(manifest: Mapping[str, Any], *, pdk: str, period_ns: float) -> dict[str, Any]:
    """LibreLane's ``config.json``.

    Raises:
        ConfigError: LibreLane has no such PDK.
    """
    if pdk not in LIBRELANE:
        raise ConfigError(f"pdk must be one of {', '.join(LIBRELANE)} for LibreLane, got {pdk!r}")
    family, library, _ = LIBRELANE[pdk]
    unit = manifest["unit"]
    return {
        "meta": {"version": 2, "flow": "Classic"},
        "DESIGN_NAME": manifest["top"],
        "VERILOG_FILES": [f"dir::{name}" for name in manifest["files"]],
        "CLOCK_PORT": manifest["clock"],
        "CLOCK_PERIOD": period_ns,
        "PNR_SDC_FILE": f"dir::{unit}.sdc",
        "SIGNOFF_SDC_FILE": f"dir::{unit}.sdc",
        "PDK": family,
        "STD_CELL_LIBRARY": library,
        "FP_CORE_UTIL": 45,
    }


def handoff_files(
    manifest: Mapping[str, Any], *, pdk: str = "sky130hd", period_ns: float | None = None
) -> dict[str, str]:
    """Name and text of every file that belongs beside a unit's Verilog.

    ``period_ns``: clock period, by default :data:`LIBRELANE`'s for the PDK.

    Raises:
        ConfigError: an unknown PDK or an impossible period.
    """
    if pdk not in LIBRELANE:
        raise ConfigError(f"pdk must be one of {', '.join(LIBRELANE)} for LibreLane, got {pdk!r}")
    period = LIBRELANE[pdk][2] if period_ns is None else period_ns
    config = librelane_config(manifest, pdk=pdk, period_ns=period)
    return {
        f"{manifest['unit']}.sdc": sdc(manifest, period_ns=period),
        f"{manifest['unit']}.core": fusesoc_core(manifest),
        "config.json": json.dumps(config, indent=2) + "\n",
    }


def write_handoff(
    manifest: Mapping[str, Any],
    directory: Path,
    *,
    pdk: str = "sky130hd",
    period_ns: float | None = None,
) -> list[Path]:
    """Write :func:`handoff_files` into ``directory``; return the paths.

    A file whose contents would not change is left alone.
    """
    paths = []
    for name, text in handoff_files(manifest, pdk=pdk, period_ns=period_ns).items():
        path = directory / name
        if not (path.is_file() and path.read_text() == text):
            try:
                path.write_text(text)
            except OSError as error:
                raise ConfigError(f"cannot write {path}: {error.strerror}") from None
        paths.append(path)
    return paths
