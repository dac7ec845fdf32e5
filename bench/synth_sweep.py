"""Area against delay over clock targets and recipes, and over block sizes: PE and INT8 PE.

Writes ``out/synth/sweep.json``, which :mod:`synth_pictures` draws, and a table of ``docs/area.md``.
"""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console
from synth_points import OUTPUT, markdown, point, write_block

from dstar.gen.config import load_config
from dstar.synth.pdk import find_pdk
from dstar.synth.report import write_report
from dstar.synth.script import RECIPES

#: Clock targets as multiples of the library's own.
FACTORS = (0.5, 0.75, 1.0, 1.5, 3.0)
#: Values of ``array.cluster``.
CLUSTERS = (1, 2, 4, 8)


def clocks(preset: str, pdks: list[str], console: Console) -> None:
    """Every target with every recipe."""
    points: list[dict[str, Any]] = []
    for pdk in pdks:
        target = find_pdk(pdk).pdk.clock_ps
        for recipe in RECIPES:
            for factor in FACTORS:
                clock = round(target * factor)
                cfg = load_config(preset=preset)
                report = point("pe", cfg, pdk, console, clock_ps=clock, recipe=recipe)
                assert report is not None
                names = ("area_um2", "delay_ps")
                points.append(
                    {"pdk": pdk, "recipe": recipe, "clock_ps": clock}
                    | {name: report[name] for name in names}
                    | {f"int8_{name}": report["reference"][name] for name in names}
                )
                write_report(OUTPUT / "sweep.json", {"preset": preset, "points": points})


def clusters(preset: str, pdks: list[str], console: Console) -> None:
    """Every block size."""
    rows = []
    for cluster in CLUSTERS:
        cfg = load_config(preset=preset, overrides=(f"cluster={cluster}",))
        cells = [f"{cluster}"]
        for pdk in pdks:
            report = point("pe", cfg, pdk, console)
            assert report is not None
            other, area = report["reference"], report["area_um2"]
            cells += [f"{area:,.{0 if area > 1000 else 1}f}", f"{report['delay_ps']:,.0f}"]
            cells += [f"{other['area_ratio']:.3f}", f"{other['delay_ratio']:.3f}"]
        rows.append(cells)
    head = ["`array.cluster`"]
    for pdk in pdks:
        head += [f"{pdk}: µm² a PE", "ps", "area / INT8", "delay / INT8"]
    write_block("synth_sweep.py", markdown(head, rows), console)


def main() -> None:
    """Both sweeps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="paper")
    parser.add_argument("--pdks", nargs="+", default=["sky130hd", "asap7"])
    arguments = parser.parse_args()
    console = Console(highlight=False, soft_wrap=True)
    clusters(arguments.preset, arguments.pdks, console)
    clocks(arguments.preset, arguments.pdks, console)


if __name__ == "__main__":
    main()
