"""Sparse attention reuse: block masks in space, cached scores in time (paper, section 3.2)."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

import torch
from torch import Tensor, nn

from dstar.gen.config import ConfigError

from .blocks import BlockProduct, additive, plan, softmax_scores, token_order, total_bits
from .masks import BlockMasks, LayerMask
from .method import AttentionStats, Moment, State
from .scores import KeptScores, ScoreFormat, score_format


@dataclass(frozen=True, kw_only=True)
class SAR:
    """Sparse attention reuse.

    Parameters
    ----------
    masks:
        Profiled block masks, or None to compute every block.  Refused if their weights are not
        the model's.
    interval:
        Scores are computed at steps 0, n, 2n, ... and reused in between, where the Q and K
        projections, QK and softmax are skipped; 1 reuses nothing.
    score_bits:
        How the PV product consumes a score and the cache holds it.  1 to 8: so many unsigned
        bits, with a power-of-two scale for each sub-channel (one key of a block's queries)
        (:class:`~dstar.golden.model.scores.FixedBits`).  ``"mixed"``: 0 to 8 bits by the
        sub-channel's largest score (:class:`~dstar.golden.model.scores.MixedBits`).  None:
        binary16.  Or a format of another kind.
    steps:
        Denoising steps of the run, if known: masks of another number are refused.
    layers:
        Glob over attention layers; others are left alone.

    Raises
    ------
    ConfigError
        If a value is out of range.
    """

    masks: BlockMasks | None = None
    interval: int = 2
    score_bits: int | Literal["mixed"] | ScoreFormat | None = 8
    steps: int | None = None
    layers: str = "*"

    def __post_init__(self) -> None:
        if self.interval < 1:
            raise ConfigError(f"interval must be at least 1, got {self.interval}")
        score_format(self.score_bits)
        if self.masks is not None and self.steps not in (None, self.masks.steps):
            raise ConfigError(
                f"masks must be profiled with the run's {self.steps} steps, got a profile of "
                f"{self.masks.steps}"
            )

    @property
    def reuses(self) -> bool:
        """Whether some steps skip the projections."""
        return self.interval > 1

    def kernel(self, name: str, attention: nn.Module) -> SARKernel:
        """The kernel of one layer."""
        mask = None if self.masks is None else self.masks.layer(name, attention)
        return SARKernel(name, self, mask)

    def matches(self, name: str) -> bool:
        """Whether a layer is one of :attr:`layers`."""
        return fnmatchcase(name, self.layers)


class SARKernel:
    """SAR in one layer."""

    def __init__(self, name: str, settings: SAR, mask: LayerMask | None) -> None:
        self.name, self.settings, self.mask = name, settings, mask
        self.format = score_format(settings.score_bits)
        self.groups = None
        if mask is not None and not bool(mask.keep.all()):
            self.groups = plan(mask.keep)

    def needs_scores(self, state: State, moment: Moment) -> bool:
        """At steps 0, n, 2n, ..."""
        if "scores" not in state:
            return True
        return not 0 < moment.step - state["step"] < self.settings.interval

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
        """One step; the state holds ``scores`` and the ``step`` that computed them."""
        s, (batch, heads, queries, _), keys = self.settings, q.shape, v.shape[2]
        self._check(heads, queries, keys, moment)
        if self.groups is None:
            product: BlockProduct | None = None
        else:
            product = BlockProduct(self.groups, self._block, queries, keys)
        fresh = self.needs_scores(state, moment)
        if fresh:
            state["scores"] = self._scores(product, q, k, additive(mask), scale)
            state["step"], state["shape"] = moment.step, (batch, heads, queries, keys)
        elif state["shape"] != (batch, heads, queries, keys):
            raise ConfigError(
                f"{self.name} must keep its shape {state['shape']} while scores are reused, got "
                f"{(batch, heads, queries, keys)}; call reset() between images"
            )
        scores: list[KeptScores] = state["scores"]
        if not s.reuses:
            state.clear()
        if product is None:
            o = scores[0].float() @ v.float()
        else:
            order = self._order(keys, v)
            o = product.values(scores, v if order is None else v[:, :, order])
            back = self._order(queries, v)
            o = o if back is None else o[:, :, back.argsort()]
        if product is None:
            used, subs = heads * queries * keys, heads * -(-queries // self._block) * keys
        else:
            used, subs = product.count()
        used, subs = batch * used, batch * subs
        size = self._size(scores, product, queries, used, subs) if s.reuses else 0.0
        return o.to(v.dtype), AttentionStats(
            scores=batch * heads * queries * keys,
            computed=used if fresh else 0,
            used=used,
            cached=size,
            written=size if fresh else 0.0,
            read=0.0 if fresh else size,
        )

    def _scores(
        self,
        product: BlockProduct | None,
        q: Tensor,
        k: Tensor,
        bias: Tensor | None,
        scale: float,
    ) -> list[KeptScores]:
        if product is None:
            p = softmax_scores(q, k, bias, scale)
            return [self.format.quantize(p, self._block, k.shape[2])]
        rows, columns = self._order(q.shape[2], q), self._order(k.shape[2], k)
        if rows is not None:
            q = q[:, :, rows]
            if bias is not None and bias.shape[-2] > 1:
                bias = bias[..., rows, :]
        if columns is not None:
            k = k[:, :, columns]
            if bias is not None:
                bias = bias.expand(*bias.shape[:-1], k.shape[2])[..., columns]
        return product.scores(q, k, bias, scale, self.format)

    def _size(
        self,
        scores: list[KeptScores],
        product: BlockProduct | None,
        queries: int,
        used: int,
        subs: int,
    ) -> float:
        """Bytes as the hardware packs them: every score's bits, and each sub-channel's tag."""
        bits = scores[0].bits if scores else 0
        if isinstance(bits, int):
            total = used * bits
        elif product is None:
            tops = torch.arange(0, queries, self._block)
            total = total_bits(scores[0], (queries - tops).clamp(max=self._block)[:, None])
        else:
            total = product.bits(scores)
        return (total + subs * self.format.tag_bits) / 8

    @property
    def _block(self) -> int:
        return 64 if self.settings.masks is None else self.settings.masks.block

    def _order(self, tokens: int, like: Tensor) -> Tensor | None:
        masks = self.settings.masks
        if masks is None:
            return None
        order = token_order(masks.order, tokens, masks.block)
        return None if order is None else order.to(like.device)

    def _check(self, heads: int, queries: int, keys: int, moment: Moment) -> None:
        if self.mask is None or self.settings.masks is None:
            return
        want = self.mask.keep.shape[0], self.mask.queries, self.mask.keys
        if want != (heads, queries, keys):
            raise ConfigError(
                f"{self.name} must have the {want[1]} x {want[2]} tokens and {want[0]} heads of "
                f"its block mask, got {queries} x {keys} and {heads}; profile this size"
            )
        if moment.step >= self.settings.masks.steps:
            raise ConfigError(
                f"masks must be profiled with the run's steps, got a profile of "
                f"{self.settings.masks.steps} steps at step {moment.step}"
            )
