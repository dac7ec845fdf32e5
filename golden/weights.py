"""Weights: symmetric integers with one scale per output channel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .half import Float32

#: Smallest scale: the smallest normal bfloat16.
MIN_SCALE = np.float32(2.0**-126)


@dataclass(frozen=True, eq=False)
class QuantizedWeight:
    """Weights ``q * scale`` of a linear layer.

    ``q``: int8 (out, in), in ``-(2**(bits-1) - 1) .. 2**(bits-1) - 1``; -128 never occurs.
    ``scale``: float32 (out,), positive bfloat16 values: 8 significand bits keep the hardware's
    scaling multiplier small, and the exponent range of binary32 holds the scale of any float16
    or bfloat16 row, which binary16 does not.
    """

    q: npt.NDArray[np.int8]
    scale: Float32

    def dequantize(self) -> Float32:
        """The weights that the integers stand for: float32 (out, in), exact."""
        values: Float32 = self.q * self.scale[:, None]
        return values


def quantize_weight(w: npt.NDArray[np.generic], *, bits: int = 8) -> QuantizedWeight:
    """Quantize weights (out, in), symmetrically and per output channel.

    The scale is the row's largest magnitude over ``2**(bits-1) - 1``, rounded up to bfloat16, so
    that nothing clips; q is rounded to nearest even.  A row of zeros gets scale 1.

    Raises
    ------
    ValueError
        If ``w`` is not a matrix, or holds a NaN or infinity (the message names the position).
    """
    if w.ndim != 2:
        raise ValueError(f"weights must have shape (out, in), got {w.shape}")
    wide = w.astype(np.float64)
    if not np.isfinite(wide).all():
        row, column = np.argwhere(~np.isfinite(wide))[0]
        raise ValueError(f"weights must be finite, got {w[row, column]} at [{row}, {column}]")
    limit = 2 ** (bits - 1) - 1
    peak = np.abs(wide).max(axis=1, initial=0.0)
    scale = np.where(peak > 0, _up_to_bfloat16(peak / limit), np.float32(1))
    q = np.rint(wide / scale[:, None].astype(np.float64)).clip(-limit, limit)
    return QuantizedWeight(q.astype(np.int8), scale.astype(np.float32))


def _up_to_bfloat16(x: npt.NDArray[np.float64]) -> Float32:
    """Smallest normal bfloat16 value that is not below each positive ``x``."""
    mantissa, exponent = np.frexp(x)
    value = np.ldexp(np.ceil(np.ldexp(mantissa, 8)), exponent - 8)
    scale: Float32 = np.maximum(value, np.float64(MIN_SCALE)).astype(np.float32)
    return scale
