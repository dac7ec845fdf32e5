"""The bin table: from a sub-channel's largest magnitude to precision and scale exponent.

The hardware holds up to 16 programmable entries that are compared in parallel (paper, section
3.1 and stage 2 of figure 12); thresholds, keyframes and skipping are data, not circuits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from dstar.gen.config import MAX_PRECISION, MAX_Q, Config, ConfigError

from .half import MAX_HALF, MIN_EXPONENT, Float32

#: Most entries of a table.
MAX_ENTRIES = 16
#: Precisions a table may use, in bits.
PRECISIONS = (0, 2, 4, 6, 8)


def max_q(precision: int) -> int:
    """Largest quantized magnitude at a precision: ``2**(p-1) - 1``, and 0 at 0 bits."""
    return 2 ** (precision - 1) - 1 if precision else 0


@dataclass(frozen=True)
class BinEntry:
    """One row of a bin table.

    ``threshold``: a non-negative finite binary16 value; the entry serves magnitudes up to and
    including it.  ``precision``: 0, 2, 4, 6 or 8 bits, 0 skips the sub-channel.  ``exponent``:
    f, values are quantized at the scale ``2**f``; 0 where the precision is 0.
    """

    threshold: float
    precision: int
    exponent: int


def _refuse(where: str, rule: str, value: object) -> ConfigError:
    return ConfigError(f"{where} must be {rule}, got {value!r}")


@dataclass(frozen=True)
class BinTable:
    """Up to 16 entries in ascending order of threshold.

    The first entry whose threshold is not below the magnitude is used; beyond the last threshold
    the last entry, whose values clip.  NaN and infinity have the largest bit patterns below the
    sign, so they take the last entry too.

    Exponents lie where ``q * 2**-f`` is a binary16 value for every q: f is at most 24, because
    all binary16 values are multiples of ``2**-24``, and ``(2**(p-1) - 1) * 2**-f`` is at most
    65504.  Every slice exponent then fits 6 signed bits.

    Raises
    ------
    ConfigError
        If a rule is broken; the message states the entry, the rule and the value.
    """

    entries: tuple[BinEntry, ...]
    name: str = "custom"

    def __post_init__(self) -> None:
        if not 1 <= len(self.entries) <= MAX_ENTRIES:
            raise _refuse("entries of a bin table", f"1 to {MAX_ENTRIES}", len(self.entries))
        before = -1.0
        for i, e in enumerate(self.entries):
            where = f"bin table {self.name!r}, entry {i}: "
            if not (0 <= e.threshold <= MAX_HALF and float(np.float16(e.threshold)) == e.threshold):
                rule = "a finite non-negative binary16 value"
                raise _refuse(where + "threshold", rule, e.threshold)
            if e.threshold <= before:
                raise _refuse(where + "threshold", f"above the one before ({before})", e.threshold)
            before = e.threshold
            if e.precision not in PRECISIONS:
                raise _refuse(where + "precision", "0, 2, 4, 6 or 8", e.precision)
            if e.precision == 0 and e.exponent != 0:
                raise _refuse(where + "exponent", "0 at precision 0", e.exponent)
            if e.exponent > -MIN_EXPONENT:
                raise _refuse(where + "exponent", f"at most {-MIN_EXPONENT}", e.exponent)
            if max_q(e.precision) * 2.0**-e.exponent > MAX_HALF:
                rule = f"such that {max_q(e.precision)} * 2**-exponent is at most {MAX_HALF:.0f}"
                raise _refuse(where + "exponent", rule, e.exponent)
        if not any(e.precision for e in self.entries):
            rule = "a table with an entry above 0 bits"
            raise _refuse(f"bin table {self.name!r}", rule, self.entries)

    @property
    def finest(self) -> int:
        """Largest exponent of an entry that has slices: results are multiples of 2**-finest."""
        return max(e.exponent for e in self.entries if e.precision)

    @property
    def channel_bound(self) -> int:
        """Largest ``|q| * 2**(finest - f)`` that a sub-channel can contribute to a sum."""
        used = [e for e in self.entries if e.precision]
        return max(max_q(e.precision) << (self.finest - e.exponent) for e in used)

    def check(self, cfg: Config) -> None:
        """Refuse a table that breaks the bound behind the accumulator's width.

        Raises
        ------
        ConfigError
            If some entry has ``(2**(p-1) - 1) << (finest - f)`` above
            ``cfg.numeric.channel_bound``.
        """
        bound = cfg.numeric.channel_bound
        for i, e in enumerate(self.entries):
            value = max_q(e.precision) << (self.finest - e.exponent) if e.precision else 0
            if value > bound:
                raise ConfigError(
                    f"bin table {self.name!r}, entry {i}: {max_q(e.precision)} << ({self.finest} "
                    f"- {e.exponent}) must be at most {bound} (numeric.exponent_span "
                    f"{cfg.numeric.exponent_span}), got {value}"
                )

    @cached_property
    def thresholds(self) -> Float32:
        """Thresholds as a carrier array (entries,)."""
        return np.array([e.threshold for e in self.entries], np.float32)

    @cached_property
    def threshold_bits(self) -> npt.NDArray[np.uint16]:
        """Thresholds as the 15-bit patterns that the hardware compares (entries,)."""
        return self.thresholds.astype(np.float16).view(np.uint16)

    @cached_property
    def precisions(self) -> npt.NDArray[np.uint8]:
        """Precisions (entries,), in bits."""
        return np.array([e.precision for e in self.entries], np.uint8)

    @cached_property
    def exponents(self) -> npt.NDArray[np.int8]:
        """Scale exponents (entries,)."""
        return np.array([e.exponent for e in self.entries], np.int8)

    def lookup(self, magnitude: Float32) -> npt.NDArray[np.intp]:
        """Index of the entry for each magnitude (any shape, binary16 values, NaN allowed)."""
        index = np.searchsorted(self.thresholds, magnitude, side="left")
        return np.minimum(index, len(self.entries) - 1)

    @classmethod
    def paper(cls, b: int, *, span: int = 2) -> BinTable:
        """The paper's bins with the first threshold ``T = 2**-b`` (its ScaleBase is ``2**b``).

        Up to T at 2 bits and f = b; then an octave each: 4 and 6 bits at f = b+2 and b+1, 8 bits
        from f = b+2 down to b+2-``span`` or to the end of binary16.  Before them, up to T/2,
        where every value rounds to zero, 0 bits.
        """
        rows = [(0, 0), (2, b), (4, b + 2), (4, b + 1), (6, b + 2), (6, b + 1)]
        rows += [(8, b + 2 - i) for i in range(span + 1)]
        steps = [(2.0 ** (i - 1 - b), p, f) for i, (p, f) in enumerate(rows)]
        return cls(_clamped(steps), f"paper({b})")

    @classmethod
    def uniform(cls, b: int, *, span: int = 2) -> BinTable:
        """One step ``T = 2**-b`` for every sub-channel of up to 127.5 T, coarser only beyond.

        A precision serves magnitudes that round to its largest q or tie with the next.
        """
        return cls(_fitted(b, span), f"uniform({b})")

    @classmethod
    def keyframe(cls, magnitude: float, *, span: int = 2) -> BinTable:
        """Eight bits for every sub-channel of a layer whose largest magnitude is given.

        The coarsest scale is the finest power of two at which ``magnitude`` does not clip (one
        above 65280 clips, by less than a step: a coarser scale would leave binary16);
        smaller sub-channels take up to ``span`` octaves finer ones.  Where all q at the finest
        scale fit fewer bits they are stored in fewer: the same values in fewer slices.
        """
        if not 0 <= magnitude <= MAX_HALF:
            raise _refuse("largest magnitude", f"a number from 0 to {MAX_HALF:.0f}", magnitude)
        coarse = -MIN_EXPONENT - 1 - span
        if magnitude > 0:
            exact = math.frexp(magnitude / (MAX_Q + 0.5))
            coarse = min(coarse, -exact[1] + (exact[0] == 0.5))
        coarse = max(coarse, _coarsest(MAX_PRECISION))
        return cls(_fitted(coarse + span, span), f"keyframe({coarse})")


def _coarsest(precision: int) -> int:
    """Smallest exponent at which no q of a precision leaves binary16."""
    return math.ceil(math.log2(max_q(precision) / MAX_HALF))


def _fitted(b: int, span: int) -> tuple[BinEntry, ...]:
    """Bins that keep the step ``2**-b`` while q fits 8 bits, then up to ``span`` coarser ones."""
    rows = [((max_q(p) + 0.5) * 2.0**-b, p, b if p else 0) for p in PRECISIONS]
    rows += [((MAX_Q + 0.5) * 2.0 ** (i - b), MAX_PRECISION, b - i) for i in range(1, span + 1)]
    return _clamped(rows)


def _clamped(rows: list[tuple[float, int, int]]) -> tuple[BinEntry, ...]:
    """Entries up to the end of binary16: up to the first threshold or scale that reaches it."""
    entries: list[BinEntry] = []
    for threshold, precision, exponent in rows[:MAX_ENTRIES]:
        if precision and exponent < _coarsest(precision):
            break
        entries.append(BinEntry(min(threshold, MAX_HALF), precision, exponent))
        if threshold >= MAX_HALF:
            break
    return tuple(entries)
