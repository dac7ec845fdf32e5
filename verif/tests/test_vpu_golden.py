"""The golden VPU against float64, and its private arithmetic against exact arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstar.gen.config import ConfigError, VectorConfig
from dstar.golden.vpu.float import (
    FRACTION_BITS,
    SIGNIFICAND_BITS,
    WIDTH,
    Accumulator,
    add,
    fold,
    from_bits,
    from_half,
    maximum,
    multiply,
    to_bits,
    to_half,
)
from dstar.golden.vpu.generate import compare, generate, main, measure, reference
from dstar.golden.vpu.tables import TABLES, build_table
from dstar.golden.vpu.unary import FUNCTIONS, Name

#: Any pattern without subnormals, which the format does not have.
patterns = st.integers(0, 2**WIDTH - 1).filter(
    lambda b: b >> FRACTION_BITS & 0xFF or not b % 2**FRACTION_BITS
)


def nearest(x: Fraction) -> float:
    """Nearest private float, ties to even."""
    if x == 0:
        return 0.0
    exponent = math.frexp(float(x))[1] - SIGNIFICAND_BITS
    while abs(x) >= Fraction(2) ** (exponent + SIGNIFICAND_BITS):
        exponent += 1
    while abs(x) < Fraction(2) ** (exponent + FRACTION_BITS):
        exponent -= 1
    value = Fraction(round(x / Fraction(2) ** exponent)) * Fraction(2) ** exponent
    if abs(value) < Fraction(2) ** -126:
        return 0.0
    return math.copysign(math.inf, x) if abs(value) >= 2**128 else float(value)


@given(patterns, patterns)
def test_private_arithmetic_rounds_once(a_bits: int, b_bits: int) -> None:
    a, b = (from_bits(np.array([x], np.uint32)) for x in (a_bits, b_bits))
    x, y = float(a[0]), float(b[0])
    total, product, larger = (float(f(a, b)[0]) for f in (add, multiply, maximum))
    if math.isnan(x) or math.isnan(y):
        assert math.isnan(total)
        assert math.isnan(product)
        assert math.isnan(larger)
        return
    assert larger == max(x, y)
    if math.isfinite(x) and math.isfinite(y):
        assert total == nearest(Fraction(x) + Fraction(y))
        assert product == nearest(Fraction(x) * Fraction(y))
        assert math.copysign(1, product) == math.copysign(1, x) * math.copysign(1, y)


def test_half_conversions_are_exact_and_round_once() -> None:
    half = np.arange(2**16, dtype=np.uint16).view(np.float16)
    back = to_half(from_half(half))
    np.testing.assert_array_equal(back, half)
    bits = np.arange(2**WIDTH, dtype=np.uint32)[:: 2**3 + 1]
    wide = from_bits(bits[(bits >> FRACTION_BITS & 0xFF) > 0])
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(to_half(wide), wide.astype(np.float16))
    assert to_bits(from_half(np.array([np.nan], np.float16)))[0] == 0x7FC000 >> (24 - WIDTH)


def test_maximum_of_zeros() -> None:
    a, b = np.array([-0.0, 0.0, -0.0], np.float32), np.array([0.0, -0.0, -0.0], np.float32)
    assert np.signbit(maximum(a, b)).tolist() == [False, False, True]


@given(st.lists(st.integers(0, 2**16 - 1), min_size=1, max_size=40))
def test_accumulator_is_exact(patterns: list[int]) -> None:
    values = np.array(patterns, np.uint16).view(np.float16)
    acc = Accumulator((1,), 60, 28)
    for value in values:
        acc.add(from_half(np.array([value])))
    got = float(acc.read()[0])
    if np.isfinite(values).all():
        assert got == nearest(sum((Fraction(float(v)) for v in values), Fraction(0)))
    else:
        with np.errstate(invalid="ignore"):
            want = float(values[~np.isfinite(values)].astype(np.float64).sum())
        assert got == want or (math.isnan(got) and math.isnan(want))


def test_accumulator_overflow_is_infinite() -> None:
    acc = Accumulator((3,), 42, 24)
    acc.add(np.array([2.0**17, 2.0**16, -(2.0**17)], np.float32))
    acc.add(np.array([0, 2.0**16, 0], np.float32))
    assert acc.read().tolist() == [np.inf, np.inf, -np.inf]
    acc.clear()
    assert acc.read().tolist() == [0, 0, 0]


@pytest.mark.parametrize("lanes", [1, 2, 5, 64])
def test_fold_sums_all_lanes(lanes: int, seed: int) -> None:
    x = np.random.default_rng(seed).standard_normal((3, lanes)).astype(np.float16)
    got = fold(from_half(x))
    assert got.shape == x.shape
    assert (got == got[:, :1]).all()
    # Each value goes through a tree of additions, each to the nearest: half a unit of 2**-10.
    wide, additions = x.astype(np.float64), (lanes - 1).bit_length()
    bound = ((1 + 2.0**-11) ** additions - 1) * np.abs(wide).sum(axis=1)
    assert (np.abs(got[:, 0] - wide.sum(axis=1)) <= bound).all()


def test_fold_order() -> None:
    """Lane 0 takes in lane 4, lanes 1 to 3 nobody; then 2, 3; then 1."""
    x = np.array([1, 2.0**-14, 0, 2.0**-14, 2.0**-14], np.float32)
    # 1 + 2**-14 is a tie, and stays 1; the pair in lane 1 is 2**-13, a whole place.
    assert fold(x).tolist() == [1 + 2.0**-13] * 5


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_is_within_a_unit_everywhere(name: Name) -> None:
    accuracy = measure(name, VectorConfig())
    assert accuracy.errors.shape == (2**16,)
    assert accuracy.worst <= 0.79
    assert accuracy.against == 0


def test_measurement_sees_errors() -> None:
    want = reference("exp")
    with np.errstate(over="ignore"):
        good = want.astype(np.float16).astype(np.float64)
    assert compare("exp", good, want).passes
    for pattern, wrong in ((0x3C00, 2.72 + 0.004), (0xFC00, 2.0**-24), (0x7C00, 65504.0)):
        bad = good.copy()
        bad[pattern] = wrong
        assert not compare("exp", bad, want).passes
    bad = good.copy()
    bad[0x0001] = np.nextafter(np.float16(1), np.float16(0))
    assert compare("exp", bad, want).against == 1


def test_references_obey_identities() -> None:
    x = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float64)
    keep = np.isfinite(x) & (np.abs(x) < 20) & (x != 0)
    s, mirrored = reference("sigmoid")[keep], np.roll(reference("sigmoid"), 2**15)[keep]
    np.testing.assert_allclose(s + mirrored, 1, rtol=1e-15)
    np.testing.assert_allclose(reference("silu")[keep], x[keep] * s, rtol=1e-15)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"segments": 6}, "vector.segments must be a power of two from 2 to 64, got 6"),
        ({"width": 31}, "vector.width must be an integer from 18 to 30, got 31"),
        ({"acc_width": 63}, "vector.acc_width must be an integer from 42 to 62, got 63"),
        ({"acc_fraction": 23}, "vector.acc_fraction must be an integer from 24 to 43, got 23"),
        ({"program": 1}, "vector.program must be an integer from 2 to 64, got 1"),
    ],
)
def test_configuration_is_checked(values: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        VectorConfig(**values)


def test_generator_refuses_what_misses_the_bound(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match=r"silu must be within 1 unit .* and 1 steps against"):
        generate(VectorConfig(width=20))
    with pytest.raises(ConfigError, match=r"segments 4, .* of table tanh_form must be below"):
        generate(VectorConfig(segments=4))
    assert main(["--width", "20"]) == 1
    assert "refused: vector.segments 8, vector.width 20: silu" in capsys.readouterr().err
    assert main([]) == 0
    assert "gelu_tanh    0.616" in capsys.readouterr().out


@pytest.mark.parametrize("cfg", [VectorConfig(segments=16, width=24), VectorConfig(width=22)])
def test_generator_accepts_other_configurations(cfg: VectorConfig) -> None:
    assert all(accuracy.passes for accuracy in generate(cfg))


@pytest.mark.parametrize("name", TABLES)
def test_tables_stay_in_their_width(name: str) -> None:
    table = build_table(name, segments=8, width=22)
    segment, position = np.meshgrid(np.arange(8), np.arange(2**16), indexing="ij")
    assert np.abs(table.evaluate(segment, position)).max() < 2**21
