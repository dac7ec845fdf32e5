"""Area of what runs programs, and of the engines, beside the MPU's: tables of ``docs/area.md``.

``control`` is the core without units, their engines and the buffer.  All queues are registers and
gates here, not memories apart.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from typing import Any

from rich.console import Console
from synth_points import markdown, point, write_block

from dstar.gen.config import load_config

#: Parts by a pattern of their modules' names; the first that fits.
PARTS = {
    r"control\.control\.fetch": "fetch",
    r"control\.control\.dispatch": "decode, checks, dispatch",
    r"control\.control\.semaphores": "semaphores",
    r"control\.control\.\w+": "queues of the engines",
    r"control\.registers": "registers, counters",
    r"control\.load": "load: read DMA",
    r"control\.store": "store: write DMA",
    r"control\.reads": "read multiplexer",
    r"control": "state, errors, resets, beats",
}

#: Engines that feed the units: on the first library.
ENGINES = ("quantize_engine", "multiply_engine", "vector_engine")


def parts(report: dict[str, Any]) -> Counter[str]:
    """Area of each part in µm²."""
    areas: Counter[str] = Counter()
    for name, module in report["modules"].items():
        part = next(text for pattern, text in PARTS.items() if re.fullmatch(pattern, name))
        areas[part] += module["instances"] * module["area_um2"]
    return areas


def main() -> None:
    """Measure what has changed, write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="paper")
    parser.add_argument("--pdks", nargs="+", default=["sky130hd", "ihp-sg13g2", "asap7"])
    arguments = parser.parse_args()
    console = Console(highlight=False, soft_wrap=True)
    cfg = load_config(preset=arguments.preset)
    head, columns = ["part"], []
    for pdk in arguments.pdks:
        reports = [point(unit, cfg, pdk, console) for unit in ("control", "mpu")]
        if reports[0] is None or reports[1] is None:
            continue
        areas = parts(reports[0])
        areas["**all**"] = reports[0]["area_um2"]
        head += [f"{pdk}: µm²", "/ MPU"]
        columns.append((areas, reports[1]["area_um2"]))
    rows = []
    for part in [*dict.fromkeys(PARTS.values()), "**all**"]:
        cells = [(f"{areas[part]:,.0f}", f"{areas[part] / mpu:.2%}") for areas, mpu in columns]
        rows.append([part, *(text for pair in cells for text in pair)])
    write_block("synth_control.py", markdown(head, rows), console)

    (pdk, *_), (_, mpu) = arguments.pdks, columns[0]
    measured = {unit.removesuffix("_engine"): point(unit, cfg, pdk, console) for unit in ENGINES}
    figures = {
        name: (report["area_um2"], report["sequential_area_um2"])
        for name, report in measured.items()
        if report is not None
    }
    figures["**all**"] = tuple(map(sum, zip(*figures.values(), strict=True)))
    rows = [
        [name, f"{area:,.0f}", f"{registers / area:.0%}", f"{area / mpu:.2%}"]
        for name, (area, registers) in figures.items()
    ]
    head = ["engine", f"{pdk}: µm²", "flip-flops", "/ MPU"]
    write_block("synth_control.py engines", markdown(head, rows), console)


if __name__ == "__main__":
    main()
