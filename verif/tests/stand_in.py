"""A NumPy stand-in for the matrix unit: takes its packed streams, gives its packed outputs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from dstar.gen.config import Config
from dstar.verif.compare import Played
from dstar.verif.compare.plan import Stimulus
from dstar.verif.compare.segments import kept_columns
from dstar.verif.compare.simulate import Poll
from dstar.verif.output_words import CHANNEL, command_fields
from dstar.verif.packing import Words, pack_output, slices_fields, unpack, weights_fields

#: May change the words of a run.
Corrupt = Callable[[Stimulus, Words], None]


class StandIn:
    """Does with packed words what the matrix unit does, by another route than the golden model.

    ``corrupt`` spoils the words of sums, ``corrupt_outputs`` the output vectors.
    """

    def __init__(
        self, cfg: Config, corrupt: Corrupt | None = None, corrupt_outputs: Corrupt | None = None
    ) -> None:
        self.cfg = cfg
        self.corrupt = corrupt
        self.corrupt_outputs = corrupt_outputs
        self.runs: list[Stimulus] = []
        self.lock = threading.Lock()

    def __call__(self, stimulus: Stimulus, poll: Poll) -> Played:
        with self.lock:
            self.runs.append(stimulus)
        streams = stimulus.streams()
        tiles = self._tiles(streams["slices"])
        weights = self._weights(streams["weights"])
        cols = self.cfg.array.cols
        words, beats, slots = [], 0, 0
        path = OutputStandIn(streams, self.cfg)
        for number, command in enumerate(streams["command"][:, 0].tolist()):
            channel, value, shift, exponent = tiles[0]
            scale = 2 ** (shift.sum() - np.cumsum(shift))
            sums = (value * scale[:, None]).T @ weights[0][channel]
            last = np.arange(cols) == cols - 1
            words.append(pack_output(sums.T, np.full(cols, exponent), last, self.cfg))
            path.take(sums.T, exponent)
            beats += count_beats(shift.tolist(), self.cfg.array.lanes)
            slots += len(shift)
            if command & 1:
                tiles.pop(0)
            if command & 2:
                weights.pop(0)
            poll((number + 1) * cols)
        assert not tiles
        assert not weights
        output = np.concatenate(words)
        if self.corrupt is not None:
            self.corrupt(stimulus, output)
        vectors = path.finish()
        if self.corrupt_outputs is not None:
            self.corrupt_outputs(stimulus, vectors)
        stamps = np.arange(1, len(output) + 1, dtype=np.uint64) * np.uint64(4)
        return Played(
            words=output, outputs=vectors, stamps=stamps, seconds=0.5, beats=beats, slots=slots
        )

    def _tiles(self, words: Words) -> list[tuple[Any, Any, Any, int]]:
        cfg = self.cfg
        metadata, codes, count, last, exponent = unpack(slices_fields(cfg), words)
        bits = cfg.numeric.channel_bits
        codes = codes.reshape(*metadata.shape, cfg.array.rows)
        tiles = []
        start = 0
        for end in (np.flatnonzero(last) + 1).tolist():
            keep = np.arange(metadata.shape[1]) < count[start:end]
            meta, code = metadata[start:end][keep], codes[start:end][keep]
            signed = (meta >> bits) & 1
            value = np.where(signed[:, None] & (code >> 1), code - 4, code)
            tiles.append(
                (meta & (2**bits - 1), value, meta >> (bits + 1), int(exponent[end - 1, 0]))
            )
            start = end
        assert start == len(words)
        return tiles

    def _weights(self, words: Words) -> list[Any]:
        values, last = unpack(weights_fields(self.cfg), words)
        return np.split(values, np.flatnonzero(last) + 1)[:-1]


class OutputStandIn:
    """The output path: what is kept between k tiles, by address; the words still to come."""

    def __init__(self, streams: dict[str, Words], cfg: Config) -> None:
        self.cols = cfg.array.cols
        self.store = iter(
            np.concatenate(unpack(command_fields(kept_columns(cfg)), streams["store"]), axis=1)
        )
        self.channel = np.concatenate(unpack(CHANNEL, streams["channel"]), axis=1)
        empty = np.zeros((0, 2 * cfg.array.rows), np.uint8)
        self.before = streams.get("before", empty).view(np.float16)
        self.kept: dict[int, Any] = {}
        self.out: list[Any] = []

    def take(self, sums: Any, exponent: int) -> None:
        """Sums (columns, rows) of one tile product."""
        first, last, keyframe, finest, base = next(self.store).tolist()
        total = sums.astype(np.int64) << max(0, finest - exponent)
        if not first:
            total = total + self.kept.pop(base)
        if not last:
            self.kept[base] = total
            return
        (scale, bias), self.channel = (
            self.channel[: self.cols].T,
            self.channel[self.cols :],
        )
        factor = (scale.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        product = _saturated(np.ldexp(total, -finest) * factor[:, None])
        addend = bias.astype(np.uint16).view(np.float16)[:, None]
        if not keyframe:
            addend, self.before = self.before[: self.cols], self.before[self.cols :]
        self.out.append(_saturated(product.astype(np.float32) + addend.astype(np.float32)))

    def finish(self) -> Words:
        """All output vectors as words; nothing may be left over."""
        assert not [*self.kept, *self.store, *self.channel, *self.before]
        return np.ascontiguousarray(np.concatenate(self.out)).view(np.uint8)


def _saturated(x: Any) -> Any:
    """binary16, to nearest even, at most the largest finite value."""
    return np.clip(x, -65504, 65504).astype(np.float16)


def count_beats(shift: list[int], lanes: int) -> int:
    """Compute cycles of a tile, slice by slice as the front end goes."""
    position = beats = 0
    while position < len(shift):
        if position:
            beats += max(0, shift[position] - 1)
        taken = 1
        while taken < lanes and position + taken < len(shift) and shift[position + taken] == 0:
            taken += 1
        position += taken
        beats += 1
    return max(1, beats)
