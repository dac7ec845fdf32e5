"""Attention products over blocks of scores, and scores as the PV product takes them in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

#: Order of tokens in blocks.  ``raster``: as they come.  ``squares``: a square image's tokens by
#: rectangles of one block each, as square as can be, in raster order of the rectangles.
Order = Literal["raster", "squares"]
#: Largest scale exponent of a score: all binary16 values are multiples of ``2**-24``.
MAX_EXPONENT = 24


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


def power(exponent: Tensor) -> Tensor:
    """``2**exponent``, float32, exact."""
    return torch.ldexp(torch.ones_like(exponent, dtype=torch.float32), exponent)


@dataclass(frozen=True)
class Scores:
    """Softmaxed scores (batch, groups, queries, keys) as they are kept.

    ``values``: uint8 q, or float16.  ``exponent``: int8 (batch, groups, tiles, keys), scores are
    ``q * 2**-exponent``; None with float16.  ``rows``: queries of a tile.  ``bits``: of q, or 16.
    """

    values: Tensor
    exponent: Tensor | None
    rows: int
    bits: int

    def float(self) -> Tensor:
        """The scores, float32."""
        if self.exponent is None:
            return self.values.float()
        queries = self.values.shape[-2]
        step = power(-self.exponent.int()).repeat_interleave(self.rows, dim=-2)[..., :queries, :]
        return self.values.float().mul_(step)


def quantize_scores(p: Tensor, bits: int | None, rows: int) -> Scores:
    """Scores per sub-channel: one key of ``rows`` queries.

    Unsigned, because scores are: ``q = rne(p * 2**f)`` with the largest f up to 24 at which the
    sub-channel's maximum stays within ``2**bits - 1``.  ``bits`` None keeps binary16.
    """
    if bits is None:
        return Scores(p.half(), None, rows, 16)
    *lead, queries, keys = p.shape
    padded = functional.pad(p, (0, 0, 0, -queries % rows))
    peak = padded.view(*lead, -1, rows, keys).amax(dim=-2)
    mantissa, exponent = torch.frexp(peak)
    over = mantissa * 2.0**bits >= 2.0**bits - 0.5
    f = (bits - exponent - over.int()).clamp_(max=MAX_EXPONENT)
    scale = power(f).repeat_interleave(rows, dim=-2)[..., :queries, :]
    return Scores((p * scale).round_().to(torch.uint8), f.to(torch.int8), rows, bits)


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
            height = (self.queries - g.queries * self.block).clamp(max=self.block)
            scores += int((width * height).sum())
            subs += int(width.sum())
        return scores, subs

    def scores(
        self, q: Tensor, k: Tensor, bias: Tensor | None, scale: float, bits: int | None
    ) -> list[Scores]:
        """Quantized scores of each group: (batch, n, block, kept * block)."""
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
            found.append(quantize_scores(p, bits, self.block))
        return found

    def values(self, scores: Sequence[Scores], v: Tensor) -> Tensor:
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
