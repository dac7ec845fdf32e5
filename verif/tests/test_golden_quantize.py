"""Difference, quantize and reconstruct against a scalar model in exact rational arithmetic."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstar.golden.bins import BinEntry, BinTable, max_q
from dstar.golden.quantize import Quantized, difference, magnitude, quantize, reconstruct

F16 = npt.NDArray[np.float16]


def scalar_quantize(values: list[float], table: BinTable) -> tuple[list[int], int, int]:
    """One sub-channel: q, precision and exponent, straight from the definition."""
    patterns = [int(np.float16(v).view(np.uint16)) & 0x7FFF for v in values]
    below = [e for e in table.entries if max(patterns) <= int(np.float16(e.threshold).view("u2"))]
    entry = below[0] if below else table.entries[-1]
    limit = max_q(entry.precision)
    q = []
    for v in values:
        if np.isnan(v):
            q.append(0)
        elif np.isinf(v):
            q.append(limit if v > 0 else -limit)
        else:
            q.append(max(-limit, min(limit, round(Fraction(v) * Fraction(2) ** entry.exponent))))
    return q, entry.precision, entry.exponent


def single(*values: float) -> F16:
    """One sub-channel as a (tokens, 1) tensor."""
    return np.array(values, np.float16)[:, None]


def flat(p: int, f: int) -> BinTable:
    """A table with one entry for everything."""
    return BinTable((BinEntry(65504.0, p, f),))


any_half = st.integers(0, 2**16 - 1).map(lambda i: np.uint16(i).view(np.float16))
tables = st.builds(
    lambda make, b: make(b),
    st.sampled_from([BinTable.paper, BinTable.uniform]),
    st.integers(-5, 20),
)


@given(st.lists(any_half, min_size=1, max_size=9), tables)
def test_any_sub_channel_equals_the_scalar_model(values: list[np.float16], table: BinTable) -> None:
    numbers = [float(v) for v in values]
    got = quantize(single(*numbers), table, rows=len(values))
    q, p, f = scalar_quantize(numbers, table)
    assert got.q[:, 0].tolist() == q
    assert (got.precision[0, 0], got.exponent[0, 0]) == (p, f)
    assert got.nonfinite == (not np.isfinite(np.array(values, np.float16)).all())


@pytest.mark.parametrize("f", [-8, -3, 0, 4, 17])
def test_ties_go_to_even(f: int) -> None:
    units = [0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 126.5, -126.5, 127.5, -127.5, -128, 128, -0.0]
    want = [0, 0, 2, -2, 2, -2, 126, -126, 127, -127, -127, 127, 0]
    got = quantize(single(*(u * 2.0**-f for u in units)), flat(8, f))
    assert got.q[:, 0].tolist() == want
    assert not got.nonfinite


@pytest.mark.parametrize(("p", "limit"), [(2, 1), (4, 7), (6, 31), (8, 127)])
def test_values_clip_symmetrically(p: int, limit: int) -> None:
    got = quantize(single(limit, -limit, limit + 1, -limit - 1, 60000, -60000), flat(p, 0))
    assert got.q[:, 0].tolist() == [limit, -limit] * 3


def test_subnormals_are_exact() -> None:
    unit = 2.0**-24
    got = quantize(single(unit, -3 * unit, 127 * unit), flat(8, 24))
    assert got.q[:, 0].tolist() == [1, -3, 127]
    new, _ = reconstruct(np.zeros((3, 1), np.float16), got)
    np.testing.assert_array_equal(new, single(unit, -3 * unit, 127 * unit))


def test_nan_and_infinity_are_flagged_and_contained() -> None:
    d = single(np.nan, np.inf, -np.inf, 2.0, -0.25)
    got = quantize(np.hstack([d, np.full_like(d, 0.25)]), BinTable.paper(2))
    assert got.q[:, 0].tolist() == [0, 127, -127, 8, -1]
    assert got.q[:, 1].tolist() == [1] * 5
    assert got.precision.tolist() == [[8, 2]]
    assert got.nonfinite


def test_magnitude_orders_nan_above_infinity() -> None:
    d = np.array([[np.nan, 1], [np.inf, -3], [0.5, 2]], np.float32)
    np.testing.assert_array_equal(magnitude(d, 2), [[np.nan, 3], [0.5, 2]])


def test_difference_rounds_once_and_overflows_to_infinity() -> None:
    x = np.array([[1, 65504, np.nan, -0.0, 2.0**-24]], np.float16)
    r = np.array([[2.0**-13, -65504, 1, 0.0, -(2.0**-24)]], np.float16)
    got = difference(x, r)
    assert got.dtype == np.float16
    np.testing.assert_array_equal(got, [[1, np.inf, np.nan, 0, 2.0**-23]])


def test_difference_at_a_keyframe_is_the_input() -> None:
    x = np.array([[1, -0.0, np.inf]], np.float16)
    got = difference(x, None)
    np.testing.assert_array_equal(got.view(np.uint16), x.view(np.uint16))
    assert got is not x


def test_reconstruct_saturates_instead_of_overflowing() -> None:
    # 64480 / 512 rounds up to 126; 1024 + 126 * 512 would leave binary16.
    reference = single(1024, 0)
    got = quantize(difference(single(65504, 0), reference), flat(8, -9))
    assert got.q[:, 0].tolist() == [126, 0]
    new, clipped = reconstruct(reference, got)
    assert new.ravel().tolist() == [65504, 0]
    assert clipped


def half_ulp(x: np.float16) -> Fraction:
    """Largest error of a value that was rounded to x, to nearest."""
    return Fraction(float(np.spacing(np.abs(x)))) / 2


def exact(x: np.float16) -> Fraction:
    return Fraction(float(x))


@given(st.data(), tables)
def test_reconstruct_plus_residual_is_the_input(data: st.DataObject, table: BinTable) -> None:
    """x = x_hat + residual, where the residual is at most half a step and the roundings."""
    small = st.floats(-4, 4, width=16)
    pairs = data.draw(st.lists(st.tuples(small, small), min_size=1, max_size=8))
    x, reference = (single(*column) for column in zip(*pairs, strict=True))
    d = difference(x, reference)
    got = quantize(d, table)
    new, clipped = reconstruct(reference, got)
    assert not clipped
    step = Fraction(2) ** -int(got.exponent[0, 0])
    limit = max_q(int(got.precision[0, 0]))
    for i in range(len(pairs)):
        change = int(got.q[i, 0]) * step
        assert abs(exact(x[i, 0]) - exact(reference[i, 0]) - exact(d[i, 0])) <= half_ulp(d[i, 0])
        if limit == 0:
            assert abs(exact(d[i, 0])) <= Fraction(table.entries[0].threshold)
        elif abs(int(got.q[i, 0])) < limit:
            assert abs(exact(d[i, 0]) - change) <= step / 2
        total = exact(reference[i, 0]) + change
        assert abs(exact(new[i, 0]) - total) <= half_ulp(new[i, 0])


@pytest.mark.parametrize("make", [BinTable.paper, BinTable.uniform])
def test_a_step_of_every_entry_is_a_binary16_value(make: type[BinTable]) -> None:
    for b in range(-9, 23):
        for entry in make(b).entries:  # type: ignore[arg-type]
            q = np.arange(-max_q(entry.precision), max_q(entry.precision) + 1)
            step = q * 2.0**-entry.exponent
            np.testing.assert_array_equal(step.astype(np.float16).astype(np.float64), step)


@pytest.mark.parametrize("tokens", [1, 3, 4, 63, 64, 65, 130])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_ragged_tokens_are_tiles_of_their_own(tokens: int, dtype: type) -> None:
    rng = np.random.default_rng(tokens)
    d: npt.NDArray[Any] = rng.normal(size=(tokens, 5)).astype(np.float16).astype(dtype)
    table = BinTable.paper(3)
    got = quantize(d, table)
    assert got.precision.shape == got.exponent.shape == (-(-tokens // 64), 5)
    for t in range(got.precision.shape[0]):
        part = quantize(d[t * 64 : (t + 1) * 64], table)
        np.testing.assert_array_equal(got.q[t * 64 : (t + 1) * 64], part.q)
        np.testing.assert_array_equal(got.precision[t], part.precision[0])
        np.testing.assert_array_equal(got.exponent[t], part.exponent[0])


def test_leading_dimensions_are_independent() -> None:
    d = np.random.default_rng(0).normal(size=(2, 3, 70, 4)).astype(np.float16)
    got = quantize(d, BinTable.uniform(5), rows=16)
    new, _ = reconstruct(np.zeros_like(d), got)
    for i in np.ndindex(2, 3):
        part = quantize(d[i], BinTable.uniform(5), rows=16)
        np.testing.assert_array_equal(got.q[i], part.q)
        np.testing.assert_array_equal(new[i], reconstruct(np.zeros_like(d[i]), part)[0])


def test_average_bits_weighs_ragged_tiles_by_their_tokens() -> None:
    q = np.zeros((5, 2), np.int8)
    precision = np.array([[8, 0], [2, 2]], np.uint8)
    got = Quantized(q, precision, np.zeros((2, 2), np.int8), 4, False)
    assert got.average_bits == (4 * 8 + 1 * 4) / 10


def test_an_empty_tensor_is_refused() -> None:
    with pytest.raises(ValueError, match=r"must have tokens and channels, got shape \(0, 4\)"):
        quantize(np.zeros((0, 4), np.float16), BinTable.paper(4))
