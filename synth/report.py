"""Area and timing of a unit as one report: :func:`synth_unit`."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dstar.gen.config import MAX_PRECISION, MAX_SLICES, Config
from dstar.synth.flow import Progress, run_yosys, synthesize
from dstar.synth.netlist import Netlist
from dstar.synth.paper import against_paper
from dstar.synth.pdk import GENERIC, Found, find_pdk
from dstar.synth.result import Result
from dstar.synth.script import NAND2_EQUIVALENTS, Plan, generic_script
from dstar.synth.timing import NOTE
from dstar.synth.units import Design, design, verilog
from dstar.synth.usage import Usage

#: Bits of an activation of the shipped model on average, for throughput per area where none are
#: given: measured by ``bench/fmdq_quality.py`` (``docs/numerics.md``, "Figures").
AVERAGE_BITS = 3.44
#: Multiplier forms tried for the INT8 reference; the smallest result counts.
MULTIPLIERS = {"booth": True, "array": False}


def synth_unit(
    unit: str,
    cfg: Config,
    *,
    pdk: str,
    folder: Path,
    liberty: Sequence[Path] = (),
    clock_ps: int | None = None,
    recipe: str = "fast",
    hierarchical: bool = True,
    reference: bool = True,
    average_bits: float = AVERAGE_BITS,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Synthesize a unit and its reference; return the report, which is also ``report.json``.

    Areas are in µm², delays in ps.  ``area_um2`` holds standard cells only; memories are
    ``memory_area_um2``.  For ``pe`` both are averages over a block of PEs that share operand
    registers; for ``mpu`` the reference is compared with the array of PEs alone, offset row
    included.  Scripts, logs and netlists stay under ``folder``.  ``resources`` is what the whole
    report took (:class:`~dstar.synth.usage.Usage`).

    Parameters
    ----------
    hierarchical: synthesize repeated modules once and sum by instance, not everything flat.
    average_bits: activation bits at which throughput per area is stated.

    Raises:
        SynthError: unknown unit or library, unusable files, a tool that failed.
    """
    wanted = design(unit)
    before = Usage.now()
    work = folder / f"{unit}-{cfg.preset}-{cfg.hash}-{pdk}"
    if pdk == GENERIC:
        report = _generic(unit, wanted, cfg, work, progress)
    else:
        found = find_pdk(pdk, liberty=liberty)
        clock = clock_ps or found.pdk.clock_ps
        keep = wanted.keep if hierarchical else ()
        plan = Plan(
            top=wanted.top,
            clock_ps=clock,
            keep=keep,
            registers=wanted.registers,
            recipe=recipe,
        )
        text = verilog(wanted.top, wanted.create(cfg), cfg)
        result = synthesize(text, plan, found, work / "design", progress=progress)
        report = _describe(unit, wanted, cfg, found, plan, result)
        if reference and wanted.reference is not None:
            report["reference"] = _compare(
                wanted, cfg, found, plan, result, work, average_bits, progress
            )
        report["paper"] = against_paper(unit, cfg, report["area_um2"], found)
    report["folder"] = str(work)
    report["resources"] = Usage.now().since(before)
    write_report(work / "report.json", report)
    return report


