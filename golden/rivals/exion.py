"""EXION (Heo et al., HPCA 2025): reuse between iterations in the FFN, top-k attention.

Published: FFN-Reuse marks, in a dense iteration, the GELU outputs of large magnitude; the next N
iterations recompute only marked elements and reuse the rest: 70 to 97 % of elements unmarked, 52
to 85 % of FFN operations skipped.  Attention: scores predicted from operands reduced to their
leading one, per query the k best keys are computed, 20 to 95 % pruned.

As the DSTAR paper uses it: elements of small magnitude set to zero, others FP16, 11.2 bits on
average; 17 % of scores pruned on average.

Assumed: operands of 16 bits (EXION's precision was not found), thresholds from the profile.
``as_published`` (:class:`FFNReuse`): N = 4 and 85 % of elements unmarked, so that 68 % of FFN
operations are skipped; half of the keys kept.  ``as_dstar`` (:class:`ZeroSmall`): in every linear
layer, the 30 % of differences between steps that are smallest in the profile are zero; 83 % of
the keys kept.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from dstar.golden.model.blocks import additive
from dstar.golden.model.method import AttentionStats, Moment, State

from .profile import Profiles
from .scheme import FLOAT_BITS, Encoded, SchemeKernel, half_kernel

#: Iterations that follow a dense one, and the share of GELU outputs that they do not recompute.
ITERATIONS, UNMARKED = 4, 0.85
#: Share of differences set to zero where the scheme is element-wise.
ZEROED = 0.30
#: Share of keys kept for each query.
KEEP_PUBLISHED, KEEP_DSTAR = 0.5, 0.83


class ZeroSmall:
    """``as_dstar``: differences of small magnitude are zero, others binary16, by element.

    Parameters
    ----------
    profiles:
        Of the layers' activations.
    zeroed:
        Share of a profile's differences below the threshold.
    """

    def __init__(self, profiles: Profiles, *, zeroed: float = ZEROED) -> None:
        self.profiles, self.zeroed = profiles, zeroed

    def kernel(self, name: str, linear: nn.Linear) -> SchemeKernel:
        """The kernel of one layer."""
        return half_kernel(_Zero(self.profiles[name].difference(self.zeroed)), linear)


class _Zero:
    """Keeps the reference where the difference to it is small."""

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold

    def encode(self, x: Tensor, state: State, moment: Moment) -> Encoded:
        """The reference is what the layer multiplied in the step before."""
        x, share = x.half().float(), 1.0
        reference: Tensor | None = state.get("reference")
        if reference is not None:
            large = (x - reference).abs() > self.threshold
            x, share = torch.where(large, x, reference), float(large.float().mean())
        state["reference"] = x
        return Encoded(x, FLOAT_BITS * share, 1 - share)


class FFNReuse:
    """``as_published``: FFN-Reuse in each pair of FFN layers, binary16 in the other layers.

    Parameters
    ----------
    profiles:
        Of the layers' activations.
    first, second:
        How names of the FFN's layers end.
    iterations, unmarked:
        Sparse iterations after a dense one; share of elements they reuse.
    """

    def __init__(
        self,
        profiles: Profiles,
        *,
        first: str = ".fc1",
        second: str = ".fc2",
        iterations: int = ITERATIONS,
        unmarked: float = UNMARKED,
    ) -> None:
        self.profiles, self.first, self.second = profiles, first, second
        self.iterations, self.unmarked = iterations, unmarked
        #: Share of elements marked, by FFN and evaluation of the step.
        self.marked: dict[tuple[str, int], float] = {}

    def kernel(self, name: str, linear: nn.Linear) -> SchemeKernel:
        """The kernel of one layer."""
        if name.endswith(self.second):
            threshold = self.profiles[name].value(self.unmarked)
            return half_kernel(_Second(self, name.removesuffix(self.second), threshold), linear)
        ffn = name.removesuffix(self.first) if name.endswith(self.first) else None
        return half_kernel(_First(self, ffn), linear)

    def share(self, ffn: str, moment: Moment) -> float:
        """Share of an FFN's inner elements that an iteration computes."""
        dense = moment.step % (self.iterations + 1) == 0
        return 1.0 if dense else self.marked[ffn, moment.evaluation]


class _First:
    """Binary16; in the FFN's first layer only the outputs that are marked cost bits."""

    def __init__(self, method: FFNReuse, ffn: str | None) -> None:
        self.method, self.ffn = method, ffn

    def encode(self, x: Tensor, state: State, moment: Moment) -> Encoded:
        share = 1.0 if self.ffn is None else self.method.share(self.ffn, moment)
        return Encoded(x.half().float(), FLOAT_BITS * share)


class _Second:
    """Takes marked elements, and the others from the last dense iteration."""

    def __init__(self, method: FFNReuse, ffn: str, threshold: float) -> None:
        self.method, self.ffn, self.threshold = method, ffn, threshold

    def encode(self, x: Tensor, state: State, moment: Moment) -> Encoded:
        x = x.half().float()
        if moment.step % (self.method.iterations + 1) == 0 or "mark" not in state:
            state["mark"], state["dense"] = x.abs() > self.threshold, x
            self.method.marked[self.ffn, moment.evaluation] = float(state["mark"].float().mean())
            return Encoded(x, FLOAT_BITS)
        share = self.method.share(self.ffn, moment)
        x_hat = torch.where(state["mark"], x, state["dense"])
        return Encoded(x_hat, FLOAT_BITS * share, 1 - share)


def leading_one(x: Tensor, bits: int = 8) -> Tensor:
    """Values reduced to sign and leading one of their integer codes, in units of a step.

    Parameters
    ----------
    x:
        (..., tokens, channels); the codes take one scale for each matrix.
    bits:
        Of the codes, with the sign.
    """
    peak = x.abs().amax((-2, -1), keepdim=True).clamp_min(1e-30)
    codes = (x * ((2 ** (bits - 1) - 1) / peak)).round_()
    return codes.sign() * torch.exp2(torch.frexp(codes.abs())[1].float() - 1)


class TopKeys:
    """Attention on the keys with the best predicted scores, for each query by itself.

    The prediction is not counted in the statistics; it costs a product of leading ones for every
    score of the dense product.

    Parameters
    ----------
    keep:
        Share of the keys computed, above 0 and at most 1.
    """

    reuses = False

    def __init__(self, keep: float) -> None:
        if not 0 < keep <= 1:
            raise ValueError(f"keep must be above 0 and at most 1, got {keep}")
        self.keep = keep

    def kernel(self, name: str, attention: nn.Module) -> TopKeys:
        """There is no state: every layer has the same kernel."""
        return self

    def needs_scores(self, state: State, moment: Moment) -> bool:
        """Every step computes scores."""
        return True

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
        """Predict, keep the best keys, attend to them."""
        predicted = leading_one(q) @ leading_one(k).transpose(-1, -2)
        keys = k.shape[-2]
        count = max(1, math.ceil(self.keep * keys))
        dropped = predicted.topk(keys - count, dim=-1, largest=False, sorted=False).indices
        scores = (q.float() * scale) @ k.float().transpose(-1, -2)
        if (bias := additive(mask)) is not None:
            scores += bias
        kept = scores.numel() - dropped.numel()
        scores.scatter_(-1, dropped, -math.inf)
        o = scores.softmax(-1).nan_to_num_(0.0) @ v.float()
        stats = AttentionStats(scores=scores.numel(), computed=kept, used=kept)
        return o.to(v.dtype), stats
