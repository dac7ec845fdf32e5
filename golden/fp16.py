"""binary16 arithmetic on bit patterns: what the hardware's floating-point components compute.

IEEE 754: rounded to nearest even, subnormals kept, no exceptions.  Every invalid operation and
every NaN operand gives the one NaN 0x7E00.  The multiplication and the conversion round an exact
value once; the addition is rounded twice, harmlessly (:mod:`dstar.golden.half`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[np.uint16]

#: The only NaN that an operation gives.
CANONICAL_NAN = 0x7E00


def _pattern(x: npt.NDArray[np.floating]) -> Bits:
    with np.errstate(over="ignore"):
        half = x.astype(np.float16).view(np.uint16)
    return np.where(np.isnan(x), np.uint16(CANONICAL_NAN), half)


def _wide(bits: Bits) -> npt.NDArray[np.float32]:
    return np.ascontiguousarray(bits, np.uint16).view(np.float16).astype(np.float32)


def fp16_add(a: Bits, b: Bits) -> Bits:
    """Patterns of ``a + b``."""
    with np.errstate(invalid="ignore"):
        return _pattern(_wide(a) + _wide(b))


def fp16_multiply(a: Bits, b: Bits) -> Bits:
    """Patterns of ``a * b``; the product of two 11-bit significands is exact in binary32."""
    with np.errstate(invalid="ignore"):
        return _pattern(_wide(a) * _wide(b))


def fp16_from_integer(x: npt.NDArray[np.int64]) -> Bits:
    """Patterns of integers below ``2**53``; infinite from 65520 on."""
    return _pattern(x.astype(np.float64))
