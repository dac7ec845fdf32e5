"""binary16 helpers against exact rational arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstar.golden.half import MAX_HALF, carry, round_any, round_sum, saturate, widen

ALL = np.arange(2**16, dtype=np.uint16).view(np.float16)
FINITE = ALL[np.isfinite(ALL)]


def half_of(x: Fraction) -> float:
    """Nearest binary16 to a rational number, ties to even, infinite beyond the range."""
    magnitude = abs(x)
    if magnitude >= 65520:
        return float("inf") if x > 0 else float("-inf")
    exponent = -24
    while magnitude >= Fraction(2) ** (exponent + 11):
        exponent += 1
    unit = Fraction(2) ** exponent
    return float(round(x / unit) * unit)


halves = st.integers(0, len(FINITE) - 1).map(lambda i: FINITE[i])


@given(halves, halves)
def test_sum_is_rounded_once(a: np.float16, b: np.float16) -> None:
    total = round_sum(np.array([a], np.float32) + np.array([b], np.float32))
    assert float(total[0]) == half_of(Fraction(float(a)) + Fraction(float(b)))


def test_sums_equal_numpy_float16() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.choice(FINITE, 200_000), rng.choice(FINITE, 200_000)
    with np.errstate(over="ignore"):
        want = a + b
    np.testing.assert_array_equal(round_sum(widen(a) + widen(b)), want.astype(np.float32))


@pytest.mark.parametrize(
    ("a", "b", "want"),
    [
        (65504, 15.99, 65504),
        (65504, 16, np.inf),
        (-65504, -16, -np.inf),
        (2048, 1, 2048),
        (2048, 3, 2052),
        (2.0**-24, 2.0**-24, 2.0**-23),
        (1, 2.0**-24, 1),
        (0.0, -0.0, 0.0),
    ],
)
def test_sum_corners(a: float, b: float, want: float) -> None:
    x = widen(np.array([a], np.float16)) + widen(np.array([b], np.float16))
    assert round_sum(x)[0] == want


def test_widen_is_exact_for_every_pattern() -> None:
    wide = widen(ALL)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(wide, ALL.astype(np.float32))
    np.testing.assert_array_equal(wide[np.isfinite(ALL)].astype(np.float16), FINITE)


@given(st.floats(width=32, allow_nan=False))
def test_carry_rounds_float32(x: float) -> None:
    want = half_of(Fraction(x)) if np.isfinite(x) else x
    assert carry(np.array([x], np.float32))[0] == want


def test_carry_rounds_around_every_binary16() -> None:
    below, above = FINITE.astype(np.float32)[:-1], FINITE.astype(np.float32)[1:]
    ties = (below + above) / 2
    for x in (below, ties, np.nextafter(ties, below), np.nextafter(ties, above)):
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(carry(x), x.astype(np.float16).astype(np.float32))


def test_carry_keeps_signs_nan_and_the_input() -> None:
    x = np.array([-0.0, 0.0, np.nan, -np.inf, 1e-30, -1e-30], np.float32)
    before = x.copy()
    y = carry(x)
    np.testing.assert_array_equal(x, before)
    np.testing.assert_array_equal(y, [-0.0, 0.0, np.nan, -np.inf, 0.0, -0.0])
    assert np.signbit(y).tolist() == [True, False, False, True, False, True]


def test_float64_is_rounded_once() -> None:
    # Just above a tie of binary16, but on it after a first rounding to binary32.
    x = 1 + 2.0**-11 + 2.0**-40
    assert round_any(np.array([x]))[0] == carry(np.array([x]))[0] == np.float32(1 + 2.0**-10)


def test_saturate() -> None:
    x, clipped = saturate(np.array([np.inf, -np.inf, 3], np.float32))
    assert x.tolist() == [MAX_HALF, -MAX_HALF, 3]
    assert clipped
    assert not saturate(np.array([MAX_HALF, 0], np.float32))[1]
    assert not saturate(np.zeros((0, 3), np.float32))[1]


def test_other_types_are_refused() -> None:
    with pytest.raises(TypeError, match="must be float16 or float32, got int32"):
        widen(np.zeros(3, np.int32))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be float16, float32 or float64, got int32"):
        carry(np.zeros(3, np.int32))
