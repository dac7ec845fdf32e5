"""Means with 95 % intervals over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

#: Quantile 0.975 of Student's t for 1 to 30 degrees of freedom.
T975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


def t975(freedom: int) -> float:
    """Quantile 0.975 of Student's t, to 1e-3; beyond 30 degrees of freedom by its expansion."""
    if freedom < 1:
        raise ValueError(f"degrees of freedom must be at least 1, got {freedom}")
    if freedom <= len(T975):
        return T975[freedom - 1]
    z = 1.959964
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    return z + (z**3 + z) / (4 * freedom) + second


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
    half = t975(len(values) - 1) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)
