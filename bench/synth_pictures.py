"""Draw what :mod:`synth_table` and :mod:`synth_sweep` measured, into ``docs/images``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt

OUTPUT = Path("out") / "synth"
IMAGES = Path("docs") / "images"
_OURS, _INT8 = "#1f6f8b", "#c06c34"


def ratios(reports: list[dict[str, Any]]) -> None:
    """Area and delay of the PE over those of the INT8 PE, by library."""
    compared = [r for r in reports if r["unit"] == "pe" and "reference" in r]
    figure, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
    places = range(len(compared))
    for offset, key, color, label in (
        (-0.2, "area_ratio", _OURS, "area"),
        (0.2, "delay_ratio", _INT8, "delay"),
    ):
        values = [r["reference"][key] for r in compared]
        bars = axes.bar([p + offset for p in places], values, 0.38, color=color, label=label)
        axes.bar_label(bars, fmt="%.2f", fontsize=8)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xticks(list(places), [r["pdk"] for r in compared])
    axes.set_ylabel("ratio to the INT8 PE")
    axes.set_title("PE with its share of operand registers, pre-layout")
    axes.set_ylim(0, 1.3)
    axes.legend(loc="upper right", ncols=2)
    figure.savefig(IMAGES / "area-pe-ratios.png", dpi=130)


def sweep(points: list[dict[str, Any]]) -> None:
    """Area against delay over clock targets and recipes, a panel a library."""
    names = list(dict.fromkeys(p["pdk"] for p in points))
    figure, panels = plt.subplots(
        1, len(names), figsize=(5 * len(names), 3.8), layout="constrained", squeeze=False
    )
    for axes, name in zip(panels[0], names, strict=True):
        for recipe, marker in (("small", "o"), ("fast", "s")):
            chosen = [p for p in points if p["pdk"] == name and p["recipe"] == recipe]
            for prefix, color, label in (("", _OURS, "PE"), ("int8_", _INT8, "INT8 PE")):
                axes.plot(
                    [p[f"{prefix}delay_ps"] for p in chosen],
                    [p[f"{prefix}area_um2"] for p in chosen],
                    marker,
                    color=color,
                    label=f"{label}, recipe {recipe}",
                )
        axes.set_title(name)
        axes.set_xlabel("delay (ps, pre-layout)")
        axes.set_ylabel("area a PE (µm²)")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.savefig(IMAGES / "area-pe-sweep.png", dpi=130)


def breakdown(reports: list[dict[str, Any]]) -> None:
    """Standard-cell area of the MPU by module, each library to 1."""
    mpus = [r for r in reports if r["unit"] == "mpu"]
    if not mpus:
        return
    figure, axes = plt.subplots(figsize=(7, 1.2 + 0.4 * len(mpus)), layout="constrained")
    array = ("pe_tile_", "pe_row_")
    groups = {
        "PE blocks": lambda n: n.startswith(array) and "offset" not in n,
        "offset row": lambda n: "offset" in n,
        "front end, skew, drain": lambda n: not n.startswith(array),
    }
    left = [0.0] * len(mpus)
    for (label, belongs), color in zip(groups.items(), (_OURS, "#7fb7c9", _INT8), strict=True):
        values = [
            sum(
                module["instances"] * module["area_um2"]
                for name, module in r["modules"].items()
                if belongs(name)
            )
            / r["area_um2"]
            for r in mpus
        ]
        shares = f"{label} ({min(values):.1%} to {max(values):.1%})"
        axes.barh([r["pdk"] for r in mpus], values, left=left, color=color, label=shares)
        left = [a + b for a, b in zip(left, values, strict=True)]
    axes.set_xlabel("share of the MPU's standard cells (memories apart)")
    axes.set_xlim(0, 1)
    figure.legend(fontsize=8, loc="outside upper center", ncols=3)
    figure.savefig(IMAGES / "area-mpu.png", dpi=130)


def main() -> None:
    """Draw what there is."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    table, swept = OUTPUT / "table.json", OUTPUT / "sweep.json"
    if table.is_file():
        reports = json.loads(table.read_text())["reports"]
        ratios(reports)
        breakdown(reports)
    if swept.is_file():
        sweep(json.loads(swept.read_text())["points"])


if __name__ == "__main__":
    main()
