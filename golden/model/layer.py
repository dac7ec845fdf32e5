"""The linear layer of a wrapped model: hands each call to a kernel with the state of its own."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from .clock import Clock
from .method import LinearKernel, LinearMethod, Moment, Rows, State
from .report import LayerReport


class LinearLayer(nn.Module):
    """Stands in for an ``nn.Linear``.

    Leading dimensions are regrouped to (batch, tokens, in) by the batch of the model's call, so
    that a sample's tokens lie together even where the model folded frames or patches into the
    batch.  Every sample and evaluation has a state of its own.

    Parameters
    ----------
    name:
        Dotted name of the layer.
    linear:
        The layer replaced; kept, and given back by ``unwrap``.
    method:
        Makes the kernels.
    clock:
        Of the model.
    skippable:
        Leading output rows that only attention scores need (Q and K).
    split:
        Give those of a fused layer a kernel and a state of their own, because the others run at
        steps at which these do not.
    """

    def __init__(
        self,
        name: str,
        linear: nn.Linear,
        method: LinearMethod,
        clock: Clock,
        skippable: int = 0,
        *,
        split: bool = False,
    ) -> None:
        super().__init__()
        self.name, self.linear, self.clock, self.skippable = name, linear, clock, skippable
        #: Set while an attention layer that reuses its scores runs: the leading rows are zeros.
        self.skip = False
        bounds = sorted({0, skippable if split else 0, linear.out_features})
        self.parts = list(pairwise(bounds))
        rows = [linear] if len(self.parts) == 1 else [Rows(linear, *p) for p in self.parts]
        self.kernels: list[LinearKernel] = [method.kernel(name, each) for each in rows]
        self.report = LayerReport(name)
        self.reset()

    def reset(self) -> None:
        """Forget all states."""
        #: States by evaluation, call within the evaluation, and part.
        self.states: dict[tuple[int, int, int], State] = {}
        self._seen, self._call = -1, 0

    def moment(self) -> Moment:
        """Which step, evaluation and call the next call is."""
        fresh = self.clock.calls != self._seen
        self._call = 0 if fresh else self._call + 1
        self._seen = self.clock.calls
        return Moment(max(self.clock.step, 0), self.clock.evaluation, self._call)

    @property
    def in_features(self) -> int:
        """Input channels."""
        return self.linear.in_features

    @property
    def out_features(self) -> int:
        """Output channels."""
        return self.linear.out_features

    @property
    def weight(self) -> Tensor:
        """The float weights (out, in) of the layer replaced."""
        return self.linear.weight

    @property
    def bias(self) -> Tensor | None:
        """The float bias (out,) of the layer replaced, or None."""
        return self.linear.bias

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """x (..., in) to y (..., out), of the same type."""
        moment = self.moment()
        lead = x.shape[:-1]
        rows = math.prod(lead)
        batch = self.clock.batch if rows % self.clock.batch == 0 else 1
        grouped = x.reshape(batch, -1, x.shape[-1])
        outputs = []
        for index, ((start, stop), kernel) in enumerate(zip(self.parts, self.kernels, strict=True)):
            macs = rows * self.in_features * (stop - start)
            if self.skip and stop <= self.skippable:
                outputs.append(x.new_zeros(1).expand(*lead, stop - start))
                self.report.skip(moment, macs)
                continue
            state = self.states.setdefault((moment.evaluation, moment.call, index), {})
            y, stats = kernel(grouped, state, moment)
            score = rows * self.in_features * max(0, min(stop, self.skippable) - start)
            self.report.add(moment, macs, stats, score)
            outputs.append(y.reshape(*lead, stop - start))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)
