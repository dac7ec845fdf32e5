"""What ``dstar fpga`` does: runs placement and routing and prints the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from dstar.gen.config import Config
from dstar.synth.command import guarded, print_usage
from dstar.synth.fpga.ecp5 import fpga_unit

#: Where scripts, logs, netlists and reports go unless told otherwise.
OUTPUT = Path("out") / "fpga"


def run_fpga(
    unit: str,
    cfg: Config,
    *,
    device: str,
    clock_mhz: float,
    seed: int,
    json_file: Path | None,
    folder: Path,
) -> int:
    """Place and route ``unit``, print what it takes and its clock; return the exit code.

    0: done.  2: one message on standard error says what was wrong.
    """
    errors = Console(stderr=True, highlight=False)
    name = f"{unit} on an ECP5"
    with errors.status(name) as status:
        code, report = guarded(
            "fpga",
            json_file,
            lambda: fpga_unit(
                unit,
                cfg,
                folder=folder,
                device=device,
                clock_mhz=clock_mhz,
                seed=seed,
                progress=lambda what: status.update(f"{name}: {what}"),
            ),
        )
    if report is not None:
        print_report(report, Console(highlight=False))
    return code


def print_report(report: dict[str, Any], console: Console) -> None:
    """Print a report of :func:`dstar.synth.fpga.fpga_unit` as a table."""
    table = Table(title=f"{report['unit']} ({report['preset']}) on {report['device']}")
    for name in ("", "unit", "with harness", "device has"):
        table.add_column(name, justify="right" if name else "left")
    for what, placed in report["placed"].items():
        numbers = (report[what], placed["used"], placed["available"])
        table.add_row(what.replace("_", " "), *(f"{number:,}" for number in numbers))
    console.print(table)
    achieved = report["achieved_mhz"]
    console.print(
        f"clock: {achieved:.1f} MHz after routing, slowest corner "
        f"(target {report['target_mhz']:g} MHz, seed {report['seed']})"
        if achieved
        else "clock: no path between two registers"
    )
    print_usage(report, console)
