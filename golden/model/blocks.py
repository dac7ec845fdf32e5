"""Attention products over blocks of scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from .scores import KeptScores, ScoreFormat

#: Order of tokens in blocks.  ``raster``: as they come.  ``squares``: a square image's tokens by
#: rectangles of one block each, as square as can be, in raster order of the rectangles.
Order = Literal["raster", "squares"]


def token_order(order: Order, tokens: int, block: int) -> Tensor | None:
    """Token at each place, int64 (tokens,); None where that is the order they have.

    Only a square number of tokens can be ordered by squares; others stay as they are.
    """
    side = math.isqrt(tokens)
    if order == "raster" or side * side != tokens or tokens <= block:
        return None
    height = 2 ** (int(math.log2(block)) // 2)
    width = block // height
    index = torch.arange(tokens)
    row, column = index // side, index % side
    key = ((row // height * side + column // width) * side + row % height) * side + column % width
    return key.argsort()


@dataclass(frozen=True)
class Group:
    """Query blocks with equally many kept key blocks.

    ``heads``, ``queries``: int64 (n,), head and query block of each.  ``keys``: int64 (n, kept),
    its key blocks.
    """

    heads: Tensor
    queries: Tensor
    keys: Tensor


def plan(mask: Tensor) -> list[Group]:
    """Groups that cover the kept blocks of a mask, bool (heads, query blocks, key blocks)."""
    counts = mask.sum(dim=-1)
    groups = []
    for count in sorted(set(counts.flatten().tolist())):
        heads, queries = (counts == count).nonzero(as_tuple=True)
        keys = mask[heads, queries].nonzero()[:, 1].view(-1, count)
        groups.append(Group(heads, queries, keys))
    return groups


def softmax_scores(q: Tensor, k: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """softmax(q k^T scale + bias) in float32; a query without any key to attend gets zeros."""
    scores = (q.float() * scale) @ k.float().transpose(-1, -2)
    if bias is not None:
        scores += bias
    return scores.softmax(dim=-1).nan_to_num_(nan=0.0)


def additive(mask: Tensor | None) -> Tensor | None:
    """A boolean mask (true: attend) as 0 and -inf, an additive one as float32."""
    if mask is None or mask.dtype != torch.bool:
        return None if mask is None else mask.float()
    return torch.zeros(mask.shape, device=mask.device).masked_fill_(~mask, -math.inf)


def total_bits(scores: KeptScores, heights: Tensor) -> int:
    """Bits of all scores where sub-channels have ``heights`` queries and bits of their own."""
    assert isinstance(scores.bits, Tensor)
    return int((scores.bits.long() * heights.to(scores.bits.device)).sum())


def blocked(x: Tensor, dim: int, block: int) -> Tensor:
    """Split a dimension, a multiple of ``block``, into (blocks, block)."""
    return x.reshape(*x.shape[:dim], -1, block, *x.shape[dim + 1 :])


class BlockProduct:
    """Scores and PV of the kept blocks of one attention layer.

    Queries and keys are padded to whole blocks inside; padded keys are masked, so that they take
    no part in a softmax, and padded queries are dropped.

    Parameters
    ----------
    groups:
        The kept blocks.
    block:
        Edge of a block, in tokens.
    queries, keys:
        Tokens without padding.
    """

    def __init__(self, groups: Sequence[Group], block: int, queries: int, keys: int) -> None:
        self.groups, self.block, self.queries, self.keys = groups, block, queries, keys

    def count(self) -> tuple[int, int]:
        """Kept scores and their sub-channels (one key of a query block), without padding."""
        scores = subs = 0
        for g in self.groups:
            width = (self.keys - g.keys * self.block).clamp(max=self.block).sum(dim=1)
            scores += int((width * self._heights(g)).sum())
            subs += int(width.sum())
        return scores, subs

    def bits(self, scores: Sequence[KeptScores]) -> int:
        """Sum of the bits of all kept scores that have precisions by sub-channel."""
        return sum(
            total_bits(p, self._heights(g)[:, None, None])
            for g, p in zip(self.groups, scores, strict=True)
        )

    def _heights(self, g: Group) -> Tensor:
        """Queries of each query block without padding, (n,)."""
        return (self.queries - g.queries * self.block).clamp(max=self.block)

    def scores(
        self, q: Tensor, k: Tensor, bias: Tensor | None, scale: float, kept: ScoreFormat
    ) -> list[KeptScores]:
        """Scores of each group as they are kept: (batch, n, block, kept * block)."""
        q, k = self._blocks(q), self._blocks(k)
        bias = self._bias(bias, q.shape[2], k.shape[2], k.device)
        found = []
        for g in self.groups:
            own = None
            if bias is not None:
                heads = g.heads if bias.shape[1] > 1 else torch.zeros_like(g.heads)
                own = bias[:, heads[:, None], g.queries[:, None], :, g.keys]
                # (n, kept, batch, row, column): indices on both sides of a slice come first
                own = own.permute(2, 0, 3, 1, 4).flatten(3)
            p = softmax_scores(q[:, g.heads, g.queries], self._gather(k, g), own, scale)
            pads = torch.arange(self.block, device=p.device) >= self._heights(g)[:, None]
            p.masked_fill_(pads[..., None], 0.0)
            found.append(kept.quantize(p, self.block, self.keys))
        return found

    def values(self, scores: Sequence[KeptScores], v: Tensor) -> Tensor:
        """PV: (batch, heads, queries, width), float32."""
        blocks = self._blocks(v.float())
        batch, heads, _, _, width = blocks.shape
        count = -(-self.queries // self.block)
        o = blocks.new_zeros(batch, heads, count, self.block, width)
        for g, p in zip(self.groups, scores, strict=True):
            o[:, g.heads, g.queries] = p.float() @ self._gather(blocks, g)
        return o.flatten(2, 3)[:, :, : self.queries]

    def _blocks(self, x: Tensor) -> Tensor:
        """(batch, heads, tokens, width) to (batch, heads, blocks, block, width), padded."""
        x = functional.pad(x, (0, 0, 0, -x.shape[2] % self.block))
        return blocked(x, 2, self.block)

    @staticmethod
    def _gather(x: Tensor, g: Group) -> Tensor:
        """Kept key blocks (batch, n, kept * block, width)."""
        return x[:, g.heads[:, None], g.keys].flatten(2, 3)

    def _bias(
        self, bias: Tensor | None, rows: int, columns: int, device: torch.device
    ) -> Tensor | None:
        """(batch or 1, heads or 1, query blocks, row, key blocks, column), or None if all 0."""
        pad = columns * self.block - self.keys
        if bias is None and pad == 0:
            return None
        if bias is None:
            bias = torch.zeros(1, 1, 1, self.keys, device=device)
        while bias.dim() < 4:
            bias = bias.unsqueeze(0)
        bias = bias.expand(-1, -1, self.queries, self.keys)
        bias = functional.pad(bias, (0, pad), value=-math.inf)
        bias = functional.pad(bias, (0, 0, 0, rows * self.block - self.queries))
        return blocked(blocked(bias, 3, self.block), 2, self.block)