def write_report(path: Path, report: Mapping[str, Any]) -> None:
    """Write JSON in one step: a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(report, indent=2) + "\n")
    temporary.replace(path)


def _describe(
    unit: str, wanted: Design, cfg: Config, found: Found, plan: Plan, result: Result
) -> dict[str, Any]:
    parts = wanted.divide(cfg)
    cells = found.cells
    memories: dict[tuple[str, bool], tuple[int, float]] = {}
    for module in result.modules.values():
        for memory in module.memories:
            count, area = memories.get((memory.made_of, memory.macro), (0, 0.0))
            count, area = count + module.instances, area + module.instances * memory.area
            memories[memory.made_of, memory.macro] = count, area
    warnings = []
    if any(not macro for _, macro in memories):
        warnings.append(
            "memories without a suitable macro are estimated as flip-flops, apart from the rest"
        )
    return {
        "unit": unit,
        "preset": cfg.preset,
        "config_hash": cfg.hash,
        "pdk": found.pdk.name,
        "process": found.pdk.process,
        "libraries": [str(library.path) for library in found.libraries],
        "excluded_cells": sorted(name for name in cells if found.excluded(name)),
        "excluded_patterns": list(found.exclude),
        "average_of": parts,
        "area_um2": result.area / parts,
        "sequential_area_um2": result.sequential_area / parts,
        "memory_area_um2": result.memory_area / parts,
        "cells": sum(result.cells.values()) / parts if parts > 1 else sum(result.cells.values()),
        "cell_mix": dict(result.cells.most_common()),
        "fanout_buffers": result.buffers,
        "memories": [
            {"made_of": made_of, "macro": macro, "count": count, "area_um2": area}
            for (made_of, macro), (count, area) in memories.items()
        ],
        "modules": {
            name: {
                "instances": module.instances,
                "area_um2": module.area,
                "sequential_area_um2": module.sequential,
                "logic_depth": module.depth,
                "delay_ps": result.delays[name].delay_ps if name in result.delays else None,
            }
            for name, module in result.modules.items()
        },
        "logic_depth": result.depth,
        "clock_ps": plan.clock_ps,
        "recipe": plan.recipe,
        "delay_ps": result.timing.delay_ps,
        "timer": result.timing.timer,
        "timing_note": NOTE,
        "warnings": warnings,
    }


def _compare(
    wanted: Design,
    cfg: Config,
    found: Found,
    plan: Plan,
    result: Result,
    work: Path,
    average_bits: float,
    progress: Progress | None,
) -> dict[str, Any]:
    """The INT8 design through the same scripts, in each multiplier form; the smallest counts."""
    assert wanted.reference is not None
    results = {}
    for form, booth in MULTIPLIERS.items():

        def tell(what: str, form: str = form) -> None:
            if progress is not None:
                progress(f"INT8 reference ({form}), {what}")

        component = wanted.reference(cfg)
        other = Plan(
            top="int8", clock_ps=plan.clock_ps, keep=plan.keep, booth=booth, recipe=plan.recipe
        )
        text = verilog("int8", component, cfg)
        results[form] = synthesize(text, other, found, work / f"int8_{form}", progress=tell)
    form, best = min(results.items(), key=lambda item: item[1].area)
    ours = {
        name: module
        for name, module in result.modules.items()
        if not wanted.compared or name.startswith(wanted.compared)
    }
    parts = wanted.divide(cfg)
    area = sum(m.instances * m.area for m in ours.values()) / parts
    delay = max(result.delays[name].delay_ps for name in ours if name in result.delays)
    reference_area = best.area * wanted.reference_count(cfg) / parts
    reference_delay = best.timing.delay_ps
    area_ratio = area / reference_area
    throughput = cfg.array.lanes / MAX_SLICES
    return {
        "what": "INT8 systolic design, one product a PE and cycle, same flow and clock target",
        "multiplier": form,
        "area_by_multiplier_um2": {
            name: r.area * wanted.reference_count(cfg) / parts for name, r in results.items()
        },
        "compared_area_um2": area,
        "compared_delay_ps": delay,
        "area_um2": reference_area,
        "sequential_area_um2": best.sequential_area * wanted.reference_count(cfg) / parts,
        "delay_ps": reference_delay,
        "logic_depth": best.depth,
        "area_ratio": area_ratio,
        "delay_ratio": delay / reference_delay,
        "area_delay_ratio": area_ratio * delay / reference_delay,
        "throughput_ratio_at_8_bits": throughput,
        "average_bits": average_bits,
        "throughput_per_area": throughput * MAX_PRECISION / average_bits / area_ratio,
    }


def _generic(
    unit: str, wanted: Design, cfg: Config, work: Path, progress: Progress | None
) -> dict[str, Any]:
    """NAND2 equivalents from Yosys' own gates."""
    folder = work / "design"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "design.v").write_text(verilog(wanted.top, wanted.create(cfg), cfg))
    plan = Plan(top=wanted.top, clock_ps=0, keep=wanted.keep, registers=wanted.registers)
    run_yosys(folder, generic_script(plan), progress)
    netlist = Netlist.read(folder / "netlist.json", wanted.top)
    cells: Counter[str] = Counter()
    bits = 0
    for name, instances in netlist.instances().items():
        for cell, count in netlist.counts(name).items():
            cells[cell] += count * instances
        bits += instances * sum(shape.depth * shape.width for shape in netlist.memories(name))
    parts = wanted.divide(cfg)
    gates = sum(NAND2_EQUIVALENTS[cell] * count for cell, count in cells.items())
    registers = sum(NAND2_EQUIVALENTS[c] * n for c, n in cells.items() if "DFF" in c)
    return {
        "unit": unit,
        "preset": cfg.preset,
        "config_hash": cfg.hash,
        "pdk": GENERIC,
        "excluded_cells": [],
        "average_of": parts,
        "nand2_equivalents": gates / parts,
        "sequential_nand2_equivalents": registers / parts,
        "memory_bits": bits,
        "cells": sum(cells.values()) / parts if parts > 1 else sum(cells.values()),
        "cell_mix": dict(cells.most_common()),
        "area_um2": None,
        "sequential_area_um2": None,
        "memory_area_um2": None,
        "delay_ps": None,
        "timer": None,
        "warnings": ["no library: areas are NAND2 equivalents, and there is no timing"],
    }
