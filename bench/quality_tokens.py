"""What longer sequences change: attention blocks that may be pruned at 256, 1024, 4096 tokens.

The shipped weights look at digits enlarged to 32, 64 and 128 pixels, noised at evenly spaced
times, with the position embedding stretched to the same image.  The model was trained at 256
tokens alone, so this shows the tendency, not images.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np
import torch

from dstar.golden.dit.data import enlarge, load_source
from dstar.golden.dit.forward import frequencies
from dstar.golden.dit.model import DiT, load_model
from dstar.golden.dit.spec import DIGITS
from dstar.golden.dit.weights import load_weights
from dstar.golden.model.apply import apply
from dstar.golden.model.blocks import Order
from dstar.golden.model.masks import AttentionProfile

THRESHOLDS = (1e-4, 2e-3, 1e-2, 5e-2)
ORDERS: tuple[Order, ...] = ("raster", "squares")


def stretched(scale: int) -> DiT:
    """The shipped model on images ``scale`` times as large, positions at their old distances."""
    spec = replace(DIGITS, image=DIGITS.image * scale)
    model = load_model(load_weights(), spec)
    place = (np.arange(spec.grid) + 0.5) / scale - 0.5
    angles = place[:, None] * frequencies(spec.hidden // 4)
    axis = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    rows, columns = np.repeat(axis, spec.grid, axis=0), np.tile(axis, (spec.grid, 1))
    model.pos = torch.from_numpy(np.concatenate([rows, columns], axis=1)).float()
    return model


@torch.inference_mode()
def mass(scale: int, order: Order, images: int, times: int) -> AttentionProfile:
    """Attention mass over noised images."""
    model, profile = stretched(scale), AttentionProfile(block=64, order=order)
    wrapped = apply(model, attention=profile)
    source, classes = load_source()
    clean = torch.from_numpy(enlarge(source[:images], model.spec.image))[:, None]
    noise = torch.randn(clean.shape, generator=torch.Generator().manual_seed(0))
    for step in range(times):
        t = 1 - (step + 0.5) / times
        for x, eps, label in zip(clean, noise, classes, strict=False):
            mixed = (1 - t) * x + t * eps
            wrapped(mixed[None], torch.tensor([t]), torch.tensor([label]))
    return profile


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=2)
    parser.add_argument("--times", type=int, default=4)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("blocks of 64 tokens pruned at thr")
    print(f"{'tokens':>6} {'order':8}" + "".join(f"{thr:>8g}" for thr in THRESHOLDS))
    for scale in (1, 2, 4):
        for order in ORDERS:
            profile = mass(scale, order, args.images, args.times)
            shares = [profile.masks(thr).pruned_fraction for thr in THRESHOLDS]
            tokens = DIGITS.tokens * scale**2
            print(f"{tokens:6} {order:8}" + "".join(f"{s:8.1%}" for s in shares), flush=True)


if __name__ == "__main__":
    main()
