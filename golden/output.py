"""The MPU's output path: tile sums to the layer's binary16 output.

Inverse quantization (vector times scalar) and accumulation (vector plus vector) behind the array
(paper, section 4.2, "Design of MPU").  Roundings are those of :mod:`dstar.golden.linear`, 3 to 5:

1. tile sums are brought to units of ``2**-finest`` and added over the k tiles: exact integers;
2. that sum times ``2**-finest * w_scale`` is rounded to binary16, once;
3. plus last step's output, or the bias at a keyframe: rounded to binary16, once.

Sums beyond binary16 in 2 and 3 saturate at 65504, and say so.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .accumulate import Int64
from .half import carry, round_any, round_sum, saturate


def total_sums(sums: Int64, exponents: npt.NDArray[np.int8], finest: int) -> Int64:
    """Sum over k tiles, exact, in units of ``2**-finest``.

    Parameters
    ----------
    sums:
        int64 (k tiles, ...), each tile in units of ``2**-exponent`` of its own.
    exponents:
        (k tiles,), each tile's last exponent; that of an empty tile does not matter.

    Raises
    ------
    ValueError
        If a tile that is not empty has an exponent above ``finest``.
    """
    total = np.zeros(sums.shape[1:], np.int64)
    for tile, exponent in zip(sums, exponents.tolist(), strict=True):
        if exponent > finest and tile.any():
            raise ValueError(f"exponents must be at most {finest} (finest), got {exponent}")
        total += tile << max(0, finest - exponent)
    return total


def dequantize(
    total: Int64,
    finest: int,
    scale: npt.NDArray[np.float32],
    addend: npt.NDArray[np.float16],
) -> tuple[npt.NDArray[np.float16], bool]:
    """``total * 2**-finest * scale + addend``: binary16 (tokens, out), and whether any saturated.

    ``total``: (tokens, out).  ``scale``: bfloat16 values (out,).  ``addend``: last step's output
    (tokens, out), or the bias (out,), finite.
    """
    factor = np.ldexp(scale.astype(np.float64), -finest)
    product, clipped = saturate(round_any(total.astype(np.float64) * factor))
    y, over = saturate(round_sum(product + carry(addend)))
    return y.astype(np.float16), clipped or over


def output(
    sums: Int64,
    exponents: npt.NDArray[np.int8],
    *,
    finest: int,
    scale: npt.NDArray[np.float32],
    addend: npt.NDArray[np.float16],
) -> tuple[npt.NDArray[np.float16], bool]:
    """The whole path: int64 (k tiles, tokens, out) to binary16 (tokens, out); see above."""
    return dequantize(total_sums(sums, exponents, finest), finest, scale, addend)
