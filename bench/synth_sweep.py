"""Sweep the clock target: area against delay of our PE and the INT8 PE, same scripts.

Writes ``out/synth/sweep.json``, which :mod:`synth_pictures` draws.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from dstar.gen.config import load_config
from dstar.synth.pdk import find_pdk
from dstar.synth.report import synth_unit, write_report
from dstar.synth.script import RECIPES

OUTPUT = Path("out") / "synth"
#: Clock targets as multiples of the library's own.
FACTORS = (0.5, 0.75, 1.0, 1.5, 3.0)


def main() -> None:
    """Run every target with every recipe."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="paper")
    parser.add_argument("--pdks", nargs="+", default=["sky130hd"])
    arguments = parser.parse_args()
    console = Console(highlight=False)
    points: list[dict[str, Any]] = []
    for pdk in arguments.pdks:
        target = find_pdk(pdk).pdk.clock_ps
        for recipe in RECIPES:
            for factor in FACTORS:
                report = synth_unit(
                    "pe",
                    load_config(preset=arguments.preset),
                    pdk=pdk,
                    folder=OUTPUT / "sweep" / f"{recipe}-{factor}",
                    clock_ps=round(target * factor),
                    recipe=recipe,
                )
                reference = report["reference"]
                point = {
                    "pdk": pdk,
                    "recipe": recipe,
                    "clock_ps": report["clock_ps"],
                    "area_um2": report["area_um2"],
                    "delay_ps": report["delay_ps"],
                    "int8_area_um2": reference["area_um2"],
                    "int8_delay_ps": reference["delay_ps"],
                }
                points.append(point)
                write_report(OUTPUT / "sweep.json", {"preset": arguments.preset, "points": points})
                console.print(
                    f"{pdk} {recipe} at {point['clock_ps']} ps: "
                    f"{point['area_um2']:,.1f} µm², {point['delay_ps']:,.0f} ps; INT8 "
                    f"{point['int8_area_um2']:,.1f} µm², {point['int8_delay_ps']:,.0f} ps"
                )


if __name__ == "__main__":
    main()
