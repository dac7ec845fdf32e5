"""Beats of encoded tiles: the closed form against a count cycle by cycle."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstar.golden.bins import BinTable
from dstar.golden.encode import EncodedTile, encode, encode_layer
from dstar.golden.quantize import quantize
from dstar.golden.schedule import Schedule, schedule, schedule_layer


def slow_schedule(tile: EncodedTile, lanes: int) -> int:
    """Beats counted cycle by cycle: a window over the list, doublings one a beat."""
    beats, place, exponent = 0, 0, int(tile.exponent[0]) if tile.slices else 0
    while place < tile.slices:
        beats += 1
        if tile.exponent[place] > exponent + 1:
            exponent += 1
            continue
        exponent = int(tile.exponent[place])
        window = tile.exponent[place : place + lanes]
        place += int((window == exponent).sum())
    return beats


@given(
    st.lists(st.tuples(st.sampled_from([0, 2, 4, 6, 8]), st.integers(-9, 24)), min_size=1),
    st.sampled_from([1, 2, 4, 8]),
)
def test_schedule_counts_cycles(channels: list[tuple[int, int]], lanes: int) -> None:
    precision = np.array([p for p, _ in channels], np.uint8)
    exponent = np.array([f if p else 0 for p, f in channels], np.int8)
    tile = encode(np.ones((2, len(channels)), np.int8), precision, exponent, rows=2)
    got = schedule(tile, lanes)
    assert got.beats == slow_schedule(tile, lanes)
    assert got.slices == tile.slices
    both = schedule([tile, tile], lanes)
    assert (both.beats, both.slices) == (2 * got.beats, 2 * got.slices)


def test_schedule_of_a_worked_example() -> None:
    # 70 alone: beats at exponents 1, 3, 5, 7 and one empty beat before each of the last three.
    tile = encode(
        np.array([[70]], np.int8), np.array([8], np.uint8), np.array([7], np.int8), rows=1
    )
    assert schedule(tile).beats == 7
    assert schedule(tile).utilization == 4 / 28


@pytest.mark.parametrize("shape", [(1, 1), (63, 30), (65, 33), (130, 100), (2, 65, 70)])
def test_schedule_of_a_layer_is_that_of_its_tiles(shape: tuple[int, ...]) -> None:
    d = np.random.default_rng(1).standard_normal(shape) * 2.0 ** -(np.arange(shape[-1]) ** 0.5)
    got = quantize(d.astype(np.float16), BinTable.paper(5))
    samples = shape[0] if len(shape) == 3 else 1
    parts = [a.reshape(samples, -1, shape[-1]) for a in (got.q, got.precision, got.exponent)]
    want = Schedule(0, 0, 4)
    for q, precision, exponent in zip(*parts, strict=True):
        for line in encode_layer(q, precision, exponent, rows=64, k_tile=32):
            want += schedule(line)
    assert schedule_layer(got.precision, got.exponent, k_tile=32) == want


def test_schedules_of_different_lanes_do_not_add() -> None:
    with pytest.raises(ValueError, match="lanes must be equal to be added, got 4, 2"):
        Schedule(1, 1, 4) + Schedule(1, 1, 2)


def test_an_empty_tile_takes_no_beats() -> None:
    tile = encode(np.zeros((3, 4), np.int8), np.zeros(4, np.uint8), np.zeros(4, np.int8), rows=4)
    assert schedule(tile).beats == 0
    assert schedule(tile).utilization == 1.0
