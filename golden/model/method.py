"""What a method for linear layers or for attention must implement to run in a wrapped model.

A *method* (:class:`LinearMethod`, :class:`AttentionMethod`) holds settings and makes one *kernel*
for each layer.  The wrapper calls the kernel once a denoising step and hands it the state that it
kept, one for each evaluation of a step (classifier-free guidance) and each call of the layer
within an evaluation.  What a kernel counts goes to the report.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

#: What a kernel keeps from step to step: empty at the first, and after a reset.  Its tensors
#: count as cache.
State = MutableMapping[str, Any]


@dataclass(frozen=True)
class Moment:
    """When a layer runs.

    ``step``: denoising step, from 0.  ``evaluation``: evaluation of the model within the step,
    from 0; guidance as two calls has 0 and 1, guidance within the batch only 0.  ``call``: call
    of the layer within the evaluation, from 0.
    """

    step: int
    evaluation: int = 0
    call: int = 0


@dataclass(frozen=True, kw_only=True)
class LinearStats:
    """What one call of a linear layer cost.

    ``values``: activation values taken in.  ``bits``: sum of their bits as multiplied.
    ``skipped``: of them at 0 bits.  ``nonfinite``: some difference was NaN or infinite.
    ``saturated``: some result left binary16 and was clipped.  ``histogram``: values by precision
    and exponent, int64 (5, 64) at [bits / 2, exponent + 32], or None.
    """

    values: int
    bits: float
    skipped: int = 0
    nonfinite: bool = False
    saturated: bool = False
    histogram: Tensor | None = None


class LinearKernel(Protocol):
    """A method at work in one layer."""

    def __call__(self, x: Tensor, state: State, moment: Moment) -> tuple[Tensor, LinearStats]:
        """Run one step.

        Parameters
        ----------
        x:
            Activation (batch, tokens, in) in the model's type; batch elements are independent.
            A layer that sees one row a sample has one token.
        state:
            Of this evaluation and call; may be changed.

        Returns
        -------
        y (batch, tokens, out) in the type of x, and the statistics.
        """
        ...


class LinearMethod(Protocol):
    """A way to run linear layers."""

    def kernel(self, name: str, linear: nn.Linear) -> LinearKernel:
        """The kernel of one layer.

        ``linear`` may be a :class:`Rows`: some output rows of a fused layer, whose Q and K rows
        are skipped at steps that reuse scores.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class AttentionStats:
    """What one call of an attention product cost, summed over batch and heads.

    ``scores``: scores of the dense product, queries times keys.  ``computed``: of them computed
    in this call (QK and softmax).  ``used``: of them multiplied by V.  ``cached``: bytes of
    scores held after the call, as the hardware packs them.  ``written``, ``read``: bytes that
    moved to and from that cache.
    """

    scores: int
    computed: int
    used: int
    cached: float = 0.0
    written: float = 0.0
    read: float = 0.0


class AttentionKernel(Protocol):
    """A method at work in one attention layer."""

    def needs_scores(self, state: State, moment: Moment) -> bool:
        """Whether this call looks at q and k; if not, their projections are skipped."""
        ...

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        mask: Tensor | None,
        scale: float,
        state: State,
        moment: Moment,
    ) -> tuple[Tensor, AttentionStats]:
        """Attend.

        Parameters
        ----------
        q:
            (batch, heads, queries, head dimension); placeholder values where
            :meth:`needs_scores` said no, as in k.
        k, v:
            (batch, heads, keys, head dimension).
        mask:
            Boolean (true: attend) or additive, broadcastable to (batch, heads, queries, keys);
            or None.
        scale:
            Factor of the scores before the softmax.
        state:
            Of this evaluation and call; may be changed.

        Returns
        -------
        o (batch, heads, queries, head dimension of v) in the type of v, and the statistics.
        """
        ...


class AttentionMethod(Protocol):
    """A way to run attention products."""

    @property
    def reuses(self) -> bool:
        """Whether some steps may skip the Q and K projections: fused layers are then split."""
        ...

    def kernel(self, name: str, attention: nn.Module) -> AttentionKernel:
        """The kernel of one attention module."""
        ...


class Plain:
    """Float linear layers: what runs where only a projection may have to be skipped."""

    def kernel(self, name: str, linear: nn.Linear) -> LinearKernel:
        """The layer itself; every value counts as many bits as its type has."""
        bits = torch.finfo(linear.weight.dtype).bits

        def run(x: Tensor, state: State, moment: Moment) -> tuple[Tensor, LinearStats]:
            return linear(x), LinearStats(values=x.numel(), bits=float(bits * x.numel()))

        return run


class Rows(nn.Linear):
    """Output rows ``start`` to ``stop - 1`` of a layer, ``whole``; shares its memory."""

    def __init__(self, whole: nn.Linear, start: int, stop: int) -> None:
        super().__init__(whole.in_features, stop - start, bias=False, device="meta")
        self._whole = [whole]  # in a list, so that it is no member of this module
        self.weight = nn.Parameter(whole.weight.detach()[start:stop], requires_grad=False)
        if whole.bias is not None:
            self.bias = nn.Parameter(whole.bias.detach()[start:stop], requires_grad=False)

    @property
    def whole(self) -> nn.Linear:
        """The layer that the rows belong to."""
        return self._whole[0]


def whole_layer(linear: nn.Linear) -> nn.Linear:
    """The model's layer: of :class:`Rows` the one they belong to, else the layer itself."""
    return linear.whole if isinstance(linear, Rows) else linear
