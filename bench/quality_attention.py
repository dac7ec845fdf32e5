"""What SAR removes from the attention of the shipped DiT, and what it costs.

Linear layers run in float32, so that PSNR (against the float model, on evaluation images) shows
attention alone.  `--part pruning`: block masks over thr, block sizes and token orders, no reuse,
and a picture.  `--part cache`: ways to keep the scores that PV consumes; bits of a score with
everything that is stored beside it, bytes that move to and from the cache in a step for an image
(interval 2), and PSNR where scores are reused for 1 (not at all), 2 and 4 steps.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from quality_formats import FORMATS

from dstar.golden.dit.model import DiT
from dstar.golden.model.apply import DstarModel
from dstar.golden.model.blocks import Order
from dstar.golden.model.sar import SAR
from dstar.golden.quality.methods import Context, wrap
from dstar.golden.quality.metrics import Floats, psnr
from dstar.golden.quality.pictures import draw_pruning
from dstar.golden.quality.sets import draw_evaluation, shipped_model

BLOCKS = (16, 32, 64)
ORDERS: tuple[Order, ...] = ("raster", "squares")
THRESHOLDS = (1e-4, 2e-3, 4e-3, 1e-2, 3e-2, 1e-1, 2e-1)
INTERVALS = (1, 2, 4)


@dataclass(frozen=True)
class Cost:
    """PSNR in dB, share of attention computed, bytes a step and image, bits of a kept score."""

    psnr: float
    computed: float
    size: float
    bits: float


class Bench:
    """Evaluation images of one seed.

    Parameters
    ----------
    steps, samples:
        Denoising steps, images.
    """

    def __init__(self, steps: int, samples: int) -> None:
        self.context, self.samples = Context(steps), samples
        self.reference = self._draw(shipped_model())

    def _draw(self, model: DiT | DstarModel) -> Floats:
        size = {"steps": self.context.steps, "samples": self.samples}
        return np.concatenate(list(draw_evaluation(model, **size, seed=0)))

    def measure(self, **settings: Any) -> Cost:
        """Draw with SAR."""
        model = wrap(None, SAR(**settings))
        quality = psnr(self._draw(model), self.reference)
        report = model.report()
        moved = [t for a in report.attention.values() for t in a.steps.values() if t.written]
        bits = 8 * sum(t.written for t in moved) / max(1, sum(t.used for t in moved))
        size = report.score_cache_bytes_per_step / self.samples
        return Cost(quality, report.attention_fraction_computed, size, bits)

    def pruning(self, picture: Path) -> None:
        """Print a line for each block size, order and threshold, and draw them."""
        print("block order      thr  blocks pruned  attention  PSNR dB")
        curves: dict[str, list[tuple[float, float]]] = {}
        for block in BLOCKS:
            for order in ORDERS:
                curve = curves.setdefault(f"{block} x {block}, {order}", [])
                for thr in THRESHOLDS:
                    masks = self.context.masks(thr, block, order)
                    text = f"{block:5} {order:8} {thr:6g} {masks.pruned_fraction:14.1%}"
                    if masks.pruned_fraction == 0:
                        print(f"{text} {1:10.1%} {'-':>8}", flush=True)
                        continue
                    cost = self.measure(masks=masks, interval=1, score_bits=None)
                    curve.append((masks.pruned_fraction, cost.psnr))
                    print(f"{text} {cost.computed:10.1%} {cost.psnr:8.1f}", flush=True)
        reuse = self.measure(interval=2, score_bits=None).psnr
        print(f"reuse in every second step, nothing pruned: {reuse:.1f} dB")
        print(draw_pruning(curves, reuse, picture))

    def cache(self) -> None:
        """Print a line for each format of the scores."""
        heads = "".join(f"{f'interval {n}':>12}" for n in INTERVALS)
        print(f"{'scores':34}{'bits':>6}{'cache kB':>10}{'of INT8':>9}{heads}  (PSNR dB)")
        int8 = None
        for name, score_bits in FORMATS.items():
            costs = [self.measure(interval=n, score_bits=score_bits) for n in INTERVALS]
            reused = costs[INTERVALS.index(2)]
            int8 = int8 or reused.size
            print(
                f"{name:34}{reused.bits:6.2f}{reused.size / 1000:10.0f}{reused.size / int8:8.2f}x"
                + "".join(f"{c.psnr:12.1f}" for c in costs),
                flush=True,
            )


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=28)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--part", choices=["pruning", "cache", "all"], default="all")
    parser.add_argument("--out", type=Path, default=Path("out/quality"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    bench = Bench(args.steps, args.samples)
    if args.part != "cache":
        args.out.mkdir(parents=True, exist_ok=True)
        bench.pruning(args.out / "pruning.png")
    if args.part != "pruning":
        bench.cache()


if __name__ == "__main__":
    main()
