"""Small models and samplers of the whole-model tests."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from dstar.golden.dit.model import DiT
from dstar.golden.dit.spec import DiTSpec
from dstar.golden.model.apply import DstarModel

SPEC = DiTSpec(hidden=32, depth=2, heads=2, image=16)
"""64 tokens, two blocks."""


@cache
def _state() -> dict[str, Tensor]:
    torch.manual_seed(1)
    model = DiT(SPEC)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    return model.state_dict()


def small_dit() -> Any:
    """A DiT of :data:`SPEC` with random weights, the same at each call."""
    model = DiT(SPEC)
    model.load_state_dict(_state())
    return model.eval()


def inputs(batch: int, seed: int, spec: DiTSpec = SPEC) -> tuple[Tensor, Tensor]:
    """Noised images and classes of a batch."""
    generator = torch.Generator().manual_seed(seed)
    shape = batch, spec.channels, spec.image, spec.image
    x = torch.randn(shape, generator=generator)
    return x, torch.arange(batch) % spec.classes


@torch.no_grad()
def run(model: nn.Module, x: Tensor, y: Tensor, steps: int = 4) -> Tensor:
    """Euler steps from x: the images after the last one."""
    for step in range(steps):
        t = torch.full((len(x),), 1 - step / steps)
        x = x - model(x, t, y) / steps
    return x


def activations(
    model: DstarModel, x: Tensor, y: Tensor, steps: int
) -> dict[str, list[npt.NDArray[np.float32]]]:
    """Inputs of the replaced layers of a wrapped model while it runs, (batch, tokens, in)."""
    seen: dict[str, list[npt.NDArray[np.float32]]] = {name: [] for name in model.layers}
    hooks = [
        layer.register_forward_pre_hook(
            lambda _, args, name=name: seen[name].append(
                args[0].reshape(len(x), -1, args[0].shape[-1]).numpy().copy()
            )
        )
        for name, layer in model.layers.items()
    ]
    run(model, x, y, steps)
    for hook in hooks:
        hook.remove()
    return seen
