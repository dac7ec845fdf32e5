"""Accumulate: the exact integer sums that the array forms from an encoded tile.

In ascending exponent the array computes ``acc = acc * 2**shift + sum(slice * weight)``; at the
end ``acc[r, n] = sum over c of q[r, c] * 2**(last - f[c]) * w[n, c]``, with no rounding.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .encode import EncodedTile

Int64 = npt.NDArray[np.int64]
#: Exact integers in whichever type computed them.
Integers = npt.NDArray[np.float32] | npt.NDArray[np.float64] | Int64

#: Float types and the magnitude up to which each holds every integer.
_EXACT: tuple[tuple[type[np.floating], int], ...] = ((np.float32, 2**24), (np.float64, 2**53))


def exact_product(a: npt.NDArray[np.generic], b: npt.NDArray[np.generic]) -> Integers:
    """Product of integer matrices (..., m, k) and (k, n), exact.

    Runs in binary32 or binary64 where no partial sum, in whatever order, can leave the integers
    that the type holds exactly, else in int64; the result has the type it ran in.  ``a`` and
    ``b`` may be of any type that holds their integers exactly.

    Raises
    ------
    OverflowError
        If sums could leave int64.
    """
    if a.size == 0 or b.size == 0:
        return np.zeros((*a.shape[:-1], b.shape[-1]), np.float32)
    kind = a.dtype if a.dtype in (np.float32, np.float64) else np.dtype(np.float64)
    rows = np.abs(a, dtype=kind).sum(axis=-1, dtype=np.float64)
    bound = int(rows.max()) * max(abs(int(b.max())), abs(int(b.min())))
    for exact, limit in _EXACT:
        if bound < limit:
            return np.asarray(a.astype(exact, copy=False) @ b.astype(exact, copy=False))
    if bound >= 2**63:
        raise OverflowError(f"sums must stay below 2**63, may reach {bound}")
    return np.asarray(a.astype(np.int64) @ b.astype(np.int64))


def exact_matmul(a: npt.NDArray[np.generic], b: npt.NDArray[np.generic]) -> Int64:
    """:func:`exact_product` as int64."""
    return exact_product(a, b).astype(np.int64)


def accumulate(tile: EncodedTile, weights: npt.NDArray[np.int8]) -> Int64:
    """Sums of one tile: int64 (rows, out), in units of ``2**-tile.last_exponent``.

    Parameters
    ----------
    weights:
        int8 (out, channels); -128 is a legal value.
    """
    if weights.ndim != 2 or weights.shape[1] != tile.channels:
        raise ValueError(f"weights must have shape (out, {tile.channels}), got {weights.shape}")
    shift = tile.last_exponent - tile.exponent.astype(np.int64)
    scaled = tile.values.astype(np.int64) << shift[:, None]
    return exact_matmul(scaled.T, weights.T[tile.channel])
