"""Ways to keep softmaxed scores that `quality_attention.py --part cache` compares.

Those of SAR, and some that were tried and lost to them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dstar.golden.model.scores import (
    FixedBits,
    HalfScores,
    KeptScores,
    MixedBits,
    ScoreFormat,
    peaks,
)


@dataclass(frozen=True)
class Kept:
    """Scores as floats, with the bits that they would take."""

    values: Tensor
    bits: int | Tensor

    def float(self) -> Tensor:
        """The scores, float32."""
        return self.values


def spread(x: Tensor, rows: int, like: Tensor) -> Tensor:
    """A value a sub-channel to a value a score."""
    return x.repeat_interleave(rows, dim=-2)[..., : like.shape[-2], :]


@dataclass(frozen=True)
class FullScale:
    """A binary16 scale in place of a power of two: the maximum is the largest integer.

    ``zero``: the minimum of a sub-channel, another binary16 value, is kept apart.
    """

    width: int
    zero: bool = False

    @property
    def tag_bits(self) -> int:
        """One or two binary16 values."""
        return 32 if self.zero else 16

    def quantize(self, p: Tensor, rows: int, keys: int) -> KeptScores:
        """Quantize."""
        low = spread(1 - peaks(1 - p, rows), rows, p) if self.zero else torch.zeros_like(p)
        step = (spread(peaks(p, rows), rows, p) - low).clamp(min=2.0**-24) / (2**self.width - 1)
        return Kept(((p - low) / step).round() * step + low, self.width)


@dataclass(frozen=True)
class WholeSlices:
    """As `MixedBits`, but an odd precision is filled up to whole slices, with a finer scale."""

    finer: int
    tag_bits: int = 4

    def quantize(self, p: Tensor, rows: int, keys: int) -> KeptScores:
        """Quantize."""
        mixed = MixedBits(self.finer).quantize(p, rows, keys)
        odd = mixed.bits % 2
        step = spread(torch.exp2(-(mixed.exponent + odd).float()), rows, p)
        most = spread(torch.exp2((mixed.bits + odd).float()) - 1, rows, p)
        return Kept(torch.minimum((p / step).round(), most) * step, mixed.bits + odd)


@dataclass(frozen=True)
class Dropped:
    """Sub-channels with no score above ``share`` of the mean score are dropped, the rest kept."""

    kept: FixedBits
    share: float
    tag_bits: int = 8

    def quantize(self, p: Tensor, rows: int, keys: int) -> KeptScores:
        """Quantize."""
        used = peaks(p, rows) > self.share / keys
        values = self.kept.quantize(p, rows, keys).float() * spread(used, rows, p)
        return Kept(values, used * self.kept.bits)


@dataclass(frozen=True)
class Normalized:
    """Each query's output is divided by the sum of its quantized scores (a column of ones in V)."""

    kept: ScoreFormat

    @property
    def tag_bits(self) -> int:
        """Sums are computed, not stored."""
        return self.kept.tag_bits

    def quantize(self, p: Tensor, rows: int, keys: int) -> KeptScores:
        """Quantize."""
        kept = self.kept.quantize(p, rows, keys)
        values = kept.float()
        return Kept(values / values.sum(-1, keepdim=True).clamp(min=2.0**-14), kept.bits)


#: By name; the first is what the others' bytes are compared with.
FORMATS: dict[str, ScoreFormat] = {
    "8 bits": FixedBits(8),
    "binary16": HalfScores(),
    "6 bits": FixedBits(6),
    "5 bits": FixedBits(5),
    "4 bits": FixedBits(4),
    "3 bits": FixedBits(3),
    "2 bits": FixedBits(2),
    "mixed, T = mean": MixedBits(0),
    "mixed, T = mean / 2": MixedBits(1),
    "mixed, T = mean / 4": MixedBits(2),
    "mixed, T = mean / 2, whole slices": WholeSlices(1),
    "mixed, T = mean / 4, whole slices": WholeSlices(2),
    "mixed, T = mean / 4, normalized": Normalized(MixedBits(2)),
    "4 bits, normalized": Normalized(FixedBits(4)),
    "4 bits, maximum at full scale": FullScale(4),
    "4 bits, full scale and zero point": FullScale(4, zero=True),
    "4 bits, below mean dropped": Dropped(FixedBits(4), 1.0),
    "the same, normalized": Normalized(Dropped(FixedBits(4), 1.0)),
}
