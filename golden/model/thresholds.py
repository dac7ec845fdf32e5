"""Measured thresholds of a model's linear layers, in a small file tied to its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from dstar.gen.config import PRESETS, Config, ConfigError

from ..bins import BinTable
from ..linear import LayerTables
from ..shipped import digest


def weights_digest(linear: nn.Linear) -> str:
    """Sixteen hex digits that identify a layer's weights, to binary16."""
    return digest(linear.weight.detach().float().cpu().numpy())


@dataclass(frozen=True, kw_only=True)
class LayerThreshold:
    """One layer of a profile.

    ``exponent``: b of the step ``T = 2**-b``.  ``largest_start``: largest magnitude at the first
    step.  ``bits``, ``snr_db``: average bits and signal-to-quantization-noise ratio of the
    activation there.  ``weights``: digest of the weights.
    """

    exponent: int
    largest_start: float
    bits: float
    snr_db: float
    weights: str


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """Measured thresholds by layer name.

    ``target``: what they were chosen for, in words.  ``steps``: denoising steps of the runs.
    """

    layers: Mapping[str, LayerThreshold]
    target: str = ""
    steps: int = 0
    cfg: Config = PRESETS["paper"]

    def tables(self, name: str, linear: nn.Linear) -> LayerTables | None:
        """Tables of a layer, or None if the profile does not have it.

        Raises
        ------
        ConfigError
            If the layer's weights are not those that were profiled.
        """
        known = self.layers.get(name)
        if known is None:
            return None
        if (found := weights_digest(linear)) != known.weights:
            raise ConfigError(
                f"thresholds of {name} must be those of its weights ({found}), got a profile of "
                f"weights {known.weights}; profile this model"
            )
        span = self.cfg.numeric.exponent_span
        return LayerTables(
            delta=BinTable.uniform(known.exponent, span=span),
            keyframe=BinTable.keyframe(known.largest_start, span=span),
        )
