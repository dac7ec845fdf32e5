"""Measure area and timing over units and libraries; write the table and its pictures.

Writes ``out/synth/table.json`` and ``docs/area-table.md``, and pictures into ``docs/images``
(:mod:`synth_pictures`).  Libraries that are not installed are left out, with a line that says so.
A run of some units or libraries replaces their lines and keeps the others.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from dstar.gen.config import load_config
from dstar.synth.errors import SynthError
from dstar.synth.known import PDKS
from dstar.synth.report import synth_unit, write_report
from dstar.synth.units import unit_names

OUTPUT = Path("out") / "synth"
TABLE = Path("docs") / "area-table.md"
#: Units that the table has by default, when they exist.
UNITS = ("pe", "mpu", "qpu", "vpu")


def measure(unit: str, preset: str, pdk: str, console: Console) -> dict[str, Any] | None:
    """One report with the seconds it took, or None when it cannot be had, which is printed."""
    start = time.monotonic()
    try:
        with console.status(f"{unit} on {pdk}") as status:
            report = synth_unit(
                unit,
                load_config(preset=preset),
                pdk=pdk,
                folder=OUTPUT,
                progress=lambda what: status.update(f"{unit} on {pdk}: {what}"),
            )
    except SynthError as error:
        console.print(f"{unit} on {pdk}: {str(error).splitlines()[0]}")
        return None
    report["seconds"] = round(time.monotonic() - start, 1)
    console.print(f"{unit} on {pdk}: {report['area_um2']:,.0f} µm² in {report['seconds']:.0f} s")
    return report


def markdown(reports: list[dict[str, Any]]) -> str:
    """The table: a line a unit and library."""
    lines = [
        "| unit | library | area µm² | flip-flops | memories µm² | gates deep | delay ps | timer "
        "| area / INT8 | delay / INT8 | area x delay | throughput per area |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for report in reports:
        other = report.get("reference")
        ratios = ["-"] * 4
        if other:
            ratios = [
                f"{other['area_ratio']:.3f}",
                f"{other['delay_ratio']:.3f}",
                f"{other['area_delay_ratio']:.3f}",
                f"{other['throughput_per_area']:.2f}",
            ]
        cells = [
            report["unit"],
            report["pdk"],
            f"{report['area_um2']:,.{0 if report['area_um2'] > 1000 else 1}f}",
            f"{report['sequential_area_um2'] / report['area_um2']:.0%}",
            f"{report['memory_area_um2']:,.0f}" if report["memory_area_um2"] else "-",
            str(report["logic_depth"]),
            f"{report['delay_ps']:,.0f}",
            report["timer"],
            *ratios,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, write, draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="paper")
    parser.add_argument(
        "--units", nargs="+", choices=UNITS, default=[u for u in UNITS if u in unit_names()]
    )
    parser.add_argument("--pdks", nargs="+", default=list(PDKS))
    arguments = parser.parse_args()
    console = Console(highlight=False)
    saved = OUTPUT / "table.json"
    earlier = json.loads(saved.read_text()) if saved.is_file() else {"preset": None}
    reports = earlier["reports"] if earlier["preset"] == arguments.preset else []
    for unit in arguments.units:
        for pdk in arguments.pdks:
            report = measure(unit, arguments.preset, pdk, console)
            if report is None:
                continue
            reports = [r for r in reports if (r["unit"], r["pdk"]) != (unit, pdk)] + [report]
            reports.sort(key=lambda r: (UNITS.index(r["unit"]), list(PDKS).index(r["pdk"])))
            write_report(saved, {"preset": arguments.preset, "reports": reports})
    TABLE.write_text(
        f"<!-- written by bench/synth_table.py, preset {arguments.preset} -->\n\n"
        + markdown(reports)
    )
    console.print(f"{TABLE}: {len(reports)} lines; {OUTPUT / 'table.json'}")


if __name__ == "__main__":
    main()
