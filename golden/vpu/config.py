"""Parameters of the VPU that golden model and RTL share."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .float import SIGNIFICAND_BITS

#: Fraction bits of the exponent of two in the range reduction of the non-linear functions.
REDUCED_BITS = 16
#: Bits of a position in a table's segment: the multiplier's unsigned operand.
POSITION_BITS = 16
#: Bits of a GELU argument: below ``2**3``, in units of ``2**-16``.
FIXED_BITS = 3 + 16


def _check(name: str, value: object, low: int, high: int, rule: str = "") -> None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or not low <= int(value) <= high or (rule and int(value) & (int(value) - 1)):  # type: ignore[call-overload]
        what = rule or "an integer"
        raise ValueError(f"vector.{name} must be {what} from {low} to {high}, got {value!r}")


@dataclass(frozen=True, kw_only=True)
class VectorConfig:
    """Parameters of the VPU besides its lanes (``array.rows``).

    ``segments``: of each coefficient table.  ``width``: signed bits of coefficients and of
    Horner's sums.  ``acc_width``, ``acc_fraction``: bits of the accumulator, and those of them
    below one.  ``program``: longest program, in instructions.

    Raises
    ------
    ValueError
        If a value is outside its range; whether a table meets its bound is for
        :func:`dstar.golden.vpu.generate.generate` to say.
    """

    segments: int = 8
    width: int = 22
    acc_width: int = 60
    acc_fraction: int = 28
    program: int = 16

    def __post_init__(self) -> None:
        _check("segments", self.segments, 2, 64, "a power of two")
        _check("width", self.width, SIGNIFICAND_BITS + 2, 30)
        _check("acc_width", self.acc_width, 42, 62)
        _check("acc_fraction", self.acc_fraction, 24, self.acc_width - 17)
        _check("program", self.program, 2, 64)

    @property
    def segment_bits(self) -> int:
        """Bits of a segment's number."""
        return self.segments.bit_length() - 1

    @property
    def fraction(self) -> int:
        """Fraction bits of a mantissa (1 to 2) in Horner's accumulator."""
        return self.width - 2

    @property
    def log2_e(self) -> int:
        """log2(e) in units of ``2**-fraction``."""
        return round(math.log2(math.e) * 2**self.fraction)
