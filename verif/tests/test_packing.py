"""Stream words: exact round trips, and the bit positions that the RTL's layouts give."""

from __future__ import annotations

import numpy as np
import pytest
from amaranth.lib import data
from hypothesis import given
from hypothesis import strategies as st

from dstar.gen.config import PRESETS, ArrayConfig, Config, NumericConfig
from dstar.golden.encode import EncodedTile, encode
from dstar.rtl import streams
from dstar.verif import packing
from dstar.verif.packing import Field, pack, unpack

ODD = Config(
    preset="odd",
    array=ArrayConfig(rows=6, cols=9, lanes=2, cluster=3),
    numeric=NumericConfig(weight_bits=5, k_tile=33, exponent_span=0),
)
CONFIGS = [*PRESETS.values(), ODD]
each_config = pytest.mark.parametrize("cfg", CONFIGS, ids=lambda cfg: cfg.preset)


@given(st.data())
def test_round_trip_and_reference(draw: st.DataObject) -> None:
    """Packing equals big-integer arithmetic, and unpacking undoes it."""
    fields = draw.draw(
        st.lists(
            st.builds(Field, st.integers(1, 56), st.integers(1, 9), st.booleans()),
            min_size=1,
            max_size=5,
        )
    )
    words = draw.draw(st.integers(0, 3))
    seed = draw.draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    values = [rng.integers(f.low, f.high, (words, f.count), np.int64, True) for f in fields]
    for value, field in zip(values, fields, strict=True):
        value[rng.random(value.shape) < 0.2] = field.low
        value[rng.random(value.shape) < 0.2] = field.high
    packed = pack(fields, values)
    assert packed.shape == (words, packing.word_bytes(fields))
    for w in range(words):
        number = offset = 0
        for value, field in zip(values, fields, strict=True):
            for item in value[w].tolist():
                number |= (item % 2**field.width) << offset
                offset += field.width
        assert bytes(packed[w]) == number.to_bytes(packed.shape[1], "little")
    for got, value in zip(unpack(fields, packed), values, strict=True):
        np.testing.assert_array_equal(got, value)


@each_config
def test_word_sizes_are_the_rtl_s(cfg: Config) -> None:
    assert packing.word_bits(packing.slices_fields(cfg)) == streams.slices_layout(cfg).size
    assert packing.word_bits(packing.weights_fields(cfg)) == streams.weights_layout(cfg).size
    assert packing.word_bits(packing.command_fields()) == streams.command_layout().size
    assert packing.word_bits(packing.output_fields(cfg)) == streams.sums_layout(cfg).size


def a_tile(cfg: Config, channels: int, seed: int = 0) -> EncodedTile:
    """A random tile whose precisions include 0."""
    rng = np.random.default_rng(seed)
    precision = rng.choice([0, 2, 4, 6, 8], channels).astype(np.uint8)
    exponent = (rng.integers(3, 6, channels)).astype(np.int8)
    limit = np.where(precision, 2.0 ** (precision.astype(float) - 1) - 1, 0)
    q = np.rint(rng.uniform(-1, 1, (cfg.array.rows, channels)) * limit).astype(np.int8)
    return encode(q, precision, exponent, rows=cfg.array.rows)


def rtl_view(words: np.ndarray, index: int, layout: data.StructLayout) -> data.Const:
    """A word as Amaranth's own layout reads it."""
    bits = int.from_bytes(bytes(words[index]), "little")
    return layout.from_bits(bits)


@each_config
def test_slices_fields_lie_where_the_rtl_reads_them(cfg: Config) -> None:
    tile = a_tile(cfg, cfg.numeric.k_tile)
    words = packing.pack_slices(tile, cfg)
    lanes = cfg.array.lanes
    assert len(words) == -(-tile.slices // lanes)
    seen = 0
    for i in range(len(words)):
        view = rtl_view(words, i, streams.slices_layout(cfg))
        assert view.last == (i == len(words) - 1)
        for lane in range(view.count):
            s = i * lanes + lane
            assert view.metadata[lane].channel == tile.channel[s]
            assert view.metadata[lane].signed == tile.signed[s]
            assert view.metadata[lane].shift == tile.shift[s]
            codes = [view.codes[lane][row] for row in range(cfg.array.rows)]
            assert codes == tile.codes[s].tolist()
            seen += 1
    assert view.exponent == tile.last_exponent
    assert seen == tile.slices


@each_config
def test_weights_and_sums_lie_where_the_rtl_has_them(cfg: Config) -> None:
    rng = np.random.default_rng(3)
    limit = 2 ** (cfg.numeric.weight_bits - 1)
    w = rng.integers(-limit, limit, (cfg.array.cols - 1, 3)).astype(np.int8)
    words = packing.pack_weights(w, cfg)
    for channel in range(3):
        view = rtl_view(words, channel, streams.weights_layout(cfg))
        assert [view.weights[c] for c in range(len(w))] == w[:, channel].tolist()
        assert view.weights[cfg.array.cols - 1] == 0
        assert view.last == (channel == 2)

    bound = cfg.numeric.acc_bound
    sums = rng.integers(-bound, bound, (4, cfg.array.rows), endpoint=True)
    sums[0], sums[1] = -bound, bound
    exponent, last = np.array([-32, 31, 0, -1]), np.array([0, 0, 0, 1])
    words = packing.pack_output(sums, exponent, last, cfg)
    for i in range(4):
        view = rtl_view(words, i, streams.sums_layout(cfg))
        assert [view.sums[r] for r in range(cfg.array.rows)] == sums[i].tolist()
        assert (view.exponent, view.last) == (exponent[i], last[i])
    for got, expected in zip(
        packing.unpack_output(words, cfg), (sums, exponent, last), strict=True
    ):
        np.testing.assert_array_equal(got, expected)


@each_config
def test_empty_tile_is_one_word(cfg: Config) -> None:
    nothing = np.zeros(3, np.uint8)
    tile = encode(np.zeros((1, 3), np.int8), nothing, nothing.astype(np.int8), rows=cfg.array.rows)
    words = packing.pack_slices(tile, cfg)
    view = rtl_view(words, 0, streams.slices_layout(cfg))
    assert (len(words), view.count, view.last, view.exponent) == (1, 0, 1, 0)


def test_commands() -> None:
    words = packing.pack_commands(np.array([True, False, True]), np.array([False, True, True]))
    assert words.tolist() == [[1], [2], [3]]


def test_refusals() -> None:
    with pytest.raises(ValueError, match="field 0: values must be from -8 to 7, got -9 to 0"):
        pack([Field(4, signed=True)], [np.array([0, -9])])
    with pytest.raises(ValueError, match=r"field 1: values must have shape \(2, 3\), got \(2, 2\)"):
        pack([Field(4), Field(2, 3)], [np.zeros(2, int), np.zeros((2, 2), int)])
    with pytest.raises(ValueError, match=r"words must have shape \(n, 2\), got \(1, 3\)"):
        unpack([Field(9)], np.zeros((1, 3), np.uint8))
    with pytest.raises(ValueError, match="width of a field must be from 1 to 56 bits, got 57"):
        Field(57)
