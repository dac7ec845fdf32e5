"""Error plots of the VPU's functions: ``python bench/vpu_plots.py`` writes ``docs/images/vpu_*``.

Each plot shows, for every finite binary16 argument, the error of the golden model in units in the
last place against float64.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np

from dstar.gen.config import VectorConfig
from dstar.golden.vpu.generate import Accuracy, measure, report
from dstar.golden.vpu.unary import FUNCTIONS

mpl.use("Agg")
import matplotlib.pyplot as plt

_ALL = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float64)
#: Arguments beyond these give results that are exact by definition, or zero.
_WINDOW = {"exp": (-18, 12), "sigmoid": (-18, 12), "silu": (-24, 12)}
_GELU_WINDOW = (-7, 7)


def plot(accuracy: Accuracy, path: Path) -> None:
    """One function: argument against error."""
    errors = np.where(np.isfinite(accuracy.errors), accuracy.errors, np.nan)
    figure, axes = plt.subplots(figsize=(7, 2.6), layout="constrained")
    if accuracy.name in ("reciprocal", "rsqrt"):
        keep = np.isfinite(_ALL) & (_ALL > 0)
        axes.set_xscale("log", base=2)
    else:
        low, high = _WINDOW.get(accuracy.name, _GELU_WINDOW)
        keep = (low <= _ALL) & (high >= _ALL)
    axes.plot(_ALL[keep], errors[keep], ",", color="tab:blue")
    axes.axhline(1, color="tab:red", linewidth=0.8)
    axes.axhline(0.5, color="tab:gray", linewidth=0.8, linestyle=":")
    axes.set(
        xlabel="argument",
        ylabel="error (ulp)",
        ylim=(0, 1.1),
        title=f"{accuracy.name}: at most {accuracy.worst:.3f} ulp, at {accuracy.worst_at:g}",
    )
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


def main(folder: Path) -> int:
    """Plot every function of the default configuration."""
    cfg = VectorConfig()
    print(report(cfg))
    for name in FUNCTIONS:
        plot(measure(name, cfg), folder / f"vpu_{name}.png")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(__file__).parent.parent / "docs" / "images"))
