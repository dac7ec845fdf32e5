"""diffusers' transformers from small random configurations, and how to call each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Family:
    """A transformer class and its inputs.

    ``make``: builds it.  ``inputs``: keyword arguments of a call for a batch, without the time.
    ``attention``: number of attention layers.  ``latent``: name of the latent argument.
    """

    make: Callable[[], Any]
    inputs: Callable[[int], dict[str, Any]]
    attention: int
    extra: dict[str, Any] = field(default_factory=dict)

    def model(self) -> Any:
        """The transformer with random weights, the same at each call."""
        torch.manual_seed(3)
        model = self.make().eval()
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.15)
            elif "norm" not in name:
                nn.init.normal_(parameter, std=0.1)
        return model

    def call(self, model: nn.Module, latent: Tensor, time: float, **others: Any) -> Tensor:
        """One evaluation."""
        times = torch.full((len(latent),), time)
        result = model(hidden_states=latent, timestep=times, **others, return_dict=False)
        out: Tensor = result[0]
        return out

    @torch.no_grad()
    def run(
        self, model: nn.Module, seed: int, steps: int = 4, batch: int = 2, **more: Any
    ) -> Tensor:
        """A few steps of a made-up sampler: the latent after the last."""
        torch.manual_seed(seed)
        others = self.inputs(batch) | more
        latent = others.pop("hidden_states")
        for step in range(steps):
            time = 900.0 - 100 * step
            change = self.call(model, latent, time, **others)
            if change.shape[1] != latent.shape[1]:
                change = change.chunk(2, dim=1)[0]
            latent = latent - 0.1 * change
        return latent


def library() -> Any:
    """diffusers, imported when first needed."""
    return import_module("diffusers")


def _dit() -> Any:
    return library().DiTTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=8,
        in_channels=4,
        out_channels=8,
        num_layers=2,
        sample_size=16,
        num_embeds_ada_norm=10,
    )


def _pixart() -> Any:
    return library().PixArtTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=8,
        in_channels=4,
        out_channels=8,
        num_layers=2,
        sample_size=16,
        cross_attention_dim=16,
        caption_channels=12,
        use_additional_conditions=False,
    )


def _sd3() -> Any:
    return library().SD3Transformer2DModel(
        sample_size=16,
        patch_size=2,
        in_channels=4,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=2,
        joint_attention_dim=12,
        caption_projection_dim=16,
        pooled_projection_dim=10,
        out_channels=4,
        pos_embed_max_size=16,
        qk_norm="rms_norm",
    )


def _flux() -> Any:
    return library().FluxTransformer2DModel(
        in_channels=4,
        num_layers=1,
        num_single_layers=2,
        attention_head_dim=8,
        num_attention_heads=2,
        joint_attention_dim=12,
        pooled_projection_dim=10,
        axes_dims_rope=(4, 2, 2),
    )


def _latte() -> Any:
    return library().LatteTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=8,
        in_channels=4,
        out_channels=8,
        num_layers=1,
        cross_attention_dim=16,
        sample_size=16,
        patch_size=2,
        num_embeds_ada_norm=1000,
        norm_type="ada_norm_single",
        norm_elementwise_affine=False,
        caption_channels=12,
        video_length=3,
        activation_fn="gelu-approximate",
        attention_bias=True,
    )


def _text(batch: int, tokens: int = 77) -> dict[str, Any]:
    mask = torch.ones(batch, tokens)
    mask[0, 50:] = 0
    return {
        "encoder_hidden_states": torch.randn(batch, tokens, 12),
        "encoder_attention_mask": mask,
    }


def _dit_inputs(batch: int) -> dict[str, Any]:
    return {
        "hidden_states": torch.randn(batch, 4, 16, 16),
        "class_labels": torch.arange(batch),
    }


def _pixart_inputs(batch: int) -> dict[str, Any]:
    added = {"resolution": None, "aspect_ratio": None}
    latent = torch.randn(batch, 4, 16, 16)
    return {"hidden_states": latent, "added_cond_kwargs": added, **_text(batch)}


def _sd3_inputs(batch: int) -> dict[str, Any]:
    return {
        "hidden_states": torch.randn(batch, 4, 16, 16),
        "encoder_hidden_states": torch.randn(batch, 13, 12),
        "pooled_projections": torch.randn(batch, 10),
    }


def _flux_inputs(batch: int) -> dict[str, Any]:
    return {
        "hidden_states": torch.randn(batch, 63, 4),
        "encoder_hidden_states": torch.randn(batch, 14, 12),
        "pooled_projections": torch.randn(batch, 10),
        "img_ids": torch.stack([torch.zeros(63), torch.arange(63) // 9, torch.arange(63) % 9], 1),
        "txt_ids": torch.zeros(14, 3),
    }


def _latte_inputs(batch: int) -> dict[str, Any]:
    latent = torch.randn(batch, 4, 3, 16, 16)
    return {"hidden_states": latent, "encoder_hidden_states": torch.randn(batch, 7, 12)}


FAMILIES = {
    "dit": Family(_dit, _dit_inputs, 2),
    "pixart": Family(_pixart, _pixart_inputs, 4),
    "sd3": Family(_sd3, _sd3_inputs, 2),
    "flux": Family(_flux, _flux_inputs, 3),
    "latte": Family(_latte, _latte_inputs, 3),
}


@cache
def reference(name: str, seed: int) -> Tensor:
    """What the plain model gives."""
    family = FAMILIES[name]
    return family.run(family.model(), seed)
