"""What all rivals share: the measuring stick, the kernel around a scheme, weights.

**Bits.**  A value costs the bits of the number that the multipliers take for it: 0 where it is
skipped, 16 where it goes to a floating-point multiplier.  ``average_bits`` is the mean over all
values that the dense model feeds to the wrapped linear layers, first step included.  A value
whose products are needed for only a part of the layer's outputs costs that part of its bits.
What finds the bits (comparison, sorting, prediction) is not counted, for any method.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from dstar.golden.model.method import LinearStats, Moment, State
from dstar.golden.weights import quantize_weight

#: Bits of a floating-point operand.
FLOAT_BITS = 16.0
#: Largest magnitude of a symmetric INT8 code.
MAX_CODE = 127.0


class Encoded(NamedTuple):
    """One activation as a scheme hands it to the multipliers.

    ``x_hat``: float32, the shape of the activation: what the layer multiplies in effect.
    ``bits``: mean bits of a value.  ``skipped``: share of the values at 0 bits.  ``left``: share
    of the dense model's values that reach the layer at all; ``bits`` and ``skipped`` are of
    those.
    """

    x_hat: Tensor
    bits: float
    skipped: float = 0.0
    left: float = 1.0


class Scheme(Protocol):
    """How the activations of one linear layer are encoded from step to step."""

    def encode(self, x: Tensor, state: State, moment: Moment) -> Encoded:
        """Encode x (batch, tokens, channels), float32; the state is empty at the first step."""
        ...


class SchemeKernel:
    """A linear layer in float32 on what a scheme makes of its activations.

    Parameters
    ----------
    scheme:
        Of this layer.
    weight:
        (out, in), as the scheme's hardware holds it.
    bias:
        (out,) or None.
    """

    def __init__(self, scheme: Scheme, weight: Tensor, bias: Tensor | None) -> None:
        self.scheme, self.weight, self.bias = scheme, weight, bias

    def __call__(self, x: Tensor, state: State, moment: Moment) -> tuple[Tensor, LinearStats]:
        """One step."""
        x_hat, bits, skipped, left = self.scheme.encode(x.float(), state, moment)
        y = functional.linear(x_hat, self.weight, self.bias)
        values = round(x.numel() / left)
        kept = x.numel()
        stats = LinearStats(
            values=values,
            bits=bits * kept,
            skipped=round(skipped * kept) + values - kept,
        )
        return y.to(x.dtype), stats


def _bias(linear: nn.Linear) -> Tensor | None:
    return None if linear.bias is None else linear.bias.detach().float()


def int8_kernel(scheme: Scheme, linear: nn.Linear) -> SchemeKernel:
    """A kernel with symmetric INT8 weights, one scale per output channel."""
    weight = quantize_weight(linear.weight.detach().float().cpu().numpy()).dequantize()
    return SchemeKernel(scheme, torch.from_numpy(weight).to(linear.weight.device), _bias(linear))


def half_kernel(scheme: Scheme, linear: nn.Linear) -> SchemeKernel:
    """A kernel with binary16 weights."""
    return SchemeKernel(scheme, linear.weight.detach().half().float(), _bias(linear))
