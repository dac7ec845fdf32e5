"""Cambricon-D (Kong et al., ISCA 2024): few-bit differences, outliers in floating point.

Published: a PE of 60 int3 x fp16 and 4 fp16 x fp16 multipliers works on groups of 64
differences; the first four that leave the range of int3 go to floating point, later ones clip.
Weights are fp16.  Its sign-mask data flow depends on ReLU-like activations and does not carry
over to transformers; nothing of it is modelled.

As the DSTAR paper uses it: whole channels at INT4 or FP16, 7.2 bits on average.

Assumed: the first step is computed in fp16; differences are taken to what the quantized
differences add up to, as the accelerator keeps it.  ``as_published``: the int3 step puts 15/16 of
the profile's differences in range, as many as there are int3 multipliers; a group is 64
consecutive channels of a token.  ``as_dstar``: the int4 step is the INT8 step of the layer (the
largest magnitude of the profile over 127), and a channel of a sample goes to floating point where
a difference leaves the range.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from dstar.golden.model.method import Moment, State

from .ditto import Mode
from .profile import Profiles
from .scheme import FLOAT_BITS, Encoded, SchemeKernel, half_kernel

#: Differences that a PE takes at once, and its floating-point multipliers.
GROUP, OUTLIERS = 64, 4
#: Largest magnitude of symmetric codes of 3 and 4 bits.
INT3, INT4 = 3.0, 7.0


class CambriconD:
    """Cambricon-D's linear layers.

    Parameters
    ----------
    profiles:
        Of the layers' activations.
    mode:
        ``as_published``: outliers by element; ``as_dstar``: by channel.
    """

    def __init__(self, profiles: Profiles, *, mode: Mode) -> None:
        self.profiles, self.mode = profiles, mode

    def kernel(self, name: str, linear: nn.Linear) -> SchemeKernel:
        """The kernel of one layer."""
        profile = self.profiles[name]
        if self.mode == "as_dstar":
            return half_kernel(_Layer(profile.step, self.mode), linear)
        step = profile.difference(1 - OUTLIERS / GROUP) / (INT3 + 0.5)
        return half_kernel(_Layer(max(step, 1e-12), self.mode), linear)


class _Layer:
    """Integer differences at one static step, outliers in binary16."""

    def __init__(self, step: float, mode: Mode) -> None:
        self.step, self.by_element = step, mode == "as_published"
        self.limit, self.bits = (INT3, 3.0) if self.by_element else (INT4, 4.0)

    def encode(self, x: Tensor, state: State, moment: Moment) -> Encoded:
        """Quantize the difference to the reference."""
        reference: Tensor | None = state.get("reference")
        if reference is None:
            state["reference"] = x.half().float()
            return Encoded(state["reference"], FLOAT_BITS)
        d = x - reference
        outlier = self._outliers(d.abs() > (self.limit + 0.5) * self.step)
        low = (d / self.step).round_().clamp_(-self.limit, self.limit).mul_(self.step)
        state["reference"] = reference + torch.where(outlier, d.half().float(), low)
        share = float(outlier.float().mean())
        return Encoded(state["reference"], self.bits + (FLOAT_BITS - self.bits) * share)

    def _outliers(self, beyond: Tensor) -> Tensor:
        """What goes to floating point, of what is beyond the range (batch, tokens, channels)."""
        if not self.by_element:
            return beyond.any(-2, keepdim=True).expand(beyond.shape)
        channels = beyond.shape[-1]
        groups = functional.pad(beyond, (0, -channels % GROUP)).reshape(
            *beyond.shape[:-1], -1, GROUP
        )
        first = groups & (groups.cumsum(-1, dtype=torch.int16) <= OUTLIERS)
        return first.flatten(-2)[..., :channels]
