"""Cuts the golden run of a layer into tile products, and those into stream words.

A linear layer becomes token tiles x k tiles x column tiles.  Jobs are ordered so that operands
stay in the MPU as long as they can: a weight tile is loaded once for all the activation tiles of
a segment, or, where there is only one activation tile, that one for all weight tiles.  The order
does not change any result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from dstar.gen.config import Config
from dstar.golden.accumulate import accumulate
from dstar.golden.encode import EncodedTile
from dstar.golden.linear import LinearStep
from dstar.golden.quantize import tile_count
from dstar.golden.schedule import Schedule, schedule
from dstar.verif.packing import Words, pack_commands, pack_slices, pack_weights

T = TypeVar("T")

#: Most jobs of a segment, which is never split over two runs.
SEGMENT_JOBS = 256


@dataclass(frozen=True, order=True)
class Place:
    """Where a tile product belongs; ``layer`` is the layer's position among those compared."""

    layer: int
    step: int
    token_tile: int
    k_tile: int
    col_tile: int


@dataclass(frozen=True, eq=False)
class Job:
    """One tile product: `tile`, of which ``tokens`` rows are real, times `weights` (out, in)."""

    place: Place
    tile: EncodedTile
    weights: npt.NDArray[np.int8]
    tokens: int

    def expected(self) -> npt.NDArray[np.int64]:
        """Golden sums of the real rows and columns: (tokens, columns)."""
        return accumulate(self.tile, self.weights)[: self.tokens]


@dataclass(frozen=True, eq=False)
class Activation:
    """One activation tile and the words that load it."""

    step: int
    token_tile: int
    tile: EncodedTile
    tokens: int
    words: Words


@dataclass(eq=False)
class Stimulus:
    """Jobs in order and the words of the MPU's input streams."""

    jobs: list[Job] = field(default_factory=list)
    slices: list[Words] = field(default_factory=list)
    weights: list[Words] = field(default_factory=list)
    commands: list[Words] = field(default_factory=list)

    def add(self, other: Stimulus) -> None:
        """Append another stimulus, to run after this one."""
        for name in ("jobs", "slices", "weights", "commands"):
            getattr(self, name).extend(getattr(other, name))

    def streams(self) -> dict[str, Words]:
        """Stream name to words."""
        return {
            "slices": np.concatenate(self.slices),
            "weights": np.concatenate(self.weights),
            "command": np.concatenate(self.commands),
        }

    @property
    def load(self) -> int:
        """The longer of the two operand streams, in words (one a cycle)."""
        return max(sum(map(len, self.slices)), sum(map(len, self.weights)))


def job_schedule(job: Job, cfg: Config) -> Schedule:
    """Compute cycles and busy lane slots of one job; an empty tile takes one cycle."""
    result = schedule(job.tile, cfg.array.lanes)
    return Schedule(max(1, result.beats), result.slices, result.lanes)


def tile_total(tokens: int, inner: int, out: int, cfg: Config) -> int:
    """Tile products of one step of a linear layer."""
    array = cfg.array
    tokens_, k = tile_count(tokens, array.rows), tile_count(inner, cfg.numeric.k_tile)
    return tokens_ * k * tile_count(out, array.cols)


def segments(
    layer: int, steps: Sequence[tuple[int, LinearStep]], cfg: Config
) -> Iterator[Stimulus]:
    """The tile products of one layer at several steps, in segments that need nothing before them.

    Parameters
    ----------
    layer:
        The layer's position, for :class:`Place`.
    steps:
        (step, golden result) of one layer.
    """
    rows, cols = cfg.array.rows, cfg.array.cols
    weight = steps[0][1].weight.q
    for k in range(tile_count(weight.shape[1], cfg.numeric.k_tile)):
        columns = list(enumerate(_column_tiles(steps[0][1].tile_weights(k), cols)))
        activations = [
            Activation(
                step,
                t,
                tiles[k],
                min(rows, result.q.shape[-2] - t * rows),
                pack_slices(tiles[k], cfg),
            )
            for step, result in steps
            for t, tiles in enumerate(result.tiles)
        ]
        if len(activations) == 1:
            for part in _chunks(columns, SEGMENT_JOBS):
                yield _slices_stay(layer, k, activations[0], part, cfg)
        else:
            for c, tile in columns:
                words = pack_weights(tile, cfg)
                for some in _chunks(activations, SEGMENT_JOBS):
                    yield _weights_stay(layer, k, c, tile, words, some)


def _slices_stay(
    layer: int,
    k: int,
    a: Activation,
    columns: Sequence[tuple[int, npt.NDArray[np.int8]]],
    cfg: Config,
) -> Stimulus:
    """One activation tile times several weight tiles."""
    last = np.arange(len(columns)) == len(columns) - 1
    return Stimulus(
        jobs=[
            Job(Place(layer, a.step, a.token_tile, k, c), a.tile, tile, a.tokens)
            for c, tile in columns
        ],
        slices=[a.words],
        weights=[pack_weights(tile, cfg) for _, tile in columns],
        commands=[pack_commands(last, np.ones_like(last))],
    )


def _weights_stay(
    layer: int,
    k: int,
    c: int,
    weights: npt.NDArray[np.int8],
    words: Words,
    activations: Sequence[Activation],
) -> Stimulus:
    """Several activation tiles times one weight tile."""
    last = np.arange(len(activations)) == len(activations) - 1
    return Stimulus(
        jobs=[
            Job(Place(layer, a.step, a.token_tile, k, c), a.tile, weights, a.tokens)
            for a in activations
        ],
        slices=[a.words for a in activations],
        weights=[words],
        commands=[pack_commands(np.ones_like(last), last)],
    )


def runs(parts: Iterable[Stimulus], *, cfg: Config, cycles: int) -> Iterator[Stimulus]:
    """Join segments into stimuli of about `cycles` cycles each."""
    current, length = Stimulus(), 0
    for part in parts:
        current.add(part)
        length += max(part.load, len(part.jobs) * cfg.array.cols)
        if length >= cycles:
            yield current
            current, length = Stimulus(), 0
    if current.jobs:
        yield current


def _column_tiles(weights: npt.NDArray[np.int8], cols: int) -> Iterator[npt.NDArray[np.int8]]:
    """Weights (out, channels) in tiles of `cols` output channels; the last may have fewer."""
    for start in range(0, len(weights), cols):
        yield weights[start : start + cols]


def _chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
