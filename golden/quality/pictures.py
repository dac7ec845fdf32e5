"""Pictures of a quality run: samples, bits, exponents, scores, quality against bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from dstar.golden.model.masks import AttentionProfile, BlockMasks

from .metrics import Floats
from .runner import Run
from .sets import LAYERS
from .summary import Row


def _plot() -> Any:
    """Pyplot without a screen."""
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def _save(figure: Any, path: Path) -> Path:
    # No software name in the file, so that it changes only when the picture does.
    figure.savefig(path, dpi=110, bbox_inches="tight", metadata={"Software": None})
    _plot().close(figure)
    return path


def draw_samples(images: Mapping[str, Floats], path: Path, columns: int = 10) -> Path:
    """The first images of each method, a row a method; a column has one noise and class.

    Parameters
    ----------
    images:
        By method, (n, 1, side, side).
    """
    columns = min(columns, *(len(x) for x in images.values()))
    rows = [np.concatenate(list(x[:columns, 0]), axis=1) for x in images.values()]
    sheet, side = np.concatenate(rows), rows[0].shape[0]
    figure, axes = _plot().subplots(
        figsize=(1.6 + 0.42 * columns, 0.42 * len(rows)), layout="constrained"
    )
    axes.imshow(sheet, cmap="gray", vmin=-1, vmax=1)
    axes.set_xticks([])
    axes.set_yticks(side * (np.arange(len(rows)) + 0.5), list(images), fontsize=8)
    for edge in range(side, sheet.shape[0], side):
        axes.axhline(edge - 0.5, color="white", linewidth=1.5)
    axes.tick_params(length=0)
    return _save(figure, path)


def draw_bits(run: Run, name: str, path: Path) -> Path:
    """Average bits of each layer and step."""
    figure, axes = _plot().subplots(figsize=(8, 4.6), layout="constrained")
    image = axes.imshow(run.bits, cmap="viridis", vmin=0, vmax=8, aspect="auto")
    axes.set_yticks(range(len(LAYERS)), [n.removeprefix("blocks.") for n in LAYERS], fontsize=8)
    axes.set_xlabel("denoising step (0: keyframe)")
    axes.set_title(f"{name}: average bits of the activations", fontsize=10)
    figure.colorbar(image, ax=axes, label="bits")
    return _save(figure, path)


def draw_exponents(run: Run, name: str, path: Path) -> Path:
    """How many values take each precision and scale exponent."""
    counts = run.histogram / max(1, run.histogram.sum())
    used = np.flatnonzero(counts[1:].sum(0))
    axis = np.arange(used.min(), used.max() + 1)
    figure, axes = _plot().subplots(figsize=(7, 3.4), layout="constrained")
    below = np.zeros(len(axis))
    colors = _plot().get_cmap("viridis")(np.linspace(0.1, 0.9, 4))
    for i, color in zip(range(1, 5), colors, strict=True):
        share = 100 * counts[i, axis]
        axes.bar(axis - 32, share, bottom=below, label=f"{2 * i} bits", color=color)
        below += share
    axes.set_xlabel("scale exponent f: values are q / 2^f")
    axes.set_ylabel("% of all values")
    axes.set_title(f"{name}: {counts[0].sum():.1%} more of the values are skipped", fontsize=10)
    axes.legend(fontsize=8)
    return _save(figure, path)


def draw_scores(profile: AttentionProfile, masks: BlockMasks, path: Path) -> Path:
    """Attention mass by block for each layer and head; pruned blocks are crossed out."""
    names = list(profile.layers)
    heads = profile.layers[names[0]].sums.shape[0]
    figure, grid = _plot().subplots(
        len(names),
        heads,
        figsize=(1.9 * heads, 1.9 * len(names) + 0.5),
        layout="constrained",
        squeeze=False,
    )
    for row, name in zip(grid, names, strict=True):
        for head, axes in enumerate(row):
            mass = profile.layers[name].sums[head].numpy()
            mass = mass / mass.sum(1, keepdims=True)
            axes.imshow(np.log10(mass.clip(1e-6)), cmap="magma", vmin=-4, vmax=0)
            y, x = np.nonzero(~masks.layers[name].keep[head].numpy())
            axes.plot(x, y, "x", color="cyan", markersize=3)
            axes.set_xticks([])
            axes.set_yticks([])
            axes.set_title(f"{name.removeprefix('blocks.')}, head {head}", fontsize=7)
    figure.suptitle(
        f"log10 of the share of a query block's attention mass, -4 to 0; blocks of "
        f"{profile.block} tokens, order {profile.order}\n"
        f"crossed out: pruned at thr {masks.thr:g} ({masks.pruned_fraction:.1%} of the blocks)",
        fontsize=9,
    )
    return _save(figure, path)


def draw_pruning(
    curves: Mapping[str, Sequence[tuple[float, float]]], reuse: float, path: Path
) -> Path:
    """PSNR against the share of pruned blocks, a line a block size and order.

    Parameters
    ----------
    curves:
        By name, points (share pruned, PSNR in dB) over thresholds.
    reuse:
        PSNR of reuse in every second step, for comparison.
    """
    figure, axes = _plot().subplots(figsize=(7.5, 4.2), layout="constrained")
    colors = _plot().get_cmap("viridis")(np.linspace(0.1, 0.8, -(-len(curves) // 2)))
    for i, (name, points) in enumerate(curves.items()):
        share, psnr = np.array(points).T
        style = "o-" if i % 2 == 0 else "s--"
        axes.plot(100 * share, psnr, style, color=colors[i // 2], markersize=4, label=name)
    axes.axhline(reuse, color="gray", linewidth=1, label="interval 2, nothing pruned")
    axes.set_xlabel("pruned blocks, %")
    axes.set_ylabel("PSNR against the float model, dB")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return _save(figure, path)


def draw_curve(rows: Sequence[Row], path: Path) -> Path:
    """PSNR against average bits: a line for each difference mode, a point for other methods."""
    figure, axes = _plot().subplots(figsize=(7.5, 4.6), layout="constrained")
    curves = {"reconstructed": "fmdq", "previous": "fmdq-previous"}
    left = [row for row in rows if np.isfinite(row.psnr_db.mean)]
    for mode, name in curves.items():
        points = [r for r in left if r.method == name or r.method.startswith(f"{name}-x")]
        points.sort(key=lambda r: r.average_bits.mean)
        if points:
            bits, psnr = (
                [getattr(r, field).mean for r in points] for field in ("average_bits", "psnr_db")
            )
            axes.plot(bits, psnr, "o-", markersize=4, label=f"FMDQ, {mode} differences")
            left = [r for r in left if r not in points]
    for row in left:
        x, y = row.average_bits.mean, row.psnr_db.mean
        axes.plot(x, y, "k.", markersize=5)
        axes.annotate(row.method, (x, y), xytext=(4, 3), textcoords="offset points", fontsize=7)
    axes.margins(x=0.08)
    axes.set_xlabel("average bits of an activation value")
    axes.set_ylabel("PSNR against the float model, dB")
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8, loc="lower right")
    return _save(figure, path)
