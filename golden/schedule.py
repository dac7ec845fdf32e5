"""Schedule: how many compute cycles the array's front end needs for a tile.

The front end sees the slice list in order through a window of ``lanes`` items.  A beat issues
the items at the window's head that share one exponent and moves the window past them.  A
doubling is folded into the beat after it, so an exponent step of s costs ``s - 1`` empty beats.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dstar.gen.config import MAX_SLICES, SLICE_BITS

from .encode import EncodedTile

#: Exponents are int8: they index a histogram of SPAN entries from -OFFSET on.
SPAN, OFFSET = 2**8, 2**7


@dataclass(frozen=True)
class Schedule:
    """Issue counts of one tile, or the sum over several.

    ``beats``: compute cycles, empty ones included.  ``slices``: issued slices, S.  ``lanes``:
    slices that one beat can issue.
    """

    beats: int
    slices: int
    lanes: int

    @property
    def utilization(self) -> float:
        """Busy lane slots over all lane slots of the compute cycles; 1 if there are none."""
        return self.slices / (self.lanes * self.beats) if self.beats else 1.0

    def __add__(self, other: Schedule) -> Schedule:
        if self.lanes != other.lanes:
            raise ValueError(f"lanes must be equal to be added, got {self.lanes}, {other.lanes}")
        return Schedule(self.beats + other.beats, self.slices + other.slices, self.lanes)


def schedule(tiles: EncodedTile | Iterable[EncodedTile], lanes: int = 4) -> Schedule:
    """Beats of a tile, or of several tiles that run one after the other."""
    total = Schedule(0, 0, lanes)
    for tile in (tiles,) if isinstance(tiles, EncodedTile) else tiles:
        counts = np.bincount(tile.exponent.astype(np.int64) + OFFSET, minlength=SPAN)
        total += _count(counts[None], lanes)
    return total


def schedule_layer(
    precision: npt.NDArray[np.uint8],
    exponent: npt.NDArray[np.int8],
    *,
    k_tile: int,
    lanes: int = 4,
) -> Schedule:
    """Beats of all tiles of a layer, from its sub-channels, without encoding them.

    ``precision`` and ``exponent`` are (..., token tiles, channels), as in
    :class:`~dstar.golden.quantize.Quantized`.  Equal to :func:`schedule` of the encoded tiles.
    """
    channels = precision.shape[-1]
    k_tiles = -(-channels // k_tile)
    place = np.arange(channels) // k_tile + k_tiles * np.arange(precision.size // channels)[:, None]
    top = exponent.reshape(place.shape).astype(np.int64) + OFFSET
    counts = np.zeros(place[-1, -1] * SPAN + SPAN, np.int64)
    for n in range(MAX_SLICES):
        live = precision.reshape(place.shape) > SLICE_BITS * n
        keys = place[live] * SPAN + top[live] - SLICE_BITS * n
        counts += np.bincount(keys, minlength=len(counts))
    return _count(counts.reshape(-1, SPAN), lanes)


def _count(counts: npt.NDArray[np.int64], lanes: int) -> Schedule:
    """Sum over tiles, given how many slices each has at each exponent: (tiles, SPAN)."""
    used = counts > 0
    groups = used.sum(axis=1)
    first = used.argmax(axis=1)
    last = SPAN - 1 - used[:, ::-1].argmax(axis=1)
    # Exponents that no slice has, between a tile's first and last: one empty beat each.
    empty = np.where(groups > 0, last - first + 1 - groups, 0).sum()
    beats = int((-(-counts // lanes)).sum() + empty)
    return Schedule(beats, int(counts.sum()), lanes)
