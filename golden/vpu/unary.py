"""The VPU's non-linear functions, bit for bit as the lane computes them.

exp2, reciprocal and reciprocal square root come from tables after range reduction; the others
are the logistic function of something (GELU(x) = x / (1 + 2**-z(x)) in both its forms, with z a
table), and so reuse the first two.  Every step is in integers.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from dstar.gen.config import VectorConfig

from .float import BIAS, FRACTION_BITS, SIGNIFICAND_BITS, Int64, Private, round_private
from .tables import POSITION_BITS, TABLES, build_table

#: Fraction bits of the exponent of two in the range reduction of the non-linear functions.
REDUCED_BITS = 16
#: Bits of a GELU argument: below ``2**3``, in units of ``2**-16``.
FIXED_BITS = 3 + 16

Name = Literal["exp", "reciprocal", "rsqrt", "sigmoid", "silu", "gelu_tanh", "gelu"]
FUNCTIONS: tuple[Name, ...] = (
    "exp",
    "reciprocal",
    "rsqrt",
    "sigmoid",
    "silu",
    "gelu_tanh",
    "gelu",
)
#: Exponent from which a function's argument is treated as infinite.
LARGE = {"exp": 7, "sigmoid": 7, "silu": 7, "gelu_tanh": 3, "gelu": 3}


class Unary:
    """All functions of one configuration.

    A result is the table's value after range reduction, rounded to a private float, to nearest
    even; how far that is from the function is for :mod:`dstar.golden.vpu.generate` to measure.
    """

    def __init__(self, cfg: VectorConfig) -> None:
        self.cfg = cfg
        self.tables = {
            name: build_table(name, segments=cfg.segments, width=cfg.width) for name in TABLES
        }

    def __call__(self, name: Name, x: Private) -> Private:
        """A function of private floats: float32 of any shape, the same shape back."""
        bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.int64)
        sign = bits >> 31
        exponent = ((bits >> 23) & 0xFF) - BIAS
        fraction = (bits >> (23 - FRACTION_BITS)) & ((1 << FRACTION_BITS) - 1)
        sig = np.where(x == 0, 0, fraction | 1 << FRACTION_BITS)
        finite = np.isfinite(x)
        exponent = np.where(finite, exponent, 0)
        compute = getattr(self, f"_{name}") if name in ("exp", "reciprocal", "rsqrt") else None
        if compute is not None:
            value = compute(sign, exponent, fraction, sig)
        else:
            value = self._logistic(name, sign, exponent, sig)
        return special(name, x, round_private(value))

    def _lookup(self, table: str, position: Int64, bits: int) -> Int64:
        """Table at ``position``, an unsigned fraction of ``bits`` bits over the domain."""
        rest = bits - self.cfg.segment_bits
        t = position & ((1 << rest) - 1)
        shift = POSITION_BITS - rest
        t = t << shift if shift >= 0 else t >> -shift
        return self.tables[table].evaluate(position >> rest, t)

    def _exp2(self, z: Int64) -> tuple[Int64, Int64]:
        """``2**(z * 2**-16)`` as mantissa (1 to 2, ``fraction`` fraction bits) and exponent."""
        return self._lookup("exp2", z & ((1 << REDUCED_BITS) - 1), REDUCED_BITS), z >> REDUCED_BITS

    def _inverse(self, position: Int64, bits: int) -> Int64:
        """``1 / (1 + position * 2**-bits)``, ``fraction`` fraction bits."""
        return self._lookup("reciprocal", position, bits)

    def _times_log2_e(self, exponent: Int64, sig: Int64) -> Int64:
        """``|x| * log2(e)`` in units of ``2**-16``, rounded down; |x| below 2**7."""
        product = sig * self.cfg.log2_e
        right = FRACTION_BITS + self.cfg.fraction - REDUCED_BITS - np.minimum(exponent, 6)
        return product >> np.minimum(right, 62)

    def _exp(
        self, sign: Int64, exponent: Int64, fraction: Int64, sig: Int64
    ) -> npt.NDArray[np.float64]:
        z = self._times_log2_e(exponent, sig)
        m, n = self._exp2(np.where(sign == 1, -z, z))
        return np.ldexp(m.astype(np.float64), n - self.cfg.fraction)

    def _reciprocal(
        self, sign: Int64, exponent: Int64, fraction: Int64, sig: Int64
    ) -> npt.NDArray[np.float64]:
        r = self._inverse(fraction, FRACTION_BITS)
        return np.ldexp(
            np.where(sign == 1, -r, r).astype(np.float64), -exponent - self.cfg.fraction
        )

    def _rsqrt(
        self, sign: Int64, exponent: Int64, fraction: Int64, sig: Int64
    ) -> npt.NDArray[np.float64]:
        odd = exponent & 1
        r = self._lookup("rsqrt", odd << FRACTION_BITS | fraction, FRACTION_BITS + 1)
        return np.ldexp(r.astype(np.float64), -(exponent >> 1) - self.cfg.fraction)

    def _logistic(
        self, name: Name, sign: Int64, exponent: Int64, sig: Int64
    ) -> npt.NDArray[np.float64]:
        cfg = self.cfg
        if name in ("sigmoid", "silu"):
            z = self._times_log2_e(exponent, sig)
        else:
            # |x| in units of 2**-16, rounded down, below 2**19.
            fixed = (sig << (FIXED_BITS - SIGNIFICAND_BITS)) >> np.clip(2 - exponent, 0, FIXED_BITS)
            z = self._lookup("logit" if name == "gelu" else "tanh_form", fixed, FIXED_BITS)
            spare = self.tables["logit"].fraction - REDUCED_BITS
            z = z >> spare if spare >= 0 else z << -spare
        m, n = self._exp2(-z)
        one = 1 << cfg.fraction
        drop = cfg.fraction - POSITION_BITS + 1
        narrow = m >> drop
        below = np.where(n == 0, one - 1, (narrow << drop) >> np.minimum(-n, 62))
        r = self._inverse(below, cfg.fraction)
        s = np.where(sign == 1, (r * narrow) >> (POSITION_BITS - 1), r)
        n = np.where(sign == 1, n, 0)
        if name == "sigmoid":
            return np.ldexp(s.astype(np.float64), n - cfg.fraction)
        product = np.where(sign == 1, -s, s) * sig
        return np.ldexp(product.astype(np.float64), n + exponent - cfg.fraction - FRACTION_BITS)


def special(name: Name, x: Private, value: Private) -> Private:
    """IEEE's results for arguments that no table serves, and for arguments beyond the tables."""
    nan, inf, one = np.float32(np.nan), np.float32(np.inf), np.float32(1)
    zero = np.float32(0)
    value = np.where(np.isnan(x), nan, value)
    if name == "reciprocal":
        value = np.where(x == 0, np.copysign(inf, x), value)
        return np.where(np.isinf(x), np.copysign(zero, x), value).astype(np.float32)
    if name == "rsqrt":
        value = np.where(np.isinf(x), zero, value)
        value = np.where(x < 0, nan, value)
        return np.where(x == 0, np.copysign(inf, x), value).astype(np.float32)
    large = np.abs(x) >= np.float32(2.0 ** LARGE[name])
    high, low = {"exp": (inf, zero), "sigmoid": (one, zero)}.get(name, (x, -zero))
    value = np.where(large & (x > 0), high, value)
    value = np.where(large & (x < 0), low, value)
    if name not in ("exp", "sigmoid"):
        value = np.where(x == 0, x, value)
    return value.astype(np.float32)
