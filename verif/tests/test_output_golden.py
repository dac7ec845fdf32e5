"""The output path's golden model against the layer model."""

from __future__ import annotations

import numpy as np
import pytest

from dstar.gen.config import PRESETS, Config
from dstar.golden.output import output, total_sums
from dstar.verif.tests.output_tools import ODD, TINY, layer_steps


@pytest.mark.parametrize("cfg", [PRESETS["paper"], TINY, ODD], ids=["paper", "tiny", "odd"])
def test_golden_equals_layer_model(cfg: Config, seed: int) -> None:
    for step in layer_steps(cfg, seed, out=70, channels=3 * cfg.numeric.k_tile - 1):
        y, saturated = output(
            step.sums, step.exponents, finest=step.finest, scale=step.scale, addend=step.addend
        )
        np.testing.assert_array_equal(y.view(np.uint16), step.y.view(np.uint16))
        assert saturated == step.saturated


def test_golden_saturates_and_says_so(seed: int) -> None:
    steps = layer_steps(TINY, seed, out=4, channels=64, size=3e4)
    results = [
        output(s.sums, s.exponents, finest=s.finest, scale=s.scale, addend=s.addend) for s in steps
    ]
    assert any(saturated for _, saturated in results)
    assert all(np.isfinite(y).all() for y, _ in results)
    for step, (y, _) in zip(steps, results, strict=True):
        np.testing.assert_array_equal(y, step.y)


def test_exponent_beyond_finest_is_refused() -> None:
    with pytest.raises(ValueError, match=r"exponents must be at most 3 \(finest\), got 4"):
        total_sums(np.ones((1, 1, 1), np.int64), np.array([4], np.int8), 3)
