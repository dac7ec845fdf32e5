"""Draws ``docs/images/qpu_timeline.png``: the QPU and the MPU behind it, at ``paper``.

``python bench/qpu_timeline.py [--output FILE]`` simulates eight 64 x 128 tiles that are used for
two column tiles each, and prints how long the MPU waited.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt

from dstar.gen.config import PRESETS
from dstar.golden.bins import BinTable
from dstar.verif.qpu.timeline import Timeline, measure


def draw(timeline: Timeline, path: Path) -> None:
    """A Gantt chart with a row for each activity and a colour for each tile."""
    figure, axes = plt.subplots(figsize=(10, 2.8), layout="constrained")
    colours = plt.get_cmap("tab10")
    rows = ("vectors into the QPU", "encoded words into the MPU", "sums out of the MPU")
    for tile, (arrives, leaves) in enumerate(zip(timeline.arrives, timeline.leaves, strict=True)):
        drains = timeline.drains[tile * timeline.products : (tile + 1) * timeline.products]
        for row, spans in enumerate((arrives[None], leaves[None], drains)):
            bars = [(a, b - a + 1) for a, b in spans.tolist()]
            axes.broken_barh(
                bars, (row - 0.38, 0.76), color=colours(tile % 10), edgecolor="white", linewidth=1
            )
            for start, length in bars:
                axes.text(
                    start + length / 2, row, str(tile), ha="center", va="center", color="white"
                )
    axes.set_yticks(range(len(rows)), rows)
    axes.invert_yaxis()
    axes.set_xlabel("cycle")
    axes.set_xlim(left=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_title(
        f"Tiles of {timeline.bits:.1f} bits on average, {timeline.products} column tiles each",
        loc="left",
        fontsize=10,
    )
    figure.savefig(path, dpi=150)


def main() -> None:
    """Measure, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="paper", choices=PRESETS)
    parser.add_argument("--products", type=int, default=2, help="column tiles that use a tile")
    parser.add_argument("--output", type=Path, default=Path("docs/images/qpu_timeline.png"))
    arguments = parser.parse_args()
    mpl.use("Agg")
    with tempfile.TemporaryDirectory() as folder:
        for name, table, scale in (
            ("mixed", BinTable.paper(4), 0.04),
            ("8 bits", BinTable.paper(9), 0.04),
        ):
            timeline = measure(
                PRESETS[arguments.preset],
                Path(folder),
                tiles=8,
                products=arguments.products,
                table=table,
                scale=scale,
            )
            waits = timeline.waits
            print(
                f"{name}: {timeline.bits:.2f} bits, {timeline.products} column tiles a tile: the "
                f"MPU waited {int(waits.sum())} cycles over {len(waits)} products "
                f"(longest {int(waits.max())})"
            )
            if name == "mixed":
                draw(timeline, arguments.output)


if __name__ == "__main__":
    main()
