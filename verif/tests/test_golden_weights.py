"""Weight quantization: zero rows, tiny rows, ties, refusals."""

from __future__ import annotations

import numpy as np
import pytest

from dstar.golden.weights import MIN_SCALE, quantize_weight


def test_zero_and_tiny_rows_survive() -> None:
    w = np.random.default_rng(0).normal(size=(32, 64)).astype(np.float16)
    w[0] = 0
    w[1] = 1e-6
    got = quantize_weight(w)
    assert got.scale[0] == 1
    assert not got.q[0].any()
    assert (got.q[1] >= 126).all()
    np.testing.assert_allclose(got.dequantize()[1], w[1].astype(np.float32), rtol=0.01)
    assert np.isfinite(got.scale).all()
    assert (got.scale > 0).all()


def test_q_is_symmetric_and_within_half_a_step() -> None:
    w = np.random.default_rng(1).normal(size=(50, 40)) * np.logspace(-30, 3, 50)[:, None]
    got = quantize_weight(w)
    assert got.q.min() >= -127
    assert (np.abs(got.q).max(axis=1) >= 126).all()
    step = got.scale[:, None].astype(np.float64)
    assert (np.abs(got.q * step - w) <= step / 2).all()


def test_ties_go_to_even() -> None:
    got = quantize_weight(np.array([[127, 0.5, -0.5, 1.5, -1.5, 2.5, 126.5, -126.5]]))
    assert got.scale[0] == 1
    assert got.q[0].tolist() == [127, 0, 0, 2, -2, 2, 126, -126]


def test_scales_are_bfloat16_rounded_up() -> None:
    w = np.random.default_rng(2).normal(size=(200, 3))
    got = quantize_weight(w)
    assert not (got.scale.view(np.uint32) & 0xFFFF).any()
    exact = np.abs(w).max(axis=1) / 127
    assert (got.scale >= exact).all()
    assert (got.scale < exact * (1 + 2.0**-7)).all()


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_bits(bits: int) -> None:
    got = quantize_weight(np.array([[1.0, -1.0, 0.3]]), bits=bits)
    limit = 2 ** (bits - 1) - 1
    assert got.q[0, :2].tolist() in ([limit, -limit], [limit - 1, 1 - limit])


def test_rows_below_the_smallest_scale() -> None:
    got = quantize_weight(np.array([[1e-44, 0.0]]))
    assert got.scale[0] == MIN_SCALE
    assert not got.q.any()


def test_bad_weights_are_refused_by_position() -> None:
    w = np.ones((3, 4), np.float32)
    w[2, 1] = np.inf
    with pytest.raises(ValueError, match=r"weights must be finite, got inf at \[2, 1\]"):
        quantize_weight(w)
    with pytest.raises(ValueError, match=r"weights must have shape \(out, in\), got \(3,\)"):
        quantize_weight(np.ones(3))
