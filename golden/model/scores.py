"""Softmaxed scores as the PV product takes them in and SAR's cache holds them.

A *sub-channel* is one key of a tile of queries (64 by default), as in FMDQ: it has one precision
and one scale.  Scores are unsigned, so are their quantized values.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from dstar.gen.config import ConfigError

#: Largest scale exponent of a score: all binary16 values are multiples of ``2**-24``.
MAX_EXPONENT = 24
#: Bits that cached scores of one precision may have.
FIXED_BITS = (1, 2, 3, 4, 5, 6, 7, 8)
#: Finest step of :class:`MixedBits`, ``2**-14``: its table then has 16 rows, a tag 4 bits.
FINEST, TAG_BITS = 14, 4


def power(exponent: Tensor) -> Tensor:
    """``2**exponent``, float32, exact."""
    return torch.ldexp(torch.ones_like(exponent, dtype=torch.float32), exponent)


class KeptScores(Protocol):
    """Scores (batch, groups, queries, keys) as they are kept."""

    @property
    def bits(self) -> int | Tensor:
        """Of a score: one number, or by sub-channel, integers (batch, groups, tiles, keys).

        By sub-channel: 0 where all scores are 0, as those of padding are.
        """
        ...

    def float(self) -> Tensor:
        """The scores, float32."""
        ...


class ScoreFormat(Protocol):
    """A way to keep scores."""

    @property
    def tag_bits(self) -> int:
        """Bits that a sub-channel takes beside its scores, for its scale and precision."""
        ...

    def quantize(self, p: Tensor, rows: int, keys: int) -> KeptScores:
        """Keep scores.

        Parameters
        ----------
        p:
            Scores (batch, groups, queries, kept keys), float32, 0 to 1; 0 in padding.
        rows:
            Queries of a tile; the last may have fewer.
        keys:
            Keys of the layer.
        """
        ...


@dataclass(frozen=True)
class Scores:
    """Scores as integers: ``values``, uint8 q, times ``2**-exponent``.

    ``exponent``: int8 (batch, groups, tiles, keys).  ``rows``: queries of a tile.  ``bits``: see
    :class:`KeptScores`.
    """

    values: Tensor
    exponent: Tensor
    rows: int
    bits: int | Tensor

    def float(self) -> Tensor:
        """The scores, float32."""
        queries = self.values.shape[-2]
        return self.values.float().mul_(_spread(power(-self.exponent.int()), self.rows, queries))


@dataclass(frozen=True)
class _Half:
    values: Tensor
    bits: int = 16

    def float(self) -> Tensor:
        return self.values.float()


@dataclass(frozen=True)
class HalfScores:
    """binary16, no tags."""

    tag_bits: int = field(default=0, init=False)

    def quantize(self, p: Tensor, rows: int, keys: int) -> KeptScores:
        """Round to binary16."""
        return _Half(p.half())


def peaks(p: Tensor, rows: int) -> Tensor:
    """Largest score of each sub-channel: (batch, groups, tiles, keys)."""
    padded = functional.pad(p, (0, 0, 0, -p.shape[-2] % rows))
    return padded.reshape(*p.shape[:-2], -1, rows, p.shape[-1]).amax(dim=-2)


def _spread(x: Tensor, rows: int, queries: int) -> Tensor:
    """A value a sub-channel to a value a score."""
    return x.repeat_interleave(rows, dim=-2)[..., :queries, :]


@dataclass(frozen=True)
class FixedBits:
    """The same unsigned bits for every score, and a byte for each sub-channel's scale.

    ``q = rne(p * 2**f)`` with the largest f up to 24 at which the sub-channel's maximum stays
    within ``2**bits - 1``.

    Raises
    ------
    ConfigError
        If ``bits`` is not 1 to 8.
    """

    bits: int
    tag_bits: int = field(default=8, init=False)

    def __post_init__(self) -> None:
        if self.bits not in FIXED_BITS:
            raise ConfigError(f'score_bits must be 1 to 8, "mixed" or None, got {self.bits!r}')

    def quantize(self, p: Tensor, rows: int, keys: int) -> Scores:
        """Quantize."""
        mantissa, exponent = torch.frexp(peaks(p, rows))
        over = mantissa * 2.0**self.bits >= 2.0**self.bits - 0.5
        f = (self.bits - exponent - over.int()).clamp_(max=MAX_EXPONENT)
        q = (p * _spread(power(f), rows, p.shape[-2])).round_()
        return Scores(q.to(torch.uint8), f.to(torch.int8), rows, self.bits)


@dataclass(frozen=True)
class MixedBits:
    """0 to 8 unsigned bits by a sub-channel's largest score M, from a table as FMDQ's bins are.

    The step T is the layer's mean score, ``1 / keys``, times ``2**-finer``, rounded down to a
    power of two and at least ``2**-14``: the error is then about the same for all scores, and
    that of a query that attends evenly does not depend on the number of keys.  With
    ``T = 2**-b``, sub-channels take the first row of a static table that holds M:

    | M up to | bits | scale exponent f |
    |---|---|---|
    | T / 2 | 0 (no slices: the key is skipped, nothing cached) | |
    | 1.5 T, 3.5 T, 7.5 T, 15.5 T, 31.5 T, 63.5 T, 127.5 T | 1, 2, 3, 4, 5, 6, 7 | b |
    | 255.5 T, 511 T, ... 1 | 8 | b, b - 1, ... |

    and ``q = min(rne(p * 2**f), 2**bits - 1)``: as few bits as hold M in steps of T.  There are
    up to 16 rows, so precision and scale are a tag of 4 bits; size in bits: ``queries *
    precision + 4`` for each sub-channel.  PV takes slices of 2 bits; of an odd precision the
    upper one has a single bit.

    Raises
    ------
    ConfigError
        If ``finer`` is not -4 to 4.
    """

    finer: int = 2
    tag_bits: int = field(default=TAG_BITS, init=False)

    def __post_init__(self) -> None:
        if not -4 <= self.finer <= 4:
            raise ConfigError(f"finer must be -4 to 4, got {self.finer}")

    def quantize(self, p: Tensor, rows: int, keys: int) -> Scores:
        """Quantize."""
        table = ScoreTable(min(max((keys - 1).bit_length() + self.finer, 0), FINEST))
        row = torch.bucketize(peaks(p, rows), table.thresholds.to(p.device))
        f = table.exponents.to(p.device)[row]
        bits = table.precisions.to(p.device)[row]
        queries = p.shape[-2]
        q = (p * _spread(power(f), rows, queries)).round_()
        q = torch.minimum(q, _spread(power(bits.int()) - 1, rows, queries))
        return Scores(q.to(torch.uint8), f.to(torch.int8), rows, bits)


@dataclass(frozen=True)
class ScoreTable:
    """Rows of :class:`MixedBits` at the step ``2**-b``, up to the first that holds 1.

    ``thresholds``: float32 (rows,), inclusive upper bounds.  ``precisions``: uint8 bits.
    ``exponents``: int32; 0 at 0 bits.
    """

    b: int

    @cached_property
    def _rows(self) -> list[tuple[float, int, int]]:
        scales = [(precision, self.b) for precision in range(1, 8)]
        scales += [(8, f) for f in range(self.b, 6, -1)]
        rows = [(2.0 ** -(self.b + 1), 0, 0)]
        for precision, f in scales:
            if rows[-1][0] < 1:
                rows.append(((2.0**precision - 0.5) * 2.0**-f, precision, f))
        return rows

    @property
    def thresholds(self) -> Tensor:
        """Largest score of each row, inclusive."""
        return torch.tensor([row[0] for row in self._rows])

    @property
    def precisions(self) -> Tensor:
        """Bits of each row."""
        return torch.tensor([row[1] for row in self._rows], dtype=torch.uint8)

    @property
    def exponents(self) -> Tensor:
        """Scale exponent of each row."""
        return torch.tensor([row[2] for row in self._rows], dtype=torch.int32)


def score_format(score_bits: int | Literal["mixed"] | ScoreFormat | None) -> ScoreFormat:
    """The format that SAR's setting names: see :class:`~dstar.golden.model.sar.SAR`.

    Raises
    ------
    ConfigError
        If it names none.
    """
    if score_bits is None:
        return HalfScores()
    if score_bits == "mixed":
        return MixedBits()
    if isinstance(score_bits, (int, str)):
        return FixedBits(score_bits)
    return score_bits
