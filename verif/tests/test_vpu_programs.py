"""The VPU's programs in the golden model against float64, and what it refuses."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from dstar.gen.config import VectorConfig
from dstar.golden.vpu.generate import ulp
from dstar.golden.vpu.isa import Instruction, Op, Program, Source
from dstar.golden.vpu.programs import (
    layer_norm,
    modulate,
    normalize,
    residual,
    softmax,
    softmax_row,
    unary,
)
from dstar.golden.vpu.steps import body_cycles, program_cycles
from dstar.golden.vpu.vpu import VPU

Half = npt.NDArray[np.float16]
Float64 = npt.NDArray[np.float64]


def softmax_rows(x: Half, cfg: VectorConfig | None = None) -> Float64:
    """Softmax of (keys, queries) by the programs."""
    unit = VPU(x.shape[1], cfg)
    exponentials = unit.run(softmax(len(x)), np.concatenate([x, x]))
    return unit.run(normalize(len(x)), exponentials).astype(np.float64)


@pytest.mark.parametrize("spread", [0.1, 1.0, 4.0])
def test_softmax_over_4608_keys(spread: float, seed: int) -> None:
    x = (np.random.default_rng(seed).standard_normal((4608, 8)) * spread).astype(np.float16)
    x[:, 0] = 0.5
    got, wide = softmax_rows(x), x.astype(np.float64)
    want = np.exp(wide - wide.max(axis=0))
    want /= want.sum(axis=0)
    assert np.abs(got - want).max() < 1e-3
    assert np.abs(got.sum(axis=0) - 1).max() < 2e-3


def test_softmax_extremes() -> None:
    x = np.zeros((6, 5), np.float16)
    x[:, 0] = -np.inf
    x[:, 1] = 7
    x[3, 2] = 65504
    x[:, 3] = np.arange(6) * 2.0**-24
    x[1:, 4] = -np.inf
    y = softmax_rows(x)
    assert np.isnan(y[:, 0]).all()
    np.testing.assert_allclose(y[:, 1], 1 / 6, rtol=1e-3)
    assert y[:, 2].tolist() == [0, 0, 0, 1, 0, 0]
    np.testing.assert_allclose(y[:, 3], 1 / 6, rtol=1e-3)
    assert y[:, 4].tolist() == [1, 0, 0, 0, 0, 0]


def test_softmax_layouts_agree(seed: int) -> None:
    x = np.random.default_rng(seed).standard_normal((24, 8)).astype(np.float16)
    columns = softmax_rows(np.concatenate([x.reshape(-1, 1)] * 8, axis=1))[:, 0]
    unit = VPU(8)
    rows = unit.run(normalize(24), unit.run(softmax_row(24), np.concatenate([x, x])))
    np.testing.assert_allclose(rows.ravel(), columns, rtol=2**-10)


def norm(x: Half, epsilon: float = 1e-6) -> Float64:
    """LayerNorm of (channels, tokens) in extended precision."""
    wide = x.astype(np.longdouble)
    centred = wide - wide.mean(axis=0)
    result = centred / np.sqrt((centred**2).mean(axis=0) + np.longdouble(epsilon))
    return result.astype(np.float64)


@pytest.mark.parametrize(
    ("spread", "mean"), [(1.0, 0.0), (1.0, 5.0), (30.0, -3.0), (0.01, 0.2), (300.0, 1000.0)]
)
@pytest.mark.parametrize("channels", [37, 1152])
def test_layer_norm_is_within_a_unit(spread: float, mean: float, channels: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((channels, 64)) * spread + mean).astype(np.float16)
    got = VPU(64).run(layer_norm(channels), np.concatenate([x] * 3)).astype(np.float64)
    want = norm(x)
    assert (np.abs(got - want) / ulp(want)).max() < 1.0


def test_modulated_layer_norm_and_residual(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, h = rng.standard_normal((2, 48, 8)).astype(np.float16)
    one_scale, shift, gate = rng.standard_normal((3, 48)).astype(np.float16)
    scalars = np.stack([one_scale, shift], axis=1).ravel()
    wide = norm(x) * one_scale[:, None].astype(np.float64) + shift[:, None].astype(np.float64)
    got = VPU(8).run(layer_norm(48, modulate=True), np.concatenate([x] * 3), scalars)
    np.testing.assert_allclose(got, wide, rtol=2**-10, atol=2**-12)
    again = VPU(8).run(modulate(48), x, scalars)
    exact = x.astype(np.float64) * one_scale[:, None] + shift[:, None].astype(np.float64)
    np.testing.assert_allclose(again, exact, rtol=2**-10, atol=2**-12)
    pairs = np.stack([h, x], axis=1).reshape(-1, 8)
    gated = VPU(8).run(residual(48, gate=True), pairs, gate).astype(np.float64)
    exact = x.astype(np.float64) + h.astype(np.float64) * gate[:, None]
    np.testing.assert_allclose(gated, exact, rtol=2**-10, atol=2**-12)
    plain = VPU(8).run(residual(48), pairs)
    exact = x.astype(np.float64) + h.astype(np.float64)
    assert (np.abs(plain.astype(np.float64) - exact) / ulp(exact)).max() <= 0.5625


def test_streams_must_fit_the_programs() -> None:
    x = np.zeros((3, 4), np.float16)
    with pytest.raises(ValueError, match="the programs take 2 input words, got 3"):
        VPU(4).run(unary(Op.EXP, 2), x)
    with pytest.raises(ValueError, match="the programs take 3 scalar words, got 0"):
        VPU(4).run(residual(3, gate=True), np.zeros((6, 4), np.float16))
    long = Program((Instruction(Op.MOVE),) * 17)
    with pytest.raises(ValueError, match="a program must have at most 16 instructions, got 17"):
        VPU(4).run([long], x[:0])


def test_instructions_are_checked() -> None:
    with pytest.raises(ValueError, match=r"constant must be a private float, got 0\.1"):
        Instruction(Op.MOVE, 0, Source.CONSTANT, constant=0.1)
    with pytest.raises(ValueError, match="must not read both SCALAR and CONSTANT"):
        Instruction(Op.ADD, 0, Source.SCALAR, Source.CONSTANT)
    with pytest.raises(ValueError, match="dst must be from 0 to 3, got 4"):
        Instruction(Op.MOVE, 4)
    with pytest.raises(ValueError, match="count must be from 1 to 65536, got 0"):
        Program((Instruction(Op.MOVE),), 0)
    with pytest.raises(ValueError, match="a program must have instructions, got none"):
        Program(())


def test_cycle_counts() -> None:
    (gelu,) = unary(Op.GELU, 64)
    assert body_cycles(gelu, 64) == 16
    assert program_cycles(gelu, 64) == 64 * 16 + 2
    assert sum(body_cycles(p, 64) for p in softmax(64) if p.count > 1) == 2 + 3 + 8
