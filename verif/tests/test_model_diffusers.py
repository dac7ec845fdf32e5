"""Wrapped transformers of diffusers: FMDQ, SAR, fused projections, what cannot be wrapped."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dstar.gen.config import ConfigError
from dstar.golden.model.apply import apply
from dstar.golden.model.attention import AttentionError
from dstar.golden.model.fmdq import FMDQ
from dstar.golden.model.masks import AttentionProfile
from dstar.golden.model.sar import SAR
from dstar.verif.tests.diffusers_tools import FAMILIES, reference

#: Some inputs need no seed: every tolerance here is far from what any gives.
SEED = 0


@pytest.mark.parametrize("name", FAMILIES)
def test_attention_is_taken_over(name: str) -> None:
    """With every block computed and binary16 scores, images stay; each attention layer runs."""
    family, want = FAMILIES[name], reference(name, SEED)
    model = family.model()
    profile = AttentionProfile(block=16)
    wrapped = apply(model, None, profile)
    assert len(wrapped.attention) == family.attention
    torch.testing.assert_close(family.run(wrapped, SEED), want, atol=1e-5, rtol=0)
    assert wrapped.report().silent == ()
    assert profile.steps == 4
    assert torch.equal(family.run(wrapped.unwrap(), SEED), want)
    masks = profile.masks(0.1)
    wrapped = apply(model, None, SAR(masks=masks, interval=1, score_bits=8))
    pruned = family.run(wrapped, SEED)
    assert (pruned - want).std() < 0.05 * want.std()
    # Padded blocks make the share of blocks and of real scores differ a little.
    assert wrapped.report().pruned_fraction == pytest.approx(masks.pruned_fraction, abs=0.1)


@pytest.mark.parametrize("name", FAMILIES)
def test_fmdq_and_reuse(name: str) -> None:
    family, want = FAMILIES[name], reference(name, SEED)
    model = apply(family.model(), FMDQ(), SAR(interval=2))
    got = family.run(model, SEED)
    assert 0 < float((got - want).std()) < 0.05 * float(want.std())
    report = model.report()
    assert report.silent == ()
    assert 1 < report.average_bits < 8
    assert report.attention_fraction_computed < 0.75
    omitted = [name for name, layer in report.linear.items() if layer.total.omitted]
    assert {name.rpartition(".")[2] for name in omitted} <= {
        "to_q",
        "to_k",
        "add_q_proj",
        "add_k_proj",
    }
    assert len(omitted) >= 2 * family.attention


@pytest.mark.parametrize("name", ["pixart", "sd3", "flux"])
def test_fused_projections(name: str) -> None:
    """The unused projections are named; reuse skips the Q and K rows of the fused layer."""
    family, want = FAMILIES[name], reference(name, SEED)
    fused = family.model()
    fused.fuse_qkv_projections()
    model = apply(fused, FMDQ(), SAR(interval=2))
    got = family.run(model, SEED)
    assert (got - want).std() < 0.05 * want.std()
    report = model.report()
    assert report.silent
    assert {n.rpartition(".")[2] for n in report.silent} <= {
        *("to_q", "to_k", "to_v", "add_q_proj", "add_k_proj", "add_v_proj")
    }
    assert all(
        "to_qkv" in n or "to_added_qkv" in n or "to_kv" in n or "to_q" in n
        for n, layer in report.linear.items()
        if layer.total.omitted
    )
    assert "never ran" in str(report)
    assert report.attention_fraction_computed < 0.75


def test_guidance_in_the_batch_and_as_two_calls() -> None:
    """Both ways of guidance give each evaluation a state of its own, and the same values."""
    family = FAMILIES["dit"]
    torch.manual_seed(SEED)
    latent = torch.randn(1, 4, 16, 16)

    def guided(*, batched: bool, told: bool = False) -> tuple[torch.Tensor, float]:
        model, x = apply(family.model(), FMDQ(exponents={"*": 6}), SAR(interval=2)), latent
        for step in range(4):
            if told:
                model.step(step)
            with torch.no_grad():
                if batched:
                    labels = torch.tensor([1, 7])
                    out = family.call(model, torch.cat([x, x]), 9.0 - step, class_labels=labels)
                    real, null = out.chunk(2)
                else:
                    real, null = (
                        family.call(model, x, 9.0 - step, class_labels=torch.tensor([c]))
                        for c in (1, 7)
                    )
            x = x - 0.1 * (null + 2 * (real - null))[:, :4]
        assert model.clock.step == 3
        assert model.clock.evaluation == (0 if batched else 1)
        layer = model.layers["transformer_blocks.1.ff.net.2"]
        assert set(layer.states) == {(e, 0, 0) for e in range(1 if batched else 2)}
        return x, model.report().average_bits

    want, bits = guided(batched=True)
    got, same_bits = guided(batched=False)
    torch.testing.assert_close(got, want, atol=2e-2, rtol=0)
    assert same_bits == pytest.approx(bits, abs=0.02)
    assert torch.equal(guided(batched=False, told=True)[0], got)


def test_a_second_image_starts_afresh() -> None:
    family = FAMILIES["sd3"]
    model = apply(family.model(), FMDQ(exponents={"*": 5}))
    first = family.run(model, SEED)
    assert torch.equal(family.run(model, SEED), first)  # the time turned back
    report = model.report()
    assert sorted(report.linear["transformer_blocks.0.attn.to_q"].steps) == [0, 1, 2, 3]
    model.reset()
    assert model.report().linear == {}


def test_processors_without_the_product_are_refused() -> None:
    from diffusers.models.attention_processor import AttnProcessor

    family = FAMILIES["pixart"]
    model = family.model()
    model.set_attn_processor(AttnProcessor())
    with pytest.raises(AttentionError, match="called it 0 times with AttnProcessor"):
        family.run(apply(model, None, SAR()), SEED)


def test_compiled_models_are_refused() -> None:
    model = FAMILIES["dit"].model()
    compiled: Any = torch.compile(model, backend="eager")
    with pytest.raises(ConfigError, match=r"is compiled, .* use the eager model"):
        apply(compiled, FMDQ())
    model.transformer_blocks[0].compile(backend="eager")
    with pytest.raises(ConfigError, match=r"transformer_blocks\.0 is compiled"):
        apply(model, FMDQ())


def test_other_refusals() -> None:
    model = FAMILIES["dit"].model()
    with pytest.raises(ConfigError, match="layers must match a linear layer, got 'none'"):
        apply(model, FMDQ(), layers="none")
    with pytest.raises(ConfigError, match="attention_layers must match"):
        apply(model, None, SAR(), attention_layers="none")
    apply(model, FMDQ())
    with pytest.raises(ConfigError, match="wrapped already"):
        apply(model, FMDQ())
