"""Points that the synthesis benches measure, kept between runs, and tables for ``docs/area.md``.

Each point is a file under ``out/synth/points``.  It is measured again only when the design's
Verilog, the scripts or the average bits changed, so that an interrupted run goes on where it was.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from dstar.gen.config import Config
from dstar.synth.errors import SynthError
from dstar.synth.pdk import find_pdk
from dstar.synth.report import AVERAGE_BITS, synth_unit, write_report
from dstar.synth.script import Plan, abc_script, yosys_script
from dstar.synth.units import design, verilog

OUTPUT = Path("out") / "synth"
DOCUMENT = Path("docs") / "area.md"


def _digest(unit: str, cfg: Config, plan: Plan, exclude: Sequence[str]) -> str:
    """Identifies everything that a point's figures come from, but for the library's contents."""
    wanted = design(unit)
    texts = [verilog(wanted.top, wanted.create(cfg), cfg)]
    if wanted.reference is not None:
        texts.append(verilog("int8", wanted.reference(cfg), cfg))
    texts += [abc_script(plan), yosys_script(plan, (), exclude), str(AVERAGE_BITS)]
    # Amaranth's Yosys numbers what it makes up from one design of a process to the next.
    plain = re.sub(r"dump_module\$\d+", "", "\0".join(texts))
    return hashlib.sha256(plain.encode()).hexdigest()[:16]


def point(
    unit: str,
    cfg: Config,
    pdk: str,
    console: Console,
    *,
    clock_ps: int | None = None,
    recipe: str = "fast",
    measure: bool = True,
) -> dict[str, Any] | None:
    """The report of one run, kept or (with ``measure``) measured; None where it cannot be had."""
    try:
        found = find_pdk(pdk)
        clock = clock_ps or found.pdk.clock_ps
        name = f"{unit}-{cfg.preset}-{cfg.hash}-{pdk}-{clock}-{recipe}"
        digest = _digest(unit, cfg, Plan(top="t", clock_ps=clock, recipe=recipe), found.exclude)
        path = OUTPUT / "points" / f"{name}.json"
        if path.is_file():
            kept = json.loads(path.read_text())
            if kept["digest"] == digest:
                return dict(kept["report"])
        if not measure:
            return None
        with console.status(name) as status:
            report = synth_unit(
                unit,
                cfg,
                pdk=pdk,
                folder=OUTPUT / name,
                clock_ps=clock,
                recipe=recipe,
                progress=lambda what: status.update(f"{name}: {what}"),
            )
    except SynthError as error:
        console.print(f"{unit} on {pdk}: {str(error).splitlines()[0]}")
        return None
    write_report(path, {"digest": digest, "report": report})
    used = report["resources"]
    console.print(
        f"{name}: {report['area_um2']:,.0f} µm², {report['delay_ps']:,.0f} ps; "
        f"{used['cpu_s']:.0f} s of processor time, {used['peak_memory_mb']:,} MB"
    )
    return report


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def write_block(script: str, text: str, console: Console) -> None:
    """Print a table, and put it between ``<!-- bench/SCRIPT -->`` and ``<!-- end -->``."""
    begin, end = f"<!-- bench/{script} -->\n", "\n<!-- end -->"
    document = DOCUMENT.read_text()
    pattern = re.compile(re.escape(begin) + "(?:(?!<!--).)*" + re.escape(end), re.DOTALL)
    changed, count = pattern.subn(lambda _: begin + text + end, document)
    if count != 1:
        raise SystemExit(f"{DOCUMENT} must hold {begin.strip()} once, got {count}")
    DOCUMENT.write_text(changed)
    console.print(text)
