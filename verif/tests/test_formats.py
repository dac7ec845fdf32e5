"""The packed format: round trips, the size bound, refusals, the words of the stream."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dstar.gen.config import PRESETS, ArrayConfig, Config, NumericConfig
from dstar.golden.encode import EncodedTile
from dstar.golden.formats import (
    HEADER,
    FormatError,
    pack_tile,
    packed_bytes,
    size_bound,
    unpack_tile,
    word_bytes,
)
from dstar.verif.packing import pack_slices
from dstar.verif.tests.mpu_tools import random_tile

CONFIGS = (
    PRESETS["tiny"],
    PRESETS["paper"],
    Config(
        array=ArrayConfig(rows=6, cols=9, lanes=2, cluster=3),
        numeric=NumericConfig(k_tile=11, exponent_span=5),
    ),
    Config(
        array=ArrayConfig(rows=1, cols=2, lanes=1, cluster=1),
        numeric=NumericConfig(k_tile=1, exponent_span=0),
    ),
)


def same(a: EncodedTile, b: EncodedTile) -> bool:
    names = ("channel", "signed", "exponent", "codes")
    return (a.rows, a.channels) == (b.rows, b.channels) and all(
        np.array_equal(getattr(a, name), getattr(b, name)) for name in names
    )


@settings(max_examples=60)
@given(cfg=st.sampled_from(CONFIGS), seed=st.integers(0, 2**32 - 1), density=st.floats(0, 1))
def test_round_trip(cfg: Config, seed: int, density: float) -> None:
    rng = np.random.default_rng(seed)
    channels = int(rng.integers(1, cfg.numeric.k_tile + 1))
    tile = random_tile(rng, cfg, channels=channels, density=density)
    packed = pack_tile(tile, cfg)
    assert len(packed) == packed_bytes(tile.slices, cfg) <= size_bound(cfg)
    assert same(unpack_tile(packed, cfg), tile)
    # After the header lie the words that the MPU takes.
    words = np.frombuffer(packed, np.uint8, offset=HEADER.size).reshape(-1, word_bytes(cfg))
    np.testing.assert_array_equal(words, pack_slices(tile, cfg))


def test_bound_is_reached() -> None:
    cfg = PRESETS["paper"]
    tile = random_tile(np.random.default_rng(0), cfg, channels=128, density=1.0, kind="extreme")
    assert len(pack_tile(tile, cfg)) == size_bound(cfg) == 8 + 128 * 72


def test_every_changed_bit_is_refused_or_seen() -> None:
    """No bit of a packed tile is without meaning."""
    cfg = PRESETS["tiny"]
    tile = random_tile(np.random.default_rng(3), cfg, channels=7, density=0.8)
    packed = pack_tile(tile, cfg)
    for bit in range(8 * len(packed)):
        changed = bytearray(packed)
        changed[bit // 8] ^= 1 << bit % 8
        with contextlib.suppress(FormatError):
            assert not same(unpack_tile(bytes(changed), cfg), tile)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p[:5], "length must be at least 8 bytes, got 5"),
        (lambda p: p[:-1], "length must be"),
        (lambda p: p[:2] + b"\0\0" + p[4:], "channels must be 1 to 16, got 0"),
        (lambda p: p[:5] + b"\2" + p[6:], "slices a word must be 4, got 2"),
        (lambda p: p[:6] + b"\1" + p[7:], "reserved bytes must be 0, got 1"),
    ],
)
def test_refusals(change: object, message: str) -> None:
    cfg = PRESETS["tiny"]
    tile = random_tile(np.random.default_rng(1), cfg, channels=16, density=1.0)
    with pytest.raises(FormatError, match=message):
        unpack_tile(change(pack_tile(tile, cfg)), cfg)  # type: ignore[operator]
