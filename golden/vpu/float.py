"""The VPU's private float, and its exact accumulator.

A register of the VPU holds a sign, 8 exponent bits and 13 fraction bits: binary32 with the
fraction cut short, and with subnormals flushed to zero.  Three bits more than binary16's fraction
keep an intermediate rounding at a sixteenth of a unit in the last place of a binary16 result.
Arrays of private floats are float32 arrays that hold only such values.

Sums over a stream are not formed in that float but in a fixed-point register, exactly, so that
they do not depend on any order.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dstar.gen.config import PRIVATE_FRACTION_BITS

Private = npt.NDArray[np.float32]
Half = npt.NDArray[np.float16]
Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

#: Stored fraction bits; the significand has one more.
FRACTION_BITS = PRIVATE_FRACTION_BITS
#: Significand bits, the leading one included.
SIGNIFICAND_BITS = FRACTION_BITS + 1
#: Stored exponent bits and what a stored exponent exceeds the true one by.
EXPONENT_BITS, BIAS = 8, 127
#: Bits of a private float.
WIDTH = 1 + EXPONENT_BITS + FRACTION_BITS

_DROP = 52 - FRACTION_BITS
_SMALLEST, _BEYOND = 2.0**-126, 2.0**128


def round_private(x: npt.NDArray[np.float64]) -> Private:
    """Round float64 values to private floats, to nearest even.

    Magnitudes that are below ``2**-126`` after rounding become zero, those of ``2**128`` and
    more infinite, both with their sign; NaN becomes the one NaN 0x7FC000.
    """
    bits = np.ascontiguousarray(x, np.float64).view(np.int64)
    bits = bits + ((1 << (_DROP - 1)) - 1) + ((bits >> _DROP) & 1)
    value = (bits & -(1 << _DROP)).view(np.float64)
    size = np.abs(value)
    value = np.where(size < _SMALLEST, np.copysign(0.0, x), value)
    value = np.where(size >= _BEYOND, np.copysign(np.inf, x), value)
    return np.where(np.isnan(x), np.nan, value).astype(np.float32)


def from_half(x: Half) -> Private:
    """binary16 as private floats: exact, subnormals become normal, NaN the one NaN."""
    return np.where(np.isnan(x), np.float32(np.nan), x.astype(np.float32))


def to_half(x: Private) -> Half:
    """Round private floats to binary16, to nearest even; subnormals kept, infinite from 65520."""
    with np.errstate(over="ignore"):
        half = x.astype(np.float16)
    return np.where(np.isnan(x), np.float16(np.nan), half)


def to_bits(x: Private) -> npt.NDArray[np.uint32]:
    """:data:`WIDTH` bits each: encodings of private floats."""
    return np.ascontiguousarray(x).view(np.uint32) >> np.uint32(32 - WIDTH)


def from_bits(bits: npt.NDArray[np.uint32]) -> Private:
    """Private floats of such encodings."""
    return np.ascontiguousarray(bits << np.uint32(32 - WIDTH)).view(np.float32)


def add(a: Private, b: Private) -> Private:
    """Sum, rounded once to nearest even (53 bits are more than twice 14 and 2: Figueroa, 1995)."""
    with np.errstate(invalid="ignore"):
        return round_private(a.astype(np.float64) + b.astype(np.float64))


def multiply(a: Private, b: Private) -> Private:
    """Product, rounded once to nearest even."""
    with np.errstate(invalid="ignore"):
        return round_private(a.astype(np.float64) * b.astype(np.float64))


def fold(x: Private) -> Private:
    """Sum over the last axis, to all of it.

    Lane i takes in lane i + n/2, then i + n/4 and so on, n the next power of two; every sum is
    rounded.
    """
    lanes = x.shape[-1]
    part = x
    while part.shape[-1] > 1:
        half = 1 << (part.shape[-1] - 1).bit_length() >> 1
        high = part[..., half:]
        joined = add(part[..., : high.shape[-1]], high)
        part = np.concatenate([joined, part[..., high.shape[-1] : half]], axis=-1)
    return np.repeat(part, lanes, axis=-1)


def maximum(a: Private, b: Private) -> Private:
    """IEEE 754-2019 ``maximum``: NaN if either is NaN; +0 exceeds -0."""
    bits = np.where(np.isnan(a) | np.isnan(b), np.float32(np.nan), np.fmax(a, b))
    both_zero = (a == 0) & (b == 0)
    return np.where(both_zero, a + b, bits).astype(np.float32)


@dataclass
class Accumulator:
    """Exact sums in fixed point, one for each lane: multiples of ``2**-fraction``.

    ``width``: bits of the register, two's complement, at most 62.  ``fraction``: its bits below
    one.  Every term is rounded once to a multiple of ``2**-fraction``, to nearest even (binary16
    values and their sums need none from fraction 24 on); the sum itself never rounds.  A term or
    sum that leaves the range counts as infinite, from then on; so do infinite terms.
    """

    shape: tuple[int, ...]
    width: int
    fraction: int
    total: Int64 = field(init=False)
    invalid: Bool = field(init=False)
    positive: Bool = field(init=False)
    negative: Bool = field(init=False)

    def __post_init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Back to +0."""
        self.total = np.zeros(self.shape, np.int64)
        self.invalid, self.positive, self.negative = (np.zeros(self.shape, bool) for _ in range(3))

    def add(self, x: Private) -> None:
        """Add one term to each lane."""
        scaled = np.rint(np.ldexp(x.astype(np.float64), self.fraction))
        beyond = ~(np.abs(scaled) < 1 << (self.width - 1))
        self.invalid |= np.isnan(x)
        self.positive |= beyond & (x > 0)
        self.negative |= beyond & (x < 0)
        self._keep(self.total, np.where(beyond, 0, scaled).astype(np.int64))

    def _keep(self, total: Int64, term: Int64) -> None:
        """Take ``total + term`` where it is in range, else ``total`` and a note of the sign."""
        limit = 1 << (self.width - 1)
        new = total + term
        over = (new < -limit) | (new >= limit)
        self.positive |= over & (new > 0)
        self.negative |= over & (new < 0)
        self.total = np.where(over, total, new)

    def read(self) -> Private:
        """The sums, rounded once to private floats, to nearest even."""
        size = np.abs(self.total)
        # Round to odd at 53 bits first: then the float64 is exact and the next rounding right.
        low = size & 0xFFF
        odd = np.where(size >> 52, size - low + np.where(low > 0, 1 << 11, 0), size)
        value = np.ldexp(np.copysign(odd.astype(np.float64), self.total), -self.fraction)
        value = np.where(self.positive, np.inf, np.where(self.negative, -np.inf, value))
        return round_private(
            np.where(self.invalid | (self.positive & self.negative), np.nan, value)
        )
