"""Sparse attention reuse: blocks, masks, reuse, quantized scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from dstar.gen.config import ConfigError
from dstar.golden.model.apply import apply
from dstar.golden.model.blocks import token_order
from dstar.golden.model.masks import AttentionProfile, BlockMasks, LayerMask, prune
from dstar.golden.model.method import Moment
from dstar.golden.model.sar import SAR, SARKernel
from dstar.verif.tests.model_tools import inputs, run, small_dit


def kernel(keep: Tensor, block: int, queries: int, keys: int, **settings: Any) -> SARKernel:
    """A kernel with a given mask (heads, query blocks, key blocks)."""
    mask = LayerMask(keep=keep, queries=queries, keys=keys, weights="")
    masks = BlockMasks(layers={}, block=block, order="raster", steps=50, thr=0.0)
    return SARKernel("layer", SAR(masks=masks, **settings), mask)


def expand(keep: Tensor, block: int, queries: int, keys: int) -> Tensor:
    """A block mask as a mask of scores."""
    grown = keep.repeat_interleave(block, dim=1).repeat_interleave(block, dim=2)
    return grown[:, :queries, :keys]


@pytest.mark.parametrize(
    ("queries", "keys"), [(64, 64), (63, 63), (65, 65), (1, 1), (100, 77), (1, 77)]
)
@pytest.mark.parametrize("masked", [False, True])
def test_block_sparse_equals_masked_dense(queries: int, keys: int, masked: bool, seed: int) -> None:
    """Pads inside, masks the pads: real tokens equal the dense product under the same mask."""
    torch.manual_seed(seed)
    block, heads, batch = 16, 3, 2
    keep = torch.rand(heads, -(-queries // block), -(-keys // block)) < 0.6
    keep[:, :, 0] = True
    keep[0, 0, -1] = keep.shape[2] == 1
    q, k, v = (torch.randn(batch, heads, n, 8) for n in (queries, keys, keys))
    mask = torch.rand(batch, 1, queries, keys) < 0.8 if masked else None
    if mask is not None:
        mask[..., 0] = True
    whole = (
        expand(keep, block, queries, keys)
        if mask is None
        else (expand(keep, block, queries, keys) & mask)
    )
    want = functional.scaled_dot_product_attention(q, k, v, attn_mask=whole)
    run_it = kernel(keep, block, queries, keys, interval=1, score_bits=None)
    scale = 8**-0.5
    o, stats = run_it(q, k, v, mask=mask, scale=scale, state={}, moment=Moment(0))
    torch.testing.assert_close(o, want, atol=2e-3, rtol=0)
    real = int(expand(keep, block, queries, keys).sum()) * batch
    assert (stats.computed, stats.used) == (real, real)
    assert stats.scores == batch * heads * queries * keys


def test_prune_stays_within_the_mass(seed: int) -> None:
    torch.manual_seed(seed)
    mass = torch.rand(4, 6, 6) ** 6
    share = mass / mass.sum(dim=(1, 2), keepdim=True)
    before = torch.ones(4, 6, 6, dtype=torch.bool)
    for thr in (0.0, 1e-3, 0.05, 0.3, 0.999):
        keep = prune(mass, thr)
        assert ((share * ~keep).sum(dim=(1, 2)) <= thr + 1e-6).all()
        assert keep.any(dim=-1).all()
        assert not (keep & ~before).any()  # more goes as thr grows
        before = keep
    assert keep.sum() == 4 * 6


def test_token_orders() -> None:
    assert token_order("raster", 256, 64) is None
    assert token_order("squares", 77, 64) is None
    order = token_order("squares", 256, 64)
    assert order is not None
    assert sorted(order.tolist()) == list(range(256))
    first = order[:64]
    assert {(int(t) // 16, int(t) % 16) for t in first} == {
        (r, c) for r in range(8) for c in range(8)
    }


@pytest.mark.parametrize("order", ["raster", "squares"])
def test_masks_that_keep_everything_change_nothing(order: Any, seed: int) -> None:
    x, y = inputs(2, seed)
    want = run(small_dit(), x, y)
    model = small_dit()
    profile = AttentionProfile(block=16, order=order)
    profiled = apply(model, None, profile)
    torch.testing.assert_close(run(profiled, x, y), want, atol=1e-5, rtol=0)
    profiled.unwrap()
    masks = profile.masks(0.2)
    assert 0 < masks.pruned_fraction < 1
    whole = apply(model, None, SAR(masks=profile.masks(0.0), interval=1, score_bits=None))
    torch.testing.assert_close(run(whole, x, y), want, atol=5e-3, rtol=0)
    whole.unwrap()
    pruned = apply(model, None, SAR(masks=masks, interval=1, score_bits=None, steps=4))
    run(pruned, x, y)
    report = pruned.report()
    assert report.pruned_fraction == pytest.approx(masks.pruned_fraction)
    assert report.score_cache_bytes == 0


def test_reuse_skips_projections(seed: int) -> None:
    x, y = inputs(2, seed)
    model = apply(small_dit(), None, SAR(interval=2, score_bits=4))
    run(model, x, y, steps=4)
    report = model.report()
    layer = report.linear["blocks.0.attn.qkv"].steps
    assert [layer[s].omitted for s in range(4)] == [0, 2 * 64 * 32 * 64, 0, 2 * 64 * 32 * 64]
    attention = report.attention["blocks.0.attn"].steps
    scores = 2 * 2 * 64 * 64
    assert [attention[s].computed for s in range(4)] == [scores, 0, scores, 0]
    size = scores / 2 + 2 * 2 * 64  # four bits a score, a byte a sub-channel
    assert [attention[s].written for s in range(4)] == [size, 0, size, 0]
    assert [attention[s].read for s in range(4)] == [0, size, 0, size]
    assert report.score_cache_bytes == 2 * size  # two layers
    assert report.score_cache_bytes_per_step == 2 * size
    dense = 2 * 64 * 32 * 64 + 2 * scores * 16
    done = 0.5 * 2 * 64 * 32 * 64 + 0.5 * scores * 16 + scores * 16
    assert report.attention_fraction_computed == pytest.approx(done / dense)


def test_reuse_takes_the_scores_of_the_step_before(seed: int) -> None:
    """At a step that reuses, o is the cached scores times the new v, and q and k do not count."""
    torch.manual_seed(seed)
    step = SARKernel("layer", SAR(interval=3, score_bits=None), None)
    q, k, v = torch.randn(3, 1, 2, 70, 8).unbind(0)
    state: dict[str, Any] = {}
    fresh = [step.needs_scores(state, Moment(0))]
    step(q, k, v, mask=None, scale=0.3, state=state, moment=Moment(0))
    for index in (1, 2, 3):
        fresh.append(step.needs_scores(state, Moment(index)))
    assert fresh == [True, False, False, True]
    new = torch.randn(1, 2, 70, 8)
    o, _ = step(q * 0, k * 0, new, mask=None, scale=0.3, state=state, moment=Moment(1))
    want = functional.scaled_dot_product_attention(q, k, new, scale=0.3)
    torch.testing.assert_close(o, want, atol=2e-3, rtol=0)


def test_mask_files(tmp_path: Path, seed: int) -> None:
    x, y = inputs(1, seed)
    model = small_dit()
    profile = AttentionProfile(block=16)
    wrapped = apply(model, None, profile)
    run(wrapped, x, y)
    wrapped.unwrap()
    masks = profile.masks(0.05)
    masks.save(tmp_path / "masks.json")
    again = BlockMasks.load(tmp_path / "masks.json")
    assert (again.block, again.order, again.steps, again.thr) == (16, "raster", 4, 0.05)
    for name, layer in masks.layers.items():
        assert torch.equal(again.layers[name].keep, layer.keep)
    run(apply(model, None, SAR(masks=again)), x, y)
    with pytest.raises(ConfigError, match="profile of 4 steps at step 4"):
        run(apply(small_dit(), None, SAR(masks=again)), x, y, steps=6)
    with pytest.raises(ConfigError, match="the run's 5 steps, got a profile of 4"):
        SAR(masks=again, steps=5)
    other = small_dit()
    with torch.no_grad():
        other.blocks[0].attn.qkv.weight[0, 0] += 1
    with pytest.raises(ConfigError, match=r"block mask of blocks\.0\.attn must be that of its"):
        apply(other, None, SAR(masks=again))
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"bad\.json must be a file of block masks"):
        BlockMasks.load(tmp_path / "bad.json")
    with pytest.raises(ConfigError, match=r"cannot read .*none\.json: No such file"):
        BlockMasks.load(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"interval": 0}, "interval must be at least 1, got 0"),
        ({"score_bits": 9}, 'score_bits must be 1 to 8, "mixed" or None, got 9'),
        ({"score_bits": "mix"}, "score_bits must be 1 to 8, \"mixed\" or None, got 'mix'"),
    ],
)
def test_refusals(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SAR(**settings)


def test_other_sizes_are_refused(seed: int) -> None:
    run_it = kernel(torch.ones(2, 4, 4, dtype=torch.bool), 16, 64, 64)
    q = torch.zeros(1, 2, 65, 8)
    with pytest.raises(ConfigError, match="64 x 64 tokens and 2 heads of its block mask, got 65"):
        run_it(q, q, q, mask=None, scale=1.0, state={}, moment=Moment(0))
