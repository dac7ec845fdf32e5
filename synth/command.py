"""What ``dstar synth`` does: runs the flow and prints its report."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from dstar.gen.config import Config, ConfigError
from dstar.synth.errors import SynthError
from dstar.synth.pdk import CUSTOM
from dstar.synth.report import AVERAGE_BITS, synth_unit, write_report

#: Where scripts, logs, netlists and reports go unless told otherwise.
OUTPUT = Path("out") / "synth"
#: Cell types listed in the printed mix.
_MIX = 8


def run_synth(
    unit: str,
    cfg: Config,
    *,
    pdk: str | None = None,
    liberty: Sequence[Path] = (),
    json_file: Path | None = None,
    folder: Path = OUTPUT,
    clock_ps: int | None = None,
    recipe: str = "fast",
    hierarchical: bool = True,
    reference: bool = True,
    average_bits: float = AVERAGE_BITS,
) -> int:
    """Synthesize ``unit`` and print area, cell mix, depth and timing; return the exit code.

    ``pdk`` is sky130hd by default, or a nameless library when ``liberty`` files are given.

    0: done.  2: one message on standard error says what was wrong.
    """
    pdk = pdk or (CUSTOM if liberty else "sky130hd")
    name = f"{unit} on {pdk}"
    with Console(stderr=True, highlight=False).status(name) as status:
        code, report = guarded(
            "synth",
            json_file,
            lambda: synth_unit(
                unit,
                cfg,
                pdk=pdk,
                folder=folder,
                liberty=liberty,
                clock_ps=clock_ps,
                recipe=recipe,
                hierarchical=hierarchical,
                reference=reference,
                average_bits=average_bits,
                progress=lambda what: status.update(f"{name}: {what}"),
            ),
        )
    if report is not None:
        print_report(report, Console(highlight=False))
    return code


def guarded(
    command: str, json_file: Path | None, work: Callable[[], dict[str, Any]]
) -> tuple[int, dict[str, Any] | None]:
    """Exit code and report of ``work``, which is also written to ``json_file``.

    Whatever a user can cause ends with one message on standard error, code 2 and no report.
    """
    try:
        if json_file is not None and not json_file.absolute().parent.is_dir():
            raise SynthError(f"cannot write {json_file}: no folder {json_file.absolute().parent}")
        report = work()
        if json_file is not None:
            write_report(json_file, report)
    except (SynthError, ConfigError) as error:
        print(f"dstar {command}: {error}", file=sys.stderr)
        return 2, None
    except OSError as error:
        what = f"{error.filename or ''}: {os.strerror(error.errno or 0)}"
        print(f"dstar {command}: {what}", file=sys.stderr)
        return 2, None
    return 0, report


def print_report(report: dict[str, Any], console: Console) -> None:
    """Print a report of :func:`dstar.synth.report.synth_unit` as tables."""
    average = report["average_of"]
    of = f", average of {average} that share operand registers" if average > 1 else ""
    table = Table(title=f"{report['unit']} ({report['preset']}) on {report['pdk']}{of}")
    table.add_column("")
    table.add_column("value", justify="right")
    for name, value in _figures(report):
        table.add_row(name, value)
    console.print(table)
    mix = list(report["cell_mix"].items())
    total = sum(report["cell_mix"].values())
    shown = ", ".join(f"{name} {count / total:.0%}" for name, count in mix[:_MIX])
    console.print(f"cell mix: {shown}, {max(0, len(mix) - _MIX)} more types")
    if report["excluded_cells"]:
        patterns = " ".join(report["excluded_patterns"])
        console.print(f"excluded cells: {len(report['excluded_cells'])} ({patterns})")
    for memory in report.get("memories", ()):
        console.print(
            f"memory: {memory['count']} of {memory['made_of']}, {memory['area_um2']:,.0f} µm²"
        )
    if report.get("paper"):
        paper = report["paper"]
        console.print(
            f"paper, table 3: {paper['paper_mm2']} mm² at 45 nm; here {paper['ours_mm2']:.2f} mm² "
            f"({paper['how']})"
        )
    for warning in report["warnings"]:
        console.print(f"note: {warning}")
    print_usage(report, console)


def print_usage(report: Mapping[str, Any], console: Console) -> None:
    """Print where a report's files are and what it took."""
    console.print(f"scripts, logs and netlists: {report['folder']}")
    used = report["resources"]
    console.print(
        f"took {used['wall_s']:.0f} s, {used['cpu_s']:.0f} s of processor time, at most "
        f"{used['peak_memory_mb']:,} MB"
    )


def _figures(report: dict[str, Any]) -> list[tuple[str, str]]:
    """Names and values of the main table."""
    if report["area_um2"] is None:
        share = report["sequential_nand2_equivalents"] / report["nand2_equivalents"]
        return [
            ("area, NAND2 equivalents", f"{report['nand2_equivalents']:,.0f}"),
            ("flip-flop share", f"{share:.0%}"),
            ("memory bits, apart", f"{report['memory_bits']:,}"),
            ("cells", f"{report['cells']:,.0f}"),
        ]
    area = report["area_um2"]
    figures = [
        ("area, standard cells (µm²)", f"{area:,.0f}"),
        ("flip-flop share", f"{report['sequential_area_um2'] / area:.0%}" if area else "-"),
        ("memory area, apart (µm²)", f"{report['memory_area_um2']:,.0f}"),
        ("cells", f"{report['cells']:,.0f}"),
        ("logic depth (gates)", f"{report['logic_depth']}"),
        ("clock target (ps)", f"{report['clock_ps']:,}"),
        (f"delay (ps; {report['timer']}, {report['timing_note']})", f"{report['delay_ps']:,.0f}"),
    ]
    if "reference" in report:
        other = report["reference"]
        figures += [
            (f"INT8 reference ({other['multiplier']}), area (µm²)", f"{other['area_um2']:,.0f}"),
            ("INT8 reference, delay (ps)", f"{other['delay_ps']:,.0f}"),
            ("area / INT8", f"{other['area_ratio']:.3f}"),
            ("delay / INT8", f"{other['delay_ratio']:.3f}"),
            ("area x delay / INT8", f"{other['area_delay_ratio']:.3f}"),
            (
                f"throughput per area / INT8, {other['average_bits']:g} bits on average",
                f"{other['throughput_per_area']:.2f}",
            ),
        ]
    return figures
