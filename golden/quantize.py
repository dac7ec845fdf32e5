"""Difference, quantize and reconstruct: the arithmetic of FMDQ before the slices.

Tensors are ``(..., tokens, channels)`` of binary16 values, as float16 or as float32 carriers
(:mod:`dstar.golden.half`).  A tile is ``rows`` consecutive tokens, the last one possibly fewer; a
sub-channel is one channel of a tile.  Per-sub-channel results are ``(..., tiles, channels)``.
Missing tokens of a ragged tile count as zeros, so they change nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .bins import BinTable
from .half import Float32, Half, like, round_sum, saturate, widen

#: Tokens of a tile unless told otherwise (R of the paper).
ROWS = 64


def tile_count(tokens: int, rows: int) -> int:
    """Tiles that hold ``tokens`` tokens."""
    return -(-tokens // rows)


def difference(x: Half, reference: Half | None) -> Half:
    """``x - reference`` in binary16, rounded to nearest even.

    ``reference`` is the reconstructed activation of the last step (mode ``reconstructed``), its
    true one (mode ``previous``), or None at a keyframe, where the difference is x itself.
    Subnormals are kept; a difference beyond the finite range is infinite.
    """
    if reference is None:
        return x.copy()
    with np.errstate(invalid="ignore"):
        return like(round_sum(widen(x) - widen(reference)), x)


@dataclass(frozen=True, eq=False)
class Quantized:
    """Quantized sub-channels of one tensor.

    ``q``: int8 (..., tokens, channels).  ``precision``: uint8 (..., tiles, channels), 0 to 8
    bits.  ``exponent``: int8 (..., tiles, channels), f of ``q = rne(d * 2**f)``; 0 at precision
    0.  ``rows``: tokens of a full tile.  ``nonfinite``: sticky flag, some value was NaN or
    infinite.
    """

    q: npt.NDArray[np.int8]
    precision: npt.NDArray[np.uint8]
    exponent: npt.NDArray[np.int8]
    rows: int
    nonfinite: bool

    def step(self) -> Float32:
        """Weight ``2**-f`` of one unit of q, for each sub-channel: float32."""
        return np.ldexp(np.float32(1), -self.exponent.astype(np.int32))

    @property
    def average_bits(self) -> float:
        """Mean precision over all values of the tensor, in bits; 0 for an empty tensor."""
        tokens = self.q.shape[-2]
        if self.q.size == 0:
            return 0.0
        sizes = np.diff(np.append(np.arange(0, tokens, self.rows), tokens))
        per_tile = self.precision.sum(axis=-1, dtype=np.int64)
        return float((per_tile * sizes).sum() / self.q.size)


def per_token(values: Float32, tokens: int, rows: int) -> Float32:
    """Repeat per-tile values (..., tiles, channels) for every token (..., tokens, channels)."""
    if values.shape[-2] == 1:
        return values
    return np.repeat(values, rows, axis=-2)[..., :tokens, :]


def magnitude(d: Float32, rows: int = ROWS) -> Float32:
    """Largest magnitude of each sub-channel: (..., tokens, channels) to (..., tiles, channels).

    The order is that of the 15 bits below the sign: NaN exceeds infinity.
    """
    full = d.shape[-2] // rows * rows
    tiled = d[..., :full, :].reshape(*d.shape[:-2], -1, rows, d.shape[-1])
    peak: Float32 = np.maximum(tiled.max(axis=-2), -tiled.min(axis=-2))
    if full == d.shape[-2]:
        return peak
    rest = np.abs(d[..., full:, :]).max(axis=-2, keepdims=True)
    return np.concatenate([peak, rest], axis=-2)


def quantize(d: Half, table: BinTable, rows: int = ROWS) -> Quantized:
    """Quantize differences at the precision and scale that the table gives each sub-channel.

    ``q = clip(rne(d * 2**f), -(2**(p-1) - 1), 2**(p-1) - 1)``, exact up to the rounding, which
    is to nearest even.  NaN quantizes to 0, infinities clip, either sets ``nonfinite``.
    """
    if d.shape[-2] == 0 or d.shape[-1] == 0:
        raise ValueError(f"a tensor must have tokens and channels, got shape {d.shape}")
    wide = widen(d)
    tokens = wide.shape[-2]
    peak = magnitude(wide, rows)
    nonfinite = not bool(np.isfinite(peak).all())
    index = table.lookup(peak)
    scales = np.ldexp(np.float32(1), table.exponents.astype(np.int32))
    limits = (2.0 ** (table.precisions.astype(np.float32) - 1) - 1).clip(0).astype(np.float32)
    with np.errstate(invalid="ignore"):
        value: Float32 = wide * per_token(scales[index], tokens, rows)
        np.rint(value, out=value)
        limit = per_token(limits[index], tokens, rows)
        np.minimum(value, limit, out=value)
        np.maximum(value, -limit, out=value)
    if nonfinite:
        value[np.isnan(value)] = 0
    return Quantized(
        value.astype(np.int8), table.precisions[index], table.exponents[index], rows, nonfinite
    )


def reconstruct(reference: Half | None, quantized: Quantized) -> tuple[Half, bool]:
    """The activation that the quantized differences add up to: ``reference + q * 2**-f``.

    ``q * 2**-f`` is a binary16 value for every legal table (:class:`~dstar.golden.bins.BinTable`),
    so this is one binary16 addition: one rounding of the exact sum, to nearest even.  A sum
    beyond the finite range saturates at 65504, so that a reference is always finite.

    Returns
    -------
    The new reference, in the type of ``reference`` (float16 at a keyframe, where it is None),
    and whether any value saturated.
    """
    tokens = quantized.q.shape[-2]
    step: Float32 = quantized.q * per_token(quantized.step(), tokens, quantized.rows)
    if reference is None:
        return step.astype(np.float16), False
    step += widen(reference)
    total, clipped = saturate(round_sum(step))
    return like(total, reference), clipped
