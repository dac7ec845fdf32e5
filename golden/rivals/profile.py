"""What the rivals' static parameters are chosen from: the float model's activations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

#: Points of a stored distribution.
POINTS = 1001
#: Values of an activation that enter a distribution, evenly spaced.
SAMPLED = 4096


@dataclass(frozen=True, eq=False)
class ActivationProfile:
    """Magnitudes at one linear layer's input over samples and steps.

    ``largest``: of all values.  ``values``, ``differences``: quantiles 0, 1/1000 … 1 of the
    magnitudes, and of those of the differences between consecutive steps.
    """

    largest: float
    values: Tensor
    differences: Tensor

    @property
    def step(self) -> float:
        """Step of the layer's static INT8 grid: the largest magnitude over 127."""
        return max(self.largest, 1e-12) / 127

    def value(self, fraction: float) -> float:
        """Magnitude that a fraction of the values does not exceed."""
        return float(self.values[round(fraction * (POINTS - 1))])

    def difference(self, fraction: float) -> float:
        """Magnitude that a fraction of the differences does not exceed."""
        return float(self.differences[round(fraction * (POINTS - 1))])


#: Profiles by layer name.
Profiles = Mapping[str, ActivationProfile]


class _Record:
    """Collects one layer's activations, one call a step."""

    def __init__(self) -> None:
        self.largest = 0.0
        self.values: list[Tensor] = []
        self.differences: list[Tensor] = []
        self.before: Tensor | None = None

    def __call__(self, module: nn.Module, args: tuple[Tensor, ...]) -> None:
        x = args[0].detach()
        stride = -(-x.numel() // SAMPLED) | 1
        self.largest = max(self.largest, float(x.abs().max()))
        self.values.append(x.flatten()[::stride].abs())
        if self.before is not None:
            self.differences.append((x - self.before).flatten()[::stride].abs())
        self.before = x.clone()

    def profile(self, name: str) -> ActivationProfile:
        if not self.differences:
            raise ValueError(f"a profile of {name} needs at least two steps, got one or none")
        points = torch.linspace(0, 1, POINTS)
        values, differences = torch.cat(self.values), torch.cat(self.differences)
        return ActivationProfile(
            self.largest, torch.quantile(values, points), torch.quantile(differences, points)
        )


def profile_activations(
    model: nn.Module, layers: Iterable[str], run: Callable[[], object]
) -> dict[str, ActivationProfile]:
    """Profile linear layers while ``run`` samples from the model.

    Parameters
    ----------
    model:
        A model whose submodules ``layers`` are called once a denoising step.
    layers:
        Names of linear layers.
    run:
        Draws one batch of the profiling set.

    Raises
    ------
    ValueError
        If a layer was called less than twice.
    """
    records = {name: _Record() for name in layers}
    handles = [
        model.get_submodule(name).register_forward_pre_hook(record)
        for name, record in records.items()
    ]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    return {name: record.profile(name) for name, record in records.items()}
