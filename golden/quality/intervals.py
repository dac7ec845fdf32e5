"""Means with 95 % intervals over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.stats


@dataclass(frozen=True)
class Interval:
    """A mean and its 95 % interval; the bounds are None where there is only one value."""

    mean: float
    low: float | None
    high: float | None

    def overlaps(self, other: Interval) -> bool:
        """Whether the two intervals share a value.

        Raises
        ------
        ValueError
            If either has no bounds.
        """
        bounds = (self.low, other.high), (other.low, self.high)
        if any(low is None or high is None for low, high in bounds):
            raise ValueError("intervals overlap or not only with at least two seeds each")
        return all(low <= high for low, high in bounds)  # type: ignore[operator]

    def as_dict(self) -> dict[str, float | None]:
        """For JSON: mean, low, high; an infinity (a PSNR of equal images) becomes None."""
        values = {"mean": self.mean, "low": self.low, "high": self.high}
        return {k: v if v is not None and math.isfinite(v) else None for k, v in values.items()}


def over_seeds(values: Sequence[float]) -> Interval:
    """Mean of one value a seed, with Student's t interval: seeds are independent draws."""
    mean = float(np.mean(values))
    if len(values) < 2 or not math.isfinite(mean):
        return Interval(mean, None, None)
    quantile = float(scipy.stats.t.ppf(0.975, len(values) - 1))
    half = quantile * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)
