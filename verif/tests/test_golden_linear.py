"""A layer's state over steps: roundings, tiles, modes, flags and refusals."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dstar.gen.config import PRESETS, Config, ConfigError
from dstar.golden.bins import BinTable
from dstar.golden.linear import FMDQLinear, LayerTables, LinearStep
from dstar.golden.quantize import difference, quantize, reconstruct
from dstar.golden.weights import quantize_weight

TINY = PRESETS["tiny"]
DELTA = LayerTables(delta=BinTable.paper(5))


def walk(shape: tuple[int, ...], steps: int, seed: int = 0) -> list[npt.NDArray[np.float16]]:
    """Activations that drift slowly, as between denoising steps."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=shape)
    out = []
    for _ in range(steps):
        out.append(x.astype(np.float16))
        x = x + rng.normal(size=shape) * 0.1 * rng.uniform(size=shape[-1])
    return out


def layer(n: int, k: int, cfg: Config = TINY, **kw: Any) -> FMDQLinear:
    rng = np.random.default_rng(n * k)
    return FMDQLinear(
        rng.normal(size=(n, k)) / k**0.5, rng.normal(size=n), cfg=cfg, **{"tables": DELTA, **kw}
    )


def round_half(x: Fraction) -> np.float16:
    """Nearest binary16, ties to even, for magnitudes in its normal range."""
    if x == 0:
        return np.float16(0)
    near = np.float16(float(x))
    options = [
        near,
        np.nextafter(near, np.float16(np.inf)),
        np.nextafter(near, np.float16(-np.inf)),
    ]
    return min(options, key=lambda v: (abs(Fraction(float(v)) - x), int(v.view(np.uint16)) & 1))


