"""Formats of cached scores: values, bits, sizes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from dstar.gen.config import ConfigError
from dstar.golden.model.masks import BlockMasks, LayerMask
from dstar.golden.model.method import Moment
from dstar.golden.model.sar import SAR, SARKernel
from dstar.golden.model.scores import FixedBits, MixedBits, ScoreTable


@pytest.mark.parametrize("bits", [1, 2, 4, 6, 8])
def test_fixed_bits(bits: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    p = torch.from_numpy(rng.random((2, 3, 70, 9)).astype(np.float32) ** 8)
    p[0, 0, :64, 0] = 0
    p[0, 1, 3, 2] = (2**bits - 0.5) / 2**bits  # would round to 2**bits at the finer scale
    scores = FixedBits(bits).quantize(p, 64, 9)
    assert scores.exponent.shape == (2, 3, 2, 9)
    assert int(scores.values.max()) <= 2**bits - 1
    step = torch.exp2(-scores.exponent.float()).repeat_interleave(64, dim=2)[:, :, :70]
    assert ((scores.float() - p).abs() <= step / 2).all()
    # The scale is the finest one at which the largest value fits.
    peak = torch.stack([p[:, :, :64].amax(2), p[:, :, 64:].amax(2)], dim=2)
    finer = torch.round(peak * torch.exp2(scores.exponent.float() + 1))
    assert ((finer > 2**bits - 1) | (scores.exponent == 24) | (peak == 0)).all()


def mixed_by_hand(p: np.ndarray, b: int) -> tuple[np.ndarray, int]:
    """One sub-channel by the rule: as few bits as the step asks for, or 8 at a coarser step."""
    peak = float(p.max())
    if peak <= 2.0 ** -(b + 1):
        return np.zeros_like(p), 0
    f, bits = b, 1
    while bits < 8 and peak * 2.0**f > 2**bits - 0.5:
        bits += 1
    while peak * 2.0**f > 2**bits - 0.5:
        f -= 1
    return np.minimum(np.round(p * 2.0**f), 2**bits - 1) * 2.0**-f, bits


@pytest.mark.parametrize("keys", [1, 2, 77, 256, 4608, 100_000])
def test_mixed_bits(keys: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    p = rng.random((1, 2, 70, 40)).astype(np.float32) * np.exp2(-rng.integers(0, 18, 40))
    p = p.astype(np.float32)
    p[0, 0, 3, :3] = 1.0, 255.5 / 256, 0.75
    p[..., 3] = 0
    b = min(math.ceil(math.log2(keys)) + 2, 14)
    p[..., 4] = 0
    p[0, 0, 0, 4] = 2.0 ** -(b + 1)  # half a step: rounds to 0
    scores = MixedBits().quantize(torch.from_numpy(p), 64, keys)
    assert isinstance(scores.bits, Tensor)
    assert set(scores.bits.flatten().tolist()) <= set(range(9))
    q = scores.values.int()
    got = scores.float().numpy()
    for head in range(2):
        for tile, rows in enumerate((slice(0, 64), slice(64, 70))):
            for key in range(40):
                want, bits = mixed_by_hand(p[0, head, rows, key], b)
                assert int(scores.bits[0, head, tile, key]) == bits
                np.testing.assert_array_equal(got[0, head, rows, key], want)
                assert int(q[0, head, rows, key].max()) <= 2**bits - 1
    assert np.abs(got - p).max() <= max(2.0 ** -(b + 1), 2.0**-8)


def test_the_tag_holds_every_table() -> None:
    for b in range(15):
        table = ScoreTable(b)
        assert len(table.thresholds) <= 16
        assert (table.thresholds.diff() > 0).all()
        assert (table.thresholds.half().float() == table.thresholds).all()  # as hardware compares
        assert table.thresholds[-2] < 1 <= table.thresholds[-1]


def dense_bytes(p: Tensor, rows: int, finer: int = 2) -> float:
    """Bytes of mixed scores (batch, heads, queries, keys), tile by tile."""
    b = math.ceil(math.log2(p.shape[-1])) + finer
    total = 0.0
    for x in p.flatten(0, 1).numpy():
        for top in range(0, len(x), rows):
            tile = x[top : top + rows]
            bits = [mixed_by_hand(column, b)[1] for column in tile.T]
            total += sum(bits) * len(tile) + 4 * len(bits)
    return total / 8


@pytest.mark.parametrize(("queries", "keys"), [(64, 64), (70, 70), (1, 1), (100, 77), (1, 77)])
def test_mixed_bytes(queries: int, keys: int, seed: int) -> None:
    torch.manual_seed(seed)
    q, k, v = (torch.randn(2, 3, n, 8) for n in (queries, keys, keys))
    step = SARKernel("layer", SAR(interval=2, score_bits="mixed"), None)
    _, stats = step(q, k, v, mask=None, scale=1.0, state={}, moment=Moment(0))
    p = (q @ k.transpose(-1, -2)).softmax(-1)
    assert stats.written == stats.cached == dense_bytes(p, 64)


@pytest.mark.parametrize("score_bits", [4, "mixed"])
@pytest.mark.parametrize("tokens", [63, 65, 100])
def test_blocks_of_padded_tokens_cost_and_give_what_tiles_do(
    score_bits: Any, tokens: int, seed: int
) -> None:
    """One block pruned: the other query blocks' results and bytes are those of dense tiles."""
    torch.manual_seed(seed)
    block, count = 16, -(-tokens // 16)
    keep = torch.ones(1, count, count, dtype=torch.bool)
    keep[0, 0, 1] = False
    mask = LayerMask(keep=keep, queries=tokens, keys=tokens, weights="")
    masks = BlockMasks(layers={}, block=block, order="raster", steps=2, thr=0.0)
    sparse = SARKernel("layer", SAR(masks=masks, score_bits=score_bits), mask)
    q, k, v = torch.randn(3, 2, 1, tokens, 8).unbind(0)
    o, stats = sparse(q, k, v, mask=None, scale=1.0, state={}, moment=Moment(0))
    allowed = torch.ones(tokens, tokens, dtype=torch.bool)
    allowed[:16, 16:32] = False
    whole = LayerMask(keep=keep | True, queries=tokens, keys=tokens, weights="")
    dense = SARKernel("layer", SAR(masks=masks, score_bits=score_bits), whole)
    want, full = dense(q, k, v, mask=allowed, scale=1.0, state={}, moment=Moment(0))
    torch.testing.assert_close(o, want, atol=2e-6, rtol=0)
    # The pruned block's scores are 0 in the dense product: only fixed bits store them.
    width = min(tokens, 32) - 16
    gone = 2 * width * (16 * 4 + 8 if score_bits == 4 else 4) / 8
    assert stats.cached == full.cached - gone


def test_samples_of_a_batch_keep_their_own_bits(seed: int) -> None:
    torch.manual_seed(seed)
    q, k, v = torch.randn(3, 3, 2, 70, 8).unbind(0)
    scale = torch.tensor([0.1, 1.0, 4.0])[:, None, None, None]  # flat to peaked
    step = SARKernel("layer", SAR(interval=2, score_bits="mixed"), None)
    state: dict[str, Any] = {}
    step(q * scale, k, v, mask=None, scale=1.0, state=state, moment=Moment(0))
    new = torch.randn_like(v)
    o, stats = step(q, k, new, mask=None, scale=1.0, state=state, moment=Moment(1))
    alone, read = [], 0.0
    for i in range(3):
        one: dict[str, Any] = {}
        x = (q * scale)[i : i + 1], k[i : i + 1]
        step(*x, v[i : i + 1], mask=None, scale=1.0, state=one, moment=Moment(0))
        y, part = step(*x, new[i : i + 1], mask=None, scale=1.0, state=one, moment=Moment(1))
        alone.append(y)
        read += part.read
    torch.testing.assert_close(o, torch.cat(alone))
    assert stats.read == read


def test_mixed_scores_lose_little() -> None:
    """The relative error of even attention does not depend on the number of keys.

    That of scores of 1 / keys, in steps of a quarter of it, is 1 / (12 * 16) = 0.0052.
    """
    torch.manual_seed(1)
    for tokens in (64, 256, 1024):
        q, k, v = torch.randn(3, 1, 2, tokens, 8).unbind(0)
        step = SARKernel("layer", SAR(interval=2, score_bits="mixed"), None)
        o, stats = step(q, k, v, mask=None, scale=0.3, state={}, moment=Moment(0))
        want = functional.scaled_dot_product_attention(q, k, v, scale=0.3)
        assert (o - want).square().mean() < 0.006 * want.square().mean()
        assert stats.cached < 0.6 * stats.scores


def test_refused_formats() -> None:
    with pytest.raises(ConfigError, match="finer must be -4 to 4, got 5"):
        MixedBits(finer=5)
