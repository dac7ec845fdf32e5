"""Draw the sample grid of the documentation: `python -m dstar.golden.dit.grid`.

One column a class, one row a seed, with classifier-free guidance.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from .forward import Floats
from .sampler import DEFAULT_STEPS, sample
from .spec import DIGITS
from .weights import load_weights

OUT = Path("docs/images/dit_samples.png")
GAP = 4
"""White pixels between samples."""


def draw(rows: list[Floats], seeds: list[int], title: str, out: Path) -> None:
    """Write a grid of images; `rows` holds one array (classes, 1, side, side) a seed."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    side = DIGITS.image + GAP
    half = GAP // 2
    frame = ((0, 0), (half, half), (half, half))
    padded = [np.pad(row[:, 0], frame, constant_values=-1.0) for row in rows]
    sheet = np.concatenate([np.concatenate(list(row), axis=1) for row in padded])
    height, width = sheet.shape
    figure, axes = plt.subplots(figsize=(width / 50, height / 50 + 0.9), layout="constrained")
    axes.imshow(sheet, cmap="gray_r", vmin=-1.0, vmax=1.0, interpolation="nearest")
    axes.set_xticks(np.arange(side / 2, width, side) - 0.5, [str(c) for c in range(width // side)])
    axes.set_yticks(np.arange(side / 2, height, side) - 0.5, [str(seed) for seed in seeds])
    for edge in range(side, width, side):
        axes.axvline(edge - 0.5, color="silver", linewidth=0.6)
    for edge in range(side, height, side):
        axes.axhline(edge - 0.5, color="silver", linewidth=0.6)
    axes.tick_params(length=0)
    axes.set_xlabel("class asked for")
    axes.set_ylabel("seed of the noise")
    axes.set_title(title, fontsize=10)
    out.parent.mkdir(parents=True, exist_ok=True)
    # No software name or date in the file, so that it changes only when the picture does.
    figure.savefig(out, dpi=110, bbox_inches="tight", metadata={"Software": None})
    plt.close(figure)


def main() -> None:
    """Read the command line, sample, and draw."""
    parser = argparse.ArgumentParser(description="Draw the sample grid of the documentation.")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--steps", type=int, default=DEFAULT_STEPS)
    parser.add_argument("--seeds", type=int, default=6, help="rows")
    parser.add_argument("--guidance", type=float, default=2.0, help="1 is none")
    args = parser.parse_args()
    weights, seeds = load_weights(), list(range(args.seeds))
    classes = range(DIGITS.classes)
    try:
        rows = [
            sample(weights, classes=classes, steps=args.steps, seed=s, guidance=args.guidance)
            for s in seeds
        ]
    except ValueError as error:
        parser.error(str(error))
    title = f"{DIGITS.image}x{DIGITS.image} samples, {args.steps} Euler steps"
    if args.guidance != 1.0:
        title += f", guidance {args.guidance:g}"
    draw(rows, seeds, title, args.out)
    print(args.out)


if __name__ == "__main__":
    main()