def expected_y(step: LinearStep, before: npt.NDArray[np.float16]) -> npt.NDArray[np.float16]:
    """Outputs in rational arithmetic, tile by tile, from the integer sums."""
    rows = step.quantized.rows
    y = np.zeros_like(before)
    for r, n in np.ndindex(*before.shape):
        total = Fraction(0)
        for k, tile in enumerate(step.tiles[r // rows]):
            acc = int(step.acc(r // rows, k)[r % rows, n])
            total += acc * Fraction(2) ** -tile.last_exponent
        product = round_half(total * Fraction(float(step.weight.scale[n])))
        y[r, n] = round_half(Fraction(float(product)) + Fraction(float(before[r, n])))
    return y


@pytest.mark.parametrize("tokens", [1, 3, 4, 9])
def test_outputs_round_where_stated(tokens: int) -> None:
    fmdq = layer(3, 37)
    before = np.tile(fmdq.bias, (tokens, 1))
    for i, x in enumerate(walk((tokens, 37), 3)):
        step = fmdq.step(x)
        assert step.keyframe == (i == 0)
        assert step.y.dtype == np.float16
        np.testing.assert_array_equal(step.y, expected_y(step, before))
        before = step.y


@pytest.mark.parametrize("mode", ["reconstructed", "previous"])
def test_references_follow_the_mode(mode: Any) -> None:
    fmdq = layer(2, 5, mode=mode)
    reference: Any = np.zeros((6, 5), np.float16)
    for x in walk((6, 5), 4):
        start = fmdq.reference is None
        table = BinTable.keyframe(float(np.abs(x).max())) if start else DELTA.delta
        want = quantize(difference(x, None if start else reference), table, TINY.array.rows)
        step = fmdq.step(x)
        assert step.table == table
        np.testing.assert_array_equal(step.q, want.q)
        np.testing.assert_array_equal(step.exponent, want.exponent)
        reference = x if mode == "previous" else reconstruct(reference, want)[0]
        np.testing.assert_array_equal(fmdq.reference, reference)


def test_tiles_cover_the_layer() -> None:
    fmdq = layer(3, 37)
    step = fmdq.step(walk((9, 37), 1)[0])
    assert len(step.tiles) == 3
    assert [t.channels for t in step.tiles[0]] == [16, 16, 5]
    assert sum(t.slices for line in step.tiles for t in line) == step.slices
    for line in step.tiles:
        for k, tile in enumerate(line):
            tile.check(TINY)
            assert step.tile_weights(k).shape == (3, tile.channels)
            assert np.abs(step.acc(0, k)).max() <= TINY.numeric.acc_bound


def test_samples_of_a_batch_are_independent() -> None:
    together, alone = layer(4, 20), layer(4, 20)
    xs = walk((2, 7, 20), 3)
    batch = [together.step(x) for x in xs]
    for sample in range(2):
        alone.reset()
        alone.tables = LayerTables(delta=DELTA.delta, keyframe=batch[0].table)
        for x, got in zip(xs, batch, strict=True):
            want = alone.step(x[sample])
            np.testing.assert_array_equal(got.y[sample], want.y)
            np.testing.assert_array_equal(got.q[sample], want.q)
            line = got.tiles[sample * 2]
            np.testing.assert_array_equal(line[0].codes, want.tiles[0][0].codes)


def test_a_marked_step_is_a_keyframe_and_forgets_the_past() -> None:
    fmdq, fresh = layer(4, 20), layer(4, 20)
    first, second = walk((7, 20), 2)
    fmdq.step(first)
    again = fmdq.step(second, keyframe=True)
    assert again.keyframe
    np.testing.assert_array_equal(again.y, fresh.step(second).y)


def test_other_float_types_are_rounded_to_binary16_on_the_way_in() -> None:
    x = np.random.default_rng(3).normal(size=(5, 20))
    want = layer(4, 20).step(x.astype(np.float16)).y
    np.testing.assert_array_equal(layer(4, 20).step(x).y, want)
    single = x.astype(np.float32)
    want = layer(4, 20).step(single.astype(np.float16)).y
    np.testing.assert_array_equal(layer(4, 20).step(single).y, want)


def test_average_bits_and_slices() -> None:
    fmdq = layer(2, 4, tables=LayerTables(delta=BinTable.uniform(2)))
    x = np.zeros((4, 4), np.float16)
    fmdq.step(x)
    x[:, 1], x[:, 2], x[0, 3] = 0.25, 1.5, -20
    step = fmdq.step(x)
    assert step.precision.tolist() == [[0, 2, 4, 8]]
    assert (step.average_bits, step.slices) == (3.5, 7)


def test_nonfinite_inputs_are_flagged_and_do_not_last() -> None:
    fmdq = layer(3, 8)
    x = walk((4, 8), 1)[0]
    fmdq.step(x)
    bad = x.copy()
    bad[0, 0], bad[1, 1] = np.nan, np.inf
    step = fmdq.step(bad)
    assert step.nonfinite
    assert np.isfinite(step.y).all()
    assert fmdq.reference is not None
    assert np.isfinite(fmdq.reference).all()
    step = fmdq.step(x)
    assert not step.nonfinite


def test_a_keyframe_with_infinity_scales_by_the_finite_values() -> None:
    x = walk((4, 8), 1)[0]
    largest = float(np.abs(x[1:]).max())
    x[0] = np.inf
    step = layer(3, 8).step(x)
    assert step.nonfinite
    assert step.table == BinTable.keyframe(largest)


def test_outputs_beyond_binary16_saturate() -> None:
    fmdq = FMDQLinear(np.full((1, 4), 60000.0), tables=DELTA, cfg=TINY)
    step = fmdq.step(np.full((2, 4), 3.0, np.float16))
    assert step.y.tolist() == [[65504.0], [65504.0]]
    assert step.saturated
    assert not layer(2, 4).step(np.zeros((2, 4), np.float16)).saturated


def test_a_zero_and_a_tiny_weight_row() -> None:
    w = np.random.default_rng(0).normal(size=(32, 64)).astype(np.float16)
    w[0], w[1] = 0, 1e-6
    fmdq = FMDQLinear(w, tables=DELTA)
    for x in walk((65, 64), 3):
        step = fmdq.step(x)
        np.testing.assert_array_equal(step.y[:, 0], 0)
    want = x.astype(np.float64) @ w[1].astype(np.float64)
    np.testing.assert_allclose(step.y[:, 1], want, atol=2e-6)
    assert step.y[:, 1].any()


def test_refusals() -> None:
    fmdq = layer(2, 4)
    with pytest.raises(ValueError, match=r"x must have shape \(..., tokens, 4\), got \(3, 5\)"):
        fmdq.step(np.zeros((3, 5), np.float16))
    fmdq.step(np.zeros((3, 4), np.float16))
    with pytest.raises(ValueError, match=r"x must keep the shape \(3, 4\) between keyframes"):
        fmdq.step(np.zeros((2, 4), np.float16))
    with pytest.raises(TypeError, match="must be float16, float32 or float64, got int64"):
        fmdq.step(np.zeros((3, 4), np.int64))
    with pytest.raises(ValueError, match=r"bias must have shape \(2,\), got \(3,\)"):
        FMDQLinear(np.ones((2, 4)), np.ones(3), tables=DELTA)
    with pytest.raises(ValueError, match="bias must be finite in binary16"):
        FMDQLinear(np.ones((2, 4)), np.array([0, 1e6]), tables=DELTA)
    with pytest.raises(ValueError, match="mode must be 'reconstructed' or 'previous', got 'x'"):
        FMDQLinear(np.ones((2, 4)), tables=DELTA, mode="x")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="must be at most 508"):
        FMDQLinear(np.ones((2, 4)), tables=LayerTables(delta=BinTable.paper(4, span=3)))


def test_float_and_quantized_weights_are_the_same() -> None:
    w = np.random.default_rng(7).normal(size=(3, 9))
    x = walk((5, 9), 1)[0]
    a, b = FMDQLinear(w, tables=DELTA), FMDQLinear(quantize_weight(w), tables=DELTA)
    np.testing.assert_array_equal(a.step(x).y, b.step(x).y)
