"""What SAR removes from the attention of the shipped DiT, and what it costs.

Linear layers run in float32, so that PSNR (against the float model, on evaluation images) shows
attention alone.  `--part pruning`: block masks over thr, block sizes and token orders, no reuse.
`--part cache`: bits of the scores that PV consumes, with and without reuse, and the bytes of
scores that move to and from the cache in a step, for an image.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

from dstar.golden.dit.model import DiT
from dstar.golden.model.apply import DstarModel
from dstar.golden.model.blocks import Order
from dstar.golden.model.sar import SAR
from dstar.golden.quality.methods import Context, wrap
from dstar.golden.quality.metrics import Floats, psnr
from dstar.golden.quality.sets import draw_evaluation, shipped_model

BLOCKS = (16, 32, 64)
ORDERS: tuple[Order, ...] = ("raster", "squares")
THRESHOLDS = (1e-4, 2e-3, 1e-2, 3e-2, 1e-1, 2e-1)
BITS = (None, 8, 6, 5, 4, 3, 2)


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

    def measure(self, sar: SAR) -> tuple[float, float, float]:
        """PSNR in dB, attention computed, cache bytes a step and image."""
        model = wrap(None, sar)
        quality = psnr(self._draw(model), self.reference)
        report = model.report()
        size = report.score_cache_bytes_per_step / self.samples
        return quality, report.attention_fraction_computed, size

    def pruning(self) -> None:
        """Print a line for each block size, order and threshold."""
        print("block order      thr  blocks pruned  attention  PSNR dB")
        for block in BLOCKS:
            for order in ORDERS:
                for thr in THRESHOLDS:
                    masks = self.context.masks(thr, block, order)
                    text = f"{block:5} {order:8} {thr:6g} {masks.pruned_fraction:14.1%}"
                    if masks.pruned_fraction == 0:
                        print(f"{text} {1:10.1%} {'-':>8}", flush=True)
                        continue
                    sar = SAR(masks=masks, interval=1, score_bits=None)
                    quality, computed, _ = self.measure(sar)
                    print(f"{text} {computed:10.1%} {quality:8.1f}", flush=True)

    def cache(self) -> None:
        """Print a line for each width of the scores and each interval."""
        print("interval  bits  attention  cache kB  of INT8  PSNR dB")
        for interval in (1, 2, 4):
            int8 = None
            for bits in (8, *(b for b in BITS if b != 8)):
                sar = SAR(interval=interval, score_bits=bits)
                quality, computed, size = self.measure(sar)
                int8 = int8 or size
                ratio = f"{size / int8:7.2f}x" if int8 else f"{'-':>8}"
                print(
                    f"{interval:8} {bits or 'fp16':>5} {computed:10.1%} {size / 1000:9.0f} {ratio} "
                    f"{quality:8.1f}",
                    flush=True,
                )


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=28)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--part", choices=["pruning", "cache", "all"], default="all")
    args = parser.parse_args()
    torch.set_num_threads(1)
    bench = Bench(args.steps, args.samples)
    if args.part != "cache":
        bench.pruning()
    if args.part != "pruning":
        bench.cache()


if __name__ == "__main__":
    main()
