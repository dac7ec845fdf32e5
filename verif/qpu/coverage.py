"""Functional coverage of the QPU's stimuli: what a random run must have met to count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dstar.gen.config import SLICE_BITS
from dstar.golden.bins import PRECISIONS, BinTable, max_q
from dstar.golden.half import widen
from dstar.golden.quantize import difference, magnitude, per_token
from dstar.verif.qpu.stimulus import Activation

#: Ways to form a difference and the next reference.
MODES = ("keyframe", "keyframe, previous", "reconstructed", "previous")
#: Shapes of a tile that have corners of their own.
SHAPES = ("full tile", "ragged channels", "ragged tokens", "one channel", "empty tile")


def goals(tables: Iterable[BinTable]) -> set[str]:
    """Everything that has to happen at least once under the given tables."""
    wanted = {f"mode: {mode}" for mode in MODES} | {f"tile: {shape}" for shape in SHAPES}
    wanted |= {"difference: subnormal", "difference: negative zero", "difference: beyond the table"}
    for table in tables:
        for i, _entry in enumerate(table.entries):
            row = f"{table.name}, row {i}"
            wanted |= {f"{row}: chosen", f"{row}: peak at the threshold"}
            wanted.add(f"{row}: peak just above the threshold")
        for precision in {e.precision for e in table.entries}:
            wanted.add(f"{table.name}: {precision} bits")
    for precision in PRECISIONS[1:]:
        # At 2 bits the only tie away from zero is 1.5, which clips.
        ways = ("up", "down") if precision > SLICE_BITS else ("down",)
        wanted |= {f"{precision} bits: tie {way}" for way in ways}
        wanted |= {f"{precision} bits: clipped {way}" for way in ("high", "low")}
        wanted |= {f"{precision} bits: q {q}" for q in (-max_q(precision), max_q(precision))}
    return wanted


@dataclass
class Coverage:
    """Counts how often each goal was met.

    ``subchannels``: how many were quantized.  ``hits``: by goal.
    """

    subchannels: int = 0
    hits: Counter[str] = field(default_factory=Counter)

    def _note(self, name: str, happened: npt.NDArray[np.bool_] | bool) -> None:
        self.hits[name] += int(np.count_nonzero(happened))

    def add(self, a: Activation) -> None:
        """Note what one activation exercises."""
        with np.errstate(all="ignore"):
            d = widen(difference(a.x, a.reference))
        rows, k_tile = a.cfg.array.rows, a.cfg.numeric.k_tile
        mode = "keyframe" if a.reference is None else "reconstructed"
        if a.previous:
            mode = "keyframe, previous" if a.reference is None else "previous"
        self._note(f"mode: {mode}", True)
        for tile in a.tiles:
            self._note("tile: full tile", tile.channels == k_tile)
            self._note("tile: ragged channels", tile.channels < k_tile)
            self._note("tile: one channel", tile.channels == 1)
            self._note("tile: empty tile", tile.slices == 0)
        self._note("tile: ragged tokens", d.shape[0] % rows != 0)
        self._note("difference: subnormal", (np.abs(d) < 2.0**-14) & (d != 0))
        self._note("difference: negative zero", (d == 0) & np.signbit(d))
        self._peaks(a.table, magnitude(d, rows))
        self._rounding(a, d)

    def _peaks(self, table: BinTable, peak: npt.NDArray[np.float32]) -> None:
        """Which rows of the table the peaks meet, and where in them."""
        self.subchannels += peak.size
        self._note("difference: beyond the table", peak > table.entries[-1].threshold)
        index = table.lookup(peak)
        bits = peak.astype(np.float16).view(np.uint16).astype(np.int64)
        for i, threshold in enumerate(table.threshold_bits.astype(np.int64)):
            row = f"{table.name}, row {i}"
            self._note(f"{row}: chosen", index == i)
            self._note(f"{row}: peak at the threshold", bits == threshold)
            self._note(f"{row}: peak just above the threshold", bits == threshold + 1)
        for precision in {e.precision for e in table.entries}:
            chosen = table.precisions[index] == precision
            self._note(f"{table.name}: {precision} bits", chosen)

    def _rounding(self, a: Activation, d: npt.NDArray[np.float32]) -> None:
        """Ties and clips at each precision."""
        tokens, rows = d.shape[0], a.cfg.array.rows
        q = a.quantized
        with np.errstate(invalid="ignore"):
            value = d.astype(np.float64) / per_token(q.step(), tokens, rows)
            whole = np.rint(value)
            tie = np.abs(value - np.trunc(value)) == 0.5
        precision = per_token(q.precision, tokens, rows)  # type: ignore[arg-type]
        for p in PRECISIONS[1:]:
            here = precision == p
            limit = max_q(p)
            inside = here & tie & (np.abs(whole) <= limit)
            self._note(f"{p} bits: tie up", inside & (np.abs(whole) > np.abs(value)))
            self._note(f"{p} bits: tie down", inside & (np.abs(whole) < np.abs(value)))
            self._note(f"{p} bits: clipped high", here & (whole > limit))
            self._note(f"{p} bits: clipped low", here & (whole < -limit))
            for edge in (-limit, limit):
                self._note(f"{p} bits: q {edge}", here & (q.q == edge))

    def missing(self, tables: Iterable[BinTable]) -> list[str]:
        """The goals that were never met, sorted."""
        return sorted(goal for goal in goals(tables) if not self.hits[goal])
