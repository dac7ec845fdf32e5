"""Cuts the golden run of a layer into tile products, and those into stream words.

A linear layer becomes token tiles x k tiles x column tiles.  A segment is what the output path
sums up at once: some output tiles, with all k tiles of each.  Within a k tile the operand that
the segment's tiles share stays in the MPU: a weight tile for all activation tiles, or, where
there is only one activation tile, that one for several weight tiles.  The order does not change
any result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from dstar.gen.config import Config
from dstar.golden.linear import LinearStep
from dstar.golden.quantize import tile_count
from dstar.verif.compare.plan import Half, Job, Place, Stimulus
from dstar.verif.compare.select import GoldenStep
from dstar.verif.output_words import channel_words, command_words, vector_words
from dstar.verif.packing import Words, pack_commands, pack_slices, pack_weights

T = TypeVar("T")

#: Output tiles whose sums the unit keeps between k tiles: most tiles of a segment.
SEGMENT_TILES = 16


def kept_columns(cfg: Config) -> int:
    """Column sums that the unit must keep between k tiles."""
    return SEGMENT_TILES * cfg.array.cols


@dataclass(frozen=True, eq=False)
class _Activation:
    """One token tile of a layer at one step."""

    golden: GoldenStep
    token_tile: int
    cfg: Config

    @property
    def result(self) -> LinearStep:
        return self.golden.result

    @property
    def tokens(self) -> slice:
        """Its real tokens."""
        rows = self.cfg.array.rows
        start = self.token_tile * rows
        return slice(start, min(start + rows, len(self.result.y)))

    @cached_property
    def words(self) -> list[Words]:
        """The words that load it, by k tile."""
        return [pack_slices(tile, self.cfg) for tile in self.result.tiles[self.token_tile]]

    def before(self, columns: slice) -> Words | None:
        """Last step's output, a word a column; None at a keyframe."""
        y = self.golden.before
        if y is None:
            return None
        array = self.cfg.array
        return vector_words(_padded(y[self.tokens, columns].T, (array.cols, array.rows)))


@dataclass(frozen=True, eq=False)
class _Layer:
    """What all segments of a layer share; columns are output channels in tiles."""

    number: int
    first: GoldenStep
    cfg: Config

    @cached_property
    def columns(self) -> list[slice]:
        out, cols = len(self.first.bias), self.cfg.array.cols
        return [slice(start, min(start + cols, out)) for start in range(0, out, cols)]

    @property
    def k_tiles(self) -> int:
        return tile_count(self.first.result.weight.q.shape[1], self.cfg.numeric.k_tile)

    def weights(self, k: int, c: int) -> npt.NDArray[np.int8]:
        """One weight tile, int8 (out, in)."""
        return self.first.result.tile_weights(k)[self.columns[c]]

    @cached_property
    def channel(self) -> list[Words]:
        """Words of scales and biases, by column tile."""
        words = []
        for part in self.columns:
            scale = np.ones(self.cfg.array.cols, np.float32)
            bias = np.zeros(self.cfg.array.cols, np.float16)
            scale[: part.stop - part.start] = self.first.result.weight.scale[part]
            bias[: part.stop - part.start] = self.first.bias[part]
            words.append(channel_words(scale, bias))
        return words


def segments(layer: int, steps: Sequence[GoldenStep], cfg: Config) -> Iterator[Stimulus]:
    """The tile products of one layer at several steps, in segments that need nothing before them.

    Parameters
    ----------
    layer:
        The layer's position, for :class:`~dstar.verif.compare.plan.Place`.
    steps:
        Golden results of one layer.
    """
    shape = _Layer(layer, steps[0], cfg)
    activations = [
        _Activation(golden, t, cfg) for golden in steps for t in range(len(golden.result.tiles))
    ]
    numbers = range(len(shape.columns))
    if len(activations) == 1:
        for part in _chunks(numbers, SEGMENT_TILES):
            yield _segment(shape, [(activations[0], c) for c in part], weights_stay=False)
    else:
        for c in numbers:
            for some in _chunks(activations, SEGMENT_TILES):
                yield _segment(shape, [(a, c) for a in some], weights_stay=True)


def _segment(
    layer: _Layer, tiles: Sequence[tuple[_Activation, int]], *, weights_stay: bool
) -> Stimulus:
    """All k tiles of some output tiles, which share their weights or else their activation."""
    cfg, result = layer.cfg, Stimulus()
    ends = np.arange(len(tiles)) == len(tiles) - 1
    always = np.ones_like(ends)
    rows: list[list[int]] = []
    for k in range(layer.k_tiles):
        last = k == layer.k_tiles - 1
        for place, (a, c) in enumerate(tiles):
            columns = layer.columns[c]
            if not place or not weights_stay:
                weights = layer.weights(k, c)
                result.weights.append(pack_weights(weights, cfg))
            if not place or weights_stay:
                result.slices.append(a.words[k])
            table, keyframe = a.result.table, a.golden.before is None
            rows.append([k == 0, last, keyframe, table.finest, place * cfg.array.cols])
            if last:
                result.channel.append(layer.channel[c])
                if (before := a.before(columns)) is not None:
                    result.before.append(before)
            result.jobs.append(
                Job(
                    Place(layer.number, a.golden.step, a.token_tile, k, c),
                    a.result.tiles[a.token_tile][k],
                    weights,
                    a.tokens.stop - a.tokens.start,
                    a.result.y[a.tokens, columns] if last else None,
                )
            )
        release = (always, ends) if weights_stay else (ends, always)
        result.command.append(pack_commands(*release))
    result.store.append(command_words(rows, kept_columns(cfg)))
    return result


def _padded(values: Half, shape: tuple[int, int]) -> Half:
    """A matrix in the upper left corner of zeros."""
    full = np.zeros(shape, values.dtype)
    full[: values.shape[0], : values.shape[1]] = values
    return full


def _chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
