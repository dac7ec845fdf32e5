"""A NumPy stand-in for the MPU: takes its packed streams and gives its packed outputs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from dstar.gen.config import Config
from dstar.verif.compare import Played
from dstar.verif.compare.plan import Stimulus
from dstar.verif.compare.simulate import Poll
from dstar.verif.packing import Words, pack_output, slices_fields, unpack, weights_fields


class StandIn:
    """Does with packed words what the MPU does, by another route than the golden model.

    ``corrupt(number, words)`` may change the output words of the run of that number.
    """

    def __init__(
        self, cfg: Config, corrupt: Callable[[Stimulus, Words], None] | None = None
    ) -> None:
        self.cfg = cfg
        self.corrupt = corrupt
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
        for number, command in enumerate(streams["command"][:, 0].tolist()):
            channel, value, shift, exponent = tiles[0]
            scale = 2 ** (shift.sum() - np.cumsum(shift))
            sums = (value * scale[:, None]).T @ weights[0][channel]
            last = np.arange(cols) == cols - 1
            words.append(pack_output(sums.T, np.full(cols, exponent), last, self.cfg))
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
        stamps = np.arange(1, len(output) + 1, dtype=np.uint64) * np.uint64(4)
        return Played(words=output, stamps=stamps, seconds=0.5, beats=beats, slots=slots)

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
