"""Slices, their order and exact sums of encoded tiles."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstar.gen.config import PRESETS
from dstar.golden.accumulate import accumulate, exact_matmul
from dstar.golden.bins import BinTable, max_q
from dstar.golden.encode import decode, encode, encode_layer
from dstar.golden.quantize import quantize

PAPER = PRESETS["paper"]
SEVENTY = np.array([[70]], np.int8)


@st.composite
def sub_channels(draw: st.DrawFn) -> tuple[npt.NDArray[Any], ...]:
    """A legal tile of 1 to 6 tokens and 1 to 9 channels: q, precision, exponent."""
    tokens, channels = draw(st.integers(1, 6)), draw(st.integers(1, 9))
    precision = draw(
        st.lists(st.sampled_from([0, 2, 4, 6, 8]), min_size=channels, max_size=channels)
    )
    exponent = draw(st.lists(st.integers(-9, 24), min_size=channels, max_size=channels))
    columns = [
        draw(st.lists(st.integers(-max_q(p), max_q(p)), min_size=tokens, max_size=tokens))
        for p in precision
    ]
    exponents = [f if p else 0 for p, f in zip(precision, exponent, strict=True)]
    return (
        np.array(columns, np.int8).T,
        np.array(precision, np.uint8),
        np.array(exponents, np.int8),
    )


def exact_sum(
    q: npt.NDArray[Any], exponent: npt.NDArray[Any], w: npt.NDArray[Any], last: int
) -> list[list[int]]:
    """The sums in Python integers, straight from their definition."""
    return [
        [
            sum(
                int(q[r, c]) * int(w[n, c]) * 2 ** (last - int(exponent[c]))
                for c in range(q.shape[1])
                if q[r, c]
            )
            for n in range(len(w))
        ]
        for r in range(len(q))
    ]


def test_paper_example_of_the_slices() -> None:
    # 70 is 1, 0, 1, 2 from the top, at exponents 1, 3, 5, 7 for f = 7 (section 3.1).
    tile = encode(
        np.array([[70]], np.int8), np.array([8], np.uint8), np.array([7], np.int8), rows=1
    )
    assert tile.codes[:, 0].tolist() == [1, 0, 1, 2]
    assert tile.exponent.tolist() == [1, 3, 5, 7]
    assert tile.shift.tolist() == [0, 2, 2, 2]
    assert tile.signed.tolist() == [True, False, False, False]
    assert (tile.last_exponent, tile.bits) == (7, 8.0)


def test_every_q_of_every_precision_is_cut_and_reassembled() -> None:
    for p in (2, 4, 6, 8):
        q = np.arange(-(2 ** (p - 1)), 2 ** (p - 1), dtype=np.int8)[:, None]
        tile = encode(q, np.array([p], np.uint8), np.array([3], np.int8), rows=len(q))
        weights = 4 ** np.arange(p // 2)[::-1]
        np.testing.assert_array_equal(weights @ tile.values.astype(np.int64), q[:, 0])
        np.testing.assert_array_equal(decode(tile)[0], q)


@given(sub_channels())
def test_decode_inverts_encode(parts: tuple[npt.NDArray[Any], ...]) -> None:
    q, precision, exponent = parts
    tile = encode(q, precision, exponent, rows=7)
    got, p, f = decode(tile)
    np.testing.assert_array_equal(got[: len(q)], q)
    assert not got[len(q) :].any()
    np.testing.assert_array_equal(p, precision)
    np.testing.assert_array_equal(f, exponent)


@given(sub_channels())
def test_order_is_a_sorted_permutation_with_ties_in_order(
    parts: tuple[npt.NDArray[Any], ...],
) -> None:
    q, precision, exponent = parts
    tile = encode(q, precision, exponent, rows=len(q))
    index = (exponent[tile.channel].astype(int) - tile.exponent) // 2
    got = list(zip(tile.exponent.tolist(), tile.channel.tolist(), index.tolist(), strict=True))
    assert got == sorted(
        (int(f) - 2 * n, c, n)
        for c, (p, f) in enumerate(zip(precision, exponent, strict=True))
        for n in range(p // 2)
    )
    np.testing.assert_array_equal(tile.signed, index == precision[tile.channel] // 2 - 1)


@given(sub_channels(), st.integers(0, 2**32 - 1))
def test_accumulate_is_the_exact_sum(parts: tuple[npt.NDArray[Any], ...], seed: int) -> None:
    q, precision, exponent = parts
    w = np.random.default_rng(seed).integers(-128, 128, (5, q.shape[1]), np.int8)
    tile = encode(q, precision, exponent, rows=len(q))
    acc = accumulate(tile, w)
    assert acc.dtype == np.int64
    assert acc.tolist() == exact_sum(q, exponent, w, tile.last_exponent)


@given(sub_channels())
def test_the_hardware_recurrence_gives_the_same_sum(parts: tuple[npt.NDArray[Any], ...]) -> None:
    q, precision, exponent = parts
    w = np.random.default_rng(0).integers(-128, 128, (3, q.shape[1]), np.int8)
    tile = encode(q, precision, exponent, rows=len(q))
    acc = np.zeros((len(q), 3), np.int64)
    for s in range(tile.slices):
        acc = acc << int(tile.shift[s])
        acc += np.outer(tile.values[s].astype(np.int64), w[:, tile.channel[s]])
    np.testing.assert_array_equal(acc, accumulate(tile, w))


def test_an_empty_tile() -> None:
    zero = np.zeros((3, 4), np.int8)
    tile = encode(zero, np.zeros(4, np.uint8), np.zeros(4, np.int8), rows=4)
    assert (tile.slices, tile.last_exponent, tile.bits) == (0, 0, 0.0)
    assert not accumulate(tile, np.ones((2, 4), np.int8)).any()
    assert accumulate(tile, np.ones((2, 4), np.int8)).shape == (4, 2)
    assert not decode(tile)[0].any()
    tile.check(PRESETS["tiny"])


def test_a_worst_case_tile_reaches_the_bound_of_the_accumulator() -> None:
    for cfg in (PAPER, PAPER.replace({"exponent_span": 5, "k_tile": 40})):
        k, span = cfg.numeric.k_tile, cfg.numeric.exponent_span
        table = BinTable.paper(4, span=span)
        table.check(cfg)
        # One channel at the finest scale sets the units; the others are as coarse as allowed.
        d = np.full((64, k), 2.0 ** (3 + span), np.float16)
        d[:, 0] = 2.0**-4 * 1.5
        got = quantize(d, table)
        tile = encode(got.q, got.precision[0], got.exponent[0], rows=64)
        tile.check(cfg)
        assert tile.last_exponent == table.finest
        low = accumulate(tile, np.full((2, k), -128, np.int8))
        bound = cfg.numeric.acc_bound
        assert low.max() == low.min() == -(bound // k * (k - 1) + 6 * 128)
        assert -(2 ** (cfg.numeric.acc_width - 1)) <= low.min() < 0


def test_large_sums_leave_the_float_paths_and_stay_exact() -> None:
    rng = np.random.default_rng(0)
    for bits in (8, 12, 20, 28):
        a = rng.integers(-(2**bits), 2**bits, (3, 40))
        b = rng.integers(-(2**bits) + 1, 2**bits, (40, 2))
        want = [[sum(int(x) * int(y) for x, y in zip(r, c, strict=True)) for c in b.T] for r in a]
        assert exact_matmul(a, b).tolist() == want
    with pytest.raises(OverflowError, match="sums must stay below"):
        exact_matmul(np.full((1, 2), 2**40), np.full((2, 1), 2**22))


def test_shapes_are_checked() -> None:
    tile = encode(np.ones((1, 3), np.int8), np.full(3, 2, np.uint8), np.zeros(3, np.int8), rows=1)
    with pytest.raises(ValueError, match=r"weights must have shape \(out, 3\), got \(2, 4\)"):
        accumulate(tile, np.ones((2, 4), np.int8))
    with pytest.raises(ValueError, match=r"codes of 3 slices and 2 rows must have shapes"):
        replace(tile, rows=2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"channels": 17}, "channels must be at most 16, got 17"),
        ({"channels": 2}, "channel must be below 2, got 2"),
        ({"exponent": np.array([0, 0, -1], np.int8)}, "slices must ascend in"),
        ({"channel": np.array([0, 0, 2], np.uint16)}, "slices must ascend in"),
        ({"codes": np.full((3, 4), 4, np.uint8)}, "codes must be 0 to 3, got 4"),
        ({"exponent": np.array([0, 0, 9], np.int8)}, "shift must be at most 8, got 9"),
        ({"rows": 1, "codes": np.zeros((3, 1), np.uint8)}, "rows must be 4, got 1"),
    ],
)
def test_a_tile_the_hardware_cannot_run_is_refused(change: dict[str, Any], message: str) -> None:
    tile = encode(np.ones((4, 3), np.int8), np.full(3, 2, np.uint8), np.zeros(3, np.int8), rows=4)
    tile.check(PRESETS["tiny"])
    with pytest.raises(ValueError, match=message):
        replace(tile, **change).check(PRESETS["tiny"])


@pytest.mark.parametrize("shape", [(1, 1), (63, 30), (64, 32), (65, 33), (130, 100)])
def test_a_layer_is_encoded_as_its_tiles_one_by_one(shape: tuple[int, int]) -> None:
    rows, k_tile = 64, 32
    d = np.random.default_rng(shape[0]).standard_normal(shape) * 2.0 ** -(
        np.arange(shape[1]) ** 0.5
    )
    got = quantize(d.astype(np.float16), BinTable.paper(5), rows)
    tiles = encode_layer(got.q, got.precision, got.exponent, rows=rows, k_tile=k_tile)
    assert len(tiles) == -(-shape[0] // rows)
    for t, line in enumerate(tiles):
        assert len(line) == -(-shape[1] // k_tile)
        for k, tile in enumerate(line):
            part = slice(t * rows, (t + 1) * rows), slice(k * k_tile, (k + 1) * k_tile)
            one = encode(
                got.q[part], got.precision[t, part[1]], got.exponent[t, part[1]], rows=rows
            )
            for name in ("rows", "channels", "channel", "signed", "exponent", "codes"):
                np.testing.assert_array_equal(getattr(tile, name), getattr(one, name))
