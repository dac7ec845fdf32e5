"""INT8-SA: an INT8 systolic array with group quantization (paper, section 5.1).

Published by Q-DiT (Chen et al., CVPR 2025), which the DSTAR paper follows: weights and
activations in groups of consecutive input channels with a scale each, 128 channels by default,
dynamic scales for activations.  Assumed: symmetric codes, groups of 128 (DSTAR does not give its
size).
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from dstar.golden.model.method import Moment, State

from .scheme import MAX_CODE, Encoded, SchemeKernel, int8_kernel

#: Input channels that share a scale.
GROUP = 128


def group_quantize(x: Tensor, group: int = GROUP) -> Tensor:
    """Values of x (..., channels) after symmetric INT8 with a scale for each group of channels."""
    channels = x.shape[-1]
    grouped = functional.pad(x, (0, -channels % group)).reshape(*x.shape[:-1], -1, group)
    scale = (grouped.abs().amax(-1, keepdim=True) / MAX_CODE).clamp_min(1e-30)
    quantized = (grouped / scale).round_().mul_(scale)
    return quantized.flatten(-2)[..., :channels]


class GroupInt8:
    """W8A8 with groups in activations and weights; 8 bits a value, no state.

    Parameters
    ----------
    group:
        Channels of a group.
    """

    def __init__(self, *, group: int = GROUP) -> None:
        if group < 1:
            raise ValueError(f"group must be at least 1, got {group}")
        self.group = group

    def kernel(self, name: str, linear: nn.Linear) -> SchemeKernel:
        """The kernel of one layer: each group of each output channel has its own scale."""
        kernel = int8_kernel(self, linear)
        kernel.weight = group_quantize(linear.weight.detach().float(), self.group)
        return kernel

    def encode(self, x: Tensor, state: State, moment: Moment) -> Encoded:
        """Quantize each group of each token to its own scale."""
        return Encoded(group_quantize(x, self.group), 8.0)


class TokenInt8:
    """Plain W8A8, the yardstick of "no measurable loss": a dynamic scale for each token."""

    def kernel(self, name: str, linear: nn.Linear) -> SchemeKernel:
        """The kernel of one layer."""
        return int8_kernel(self, linear)

    def encode(self, x: Tensor, state: State, moment: Moment) -> Encoded:
        """Quantize each token to its own scale."""
        return Encoded(group_quantize(x, x.shape[-1]), 8.0)
