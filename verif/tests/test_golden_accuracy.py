"""The golden layer against float64, with a stated bound, and what feedback is for."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dstar.golden.bins import BinTable
from dstar.golden.linear import FMDQLinear, LayerTables


def walk(shape: tuple[int, ...], steps: int, seed: int = 0) -> list[npt.NDArray[np.float16]]:
    """Activations that drift slowly, as between denoising steps."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=shape)
    out = []
    for _ in range(steps):
        out.append(x.astype(np.float16))
        x = x + rng.normal(size=shape) * 0.1 * rng.uniform(size=shape[-1])
    return out


@pytest.mark.parametrize("make", [BinTable.paper, BinTable.uniform])
@pytest.mark.parametrize("steps", [1, 12])
def test_error_against_float64_is_bounded(make: Any, steps: int) -> None:
    """Every output is within the sum of its error sources of the float64 layer.

    Activation: what is left of x after the last quantization, exactly known as x - x_hat.
    Weights: half a scale each.  Binary16: half an ulp for every rounding of y, and of x_hat,
    which drifts apart from the sum of its steps by half an ulp a step.
    """
    n, k, b = 24, 150, 6
    rng = np.random.default_rng(n * k)
    w, bias = rng.normal(size=(n, k)) / k**0.5, rng.normal(size=n)
    fmdq = FMDQLinear(w, bias, tables=LayerTables(delta=make(b)))
    xs = walk((70, k), steps)
    for x in xs:
        step = fmdq.step(x)
    reference = fmdq.reference
    assert reference is not None
    exact = xs[-1].astype(np.float64) @ w.T + bias
    magnitude = np.abs(w).sum(axis=1)
    left = np.abs(xs[-1].astype(np.float64) - reference) @ np.abs(fmdq.weight.dequantize()).T
    weights = np.abs(xs[-1].astype(np.float64)).sum(axis=1)[:, None] * fmdq.weight.scale / 2
    ulp_x = np.spacing(np.abs(reference).max()).astype(np.float64)
    ulp_y = np.spacing(np.abs(step.y).max() * np.float16(2)).astype(np.float64)
    drift = steps * ulp_x * magnitude + (2 * steps + 1) * ulp_y
    error = np.abs(step.y.astype(np.float64) - exact)
    assert (error <= left + weights + drift).all()
    # And the residual itself is at most one step of the table for values that did not clip.
    assert np.abs(xs[-1].astype(np.float64) - reference).max() <= 2.0**-b * 2


def test_feedback_keeps_errors_from_adding_up() -> None:
    xs = walk((64, 64), 24)
    errors = {}
    for mode in ("reconstructed", "previous"):
        rng = np.random.default_rng(5)
        w = rng.normal(size=(16, 64)) / 8
        fmdq = FMDQLinear(w, tables=LayerTables(delta=BinTable.paper(3)), mode=mode)
        for x in xs:
            step = fmdq.step(x)
        want = xs[-1].astype(np.float64) @ fmdq.weight.dequantize().T
        errors[mode] = float(np.square(step.y - want).mean())
    assert errors["previous"] > 4 * errors["reconstructed"]
