"""Counts of quantized sub-channels by precision and exponent."""

from __future__ import annotations

import torch

from ..fmdq_torch import TorchQuantized
from ..quantize import tile_count
from .method import LinearStats


def count(done: TorchQuantized, rows: int, *, clipped: bool = False) -> LinearStats:
    """What the report keeps of a step of FMDQ; ``clipped``: some output saturated."""
    tokens = done.x_hat.shape[1]
    sizes = torch.full((tile_count(tokens, rows), 1), float(rows), device=done.precision.device)
    sizes[-1] = tokens - rows * (len(sizes) - 1)
    place = done.precision.int() * 32 + done.exponent + 32
    weights = sizes.expand(done.precision.shape[-2:]).expand_as(place)
    counts = torch.bincount(place.flatten(), weights.flatten(), minlength=5 * 64)
    histogram = counts.view(5, 64).long().cpu()
    per_precision = histogram.sum(dim=1).tolist()
    return LinearStats(
        values=done.x_hat.numel(),
        bits=float(sum(2 * i * n for i, n in enumerate(per_precision))),
        skipped=int(per_precision[0]),
        nonfinite=done.nonfinite,
        saturated=done.saturated or clipped,
        histogram=histogram,
    )
