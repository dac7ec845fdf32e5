"""binary16 arithmetic on whole arrays, correctly rounded, without NumPy's slow half ufuncs.

The golden models carry binary16 values either as float16 or as float32 arrays that hold only
binary16 values ("carrier" arrays); every function keeps the type it is given.  A sum of two
binary16 values is formed in binary32 and rounded to binary16.  The two roundings equal one,
because binary32's 24 significand bits are at least 2 * 11 + 2 (Figueroa, 1995).
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

#: Array of binary16 values: float16, or float32 that holds only binary16 values.
Half: TypeAlias = npt.NDArray[np.float16] | npt.NDArray[np.float32]
Float32: TypeAlias = npt.NDArray[np.float32]

#: Largest finite binary16 value.
MAX_HALF = 65504.0
#: Exponent of the smallest positive binary16 value, ``2**-24``: all values are multiples of it.
MIN_EXPONENT = -24

_WIDE = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)


def widen(x: Half) -> Float32:
    """The same values as float32; exact.  A float32 array is returned as it is, not copied."""
    if x.dtype == np.float32:
        return np.asarray(x, np.float32)
    if x.dtype != np.float16:
        raise TypeError(f"activations must be float16 or float32, got {x.dtype}")
    return np.take(_WIDE, np.ascontiguousarray(x).view(np.uint16), mode="clip")


def carry(x: npt.NDArray[np.generic]) -> Float32:
    """Round float16, float32 or float64 values to binary16, as a new carrier array.

    Round to nearest even, subnormals kept, 65520 and beyond to infinity, NaN stays.
    """
    if x.dtype == np.float16:
        return widen(x.astype(np.float16, copy=False))
    if x.dtype == np.float64:
        return round_any(x.astype(np.float64, copy=False))
    if x.dtype != np.float32:
        raise TypeError(f"activations must be float16, float32 or float64, got {x.dtype}")
    wide = np.array(x, np.float32, order="C")
    # Below 2**-14 the spacing is 2**-24, which is that of binary32 around 0.75.
    small = (wide + np.float32(0.75)) - np.float32(0.75)
    is_small = np.abs(wide) < np.float32(2.0**-14)
    np.copyto(round_sum(wide), np.copysign(small, wide), where=is_small)
    return wide


def like(x: Float32, model: Half) -> Half:
    """Carrier array ``x`` in the type of ``model``; exact."""
    return x if model.dtype == np.float32 else x.astype(np.float16)


def round_sum(x: Float32) -> Float32:
    """Round sums of two binary16 values, held in float32, to binary16 in place.

    Round to nearest even.  A magnitude of 65520 or more becomes infinite.  Not for any other
    value: a sum needs no care below ``2**-14``, since it is a multiple of ``2**-24`` already.
    """
    bits = x.view(np.uint32)
    odd = bits >> np.uint32(13)
    odd &= np.uint32(1)
    odd += np.uint32(0xFFF)
    bits += odd
    bits &= np.uint32(0xFFFFE000)
    if x.size and not max(float(x.max()), -float(x.min())) <= MAX_HALF:
        over = np.abs(x) > MAX_HALF
        x[over] = np.copysign(np.float32(np.inf), x[over])
    return x


def round_any(x: npt.NDArray[np.float64]) -> Float32:
    """Round float64 values to binary16, to nearest even, in one rounding; as a carrier array.

    Results beyond the finite range become infinite.
    """
    with np.errstate(over="ignore"):
        return x.astype(np.float16).astype(np.float32)


def saturate(x: Float32) -> tuple[Float32, bool]:
    """Clip infinities to the largest finite binary16 value in place; True if any was clipped.

    NaN does not occur in the sums this is used on: their operands are finite.
    """
    if x.size == 0 or max(float(x.max()), -float(x.min())) <= MAX_HALF:
        return x, False
    np.clip(x, -MAX_HALF, MAX_HALF, out=x)
    return x, True
