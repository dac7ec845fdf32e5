"""Area and timing over units and libraries: the first tables of ``docs/area.md``.

Writes ``out/synth/table.json`` too, which :mod:`synth_pictures` draws.  Libraries that are not
installed are left out, with a line that says so.
"""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console
from synth_points import OUTPUT, markdown, point, write_block

from dstar.gen.config import load_config
from dstar.synth.known import PDKS
from dstar.synth.paper import TABLE_3
from dstar.synth.report import write_report

#: Units of the table, and the libraries of each: the largest ones on three only.
UNITS = {
    "pe": tuple(PDKS),
    "mpu": ("sky130hd", "ihp-sg13g2", "asap7"),
    "qpu": ("sky130hd", "ihp-sg13g2", "asap7"),
    "vpu": ("sky130hd", "ihp-sg13g2", "asap7"),
    "output_path": ("sky130hd", "ihp-sg13g2", "asap7"),
}
_HEAD = (
    *("unit", "library", "area µm²", "flip-flops", "memories µm²", "gates deep", "delay ps"),
    *("timer", "area / INT8", "delay / INT8", "area x delay", "throughput per area"),
)


def row(report: dict[str, Any]) -> list[str]:
    """A line of the table."""
    other = report.get("reference")
    area = report["area_um2"]
    ratios = ["-"] * 4
    if other:
        names = ("area_ratio", "delay_ratio", "area_delay_ratio")
        ratios = [*(f"{other[name]:.3f}" for name in names), f"{other['throughput_per_area']:.2f}"]
    return [
        report["unit"],
        report["pdk"],
        f"{area:,.{0 if area > 1000 else 1}f}",
        f"{report['sequential_area_um2'] / area:.0%}",
        f"{report['memory_area_um2']:,.0f}" if report["memory_area_um2"] else "-",
        str(report["logic_depth"]),
        f"{report['delay_ps']:,.0f}",
        report["timer"],
        *ratios,
    ]


def shares(reports: list[dict[str, Any]]) -> str:
    """QPU and VPU in per cent of the MPU, and each unit beside the paper's table 3."""
    by = {(r["unit"], r["pdk"]): r for r in reports}
    rows = []
    for pdk in UNITS["mpu"]:
        units = [by.get((unit, pdk)) for unit in ("mpu", "qpu", "vpu")]
        if not any(units):
            continue
        scaled = [f"{r['paper']['ours_mm2']:.2f}" if r and r["paper"] else "-" for r in units]
        parts = ["-"] * 3
        if all(units):
            mpu, qpu, vpu = (report["area_um2"] for report in units if report)
            parts = [f"{part / mpu:.1%}" for part in (qpu, vpu, qpu + vpu)]
        rows.append([pdk, *parts, *scaled])
    mpu, qpu, vpu = (TABLE_3[unit] for unit in ("mpu", "qpu", "vpu"))
    paper = [f"{part / mpu:.1%}" for part in (qpu, vpu, qpu + vpu)]
    rows.append(["the paper", *paper, *(f"{area:.2f}" for area in (mpu, qpu, vpu))])
    head = ("library", "QPU / MPU", "VPU / MPU", "both", "MPU mm²", "QPU mm²", "VPU mm²")
    return markdown(head, rows)


def main() -> None:
    """Measure what has changed, write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="paper")
    parser.add_argument("--units", nargs="+", choices=UNITS, default=list(UNITS))
    parser.add_argument("--pdks", nargs="+", default=list(PDKS))
    parser.add_argument("--kept", action="store_true", help="measure nothing, only write")
    arguments = parser.parse_args()
    console = Console(highlight=False, soft_wrap=True)
    cfg = load_config(preset=arguments.preset)
    wanted = [(u, p) for u in arguments.units for p in UNITS[u] if p in arguments.pdks]
    measured = [point(u, cfg, p, console, measure=not arguments.kept) for u, p in wanted]
    reports = [report for report in measured if report is not None]
    write_report(OUTPUT / "table.json", {"preset": arguments.preset, "reports": reports})
    text = markdown(_HEAD, [row(report) for report in reports])
    costs = [
        f"{r['pdk']} {r['resources']['cpu_s']:.0f} s and {r['resources']['peak_memory_mb']:,} MB"
        for r in reports
        if r["unit"] == "mpu"
    ]
    if costs:
        text += f"\n\nThe MPU's reports took, in processor time and memory: {', '.join(costs)}."
    write_block("synth_table.py", text, console)
    write_block("synth_table.py shares", shares(reports), console)


if __name__ == "__main__":
    main()
