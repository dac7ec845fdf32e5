"""S-DMA (Zou et al., MICRO 2025): token merging inside local windows.

Published: tokens merge within windows of K x K; similarity is counted on the AND of sign bits;
the most similar merge, by insertion sort; merge ratios of 0.3, 0.5 and 0.6 on UNets.

Assumed: windows of 8 x 8 of a transformer's tokens (published windows of 13 to 16 are for larger
maps: 16 x 16 is the shipped model's whole image); in each window every fourth token stays and the
others may merge into the most similar of those, their values averaged, and take its output
afterwards, as in token merging for Stable Diffusion (Bolya and Hoffman, 2023); attention and FFN
both run on the merged tokens; linear layers are W8A8 (its precision is not published).
``as_published`` merges the ratio 0.3.  ``as_dstar``: DSTAR gives no ratio for transformers, only
a quality bound (less than 5 % Frechet loss) and that little merging survives it: 0.02 here.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from dstar.golden.model.method import Moment, State

from .int8 import TokenInt8
from .scheme import Encoded, SchemeKernel, int8_kernel

#: Tokens along a window's side, and the ratios of merged tokens.
WINDOW = 8
RATIO_PUBLISHED, RATIO_DSTAR = 0.3, 0.02


class MergedInt8(TokenInt8):
    """W8A8 where some layers run on merged tokens; tokens that are merged away cost no bits.

    Parameters
    ----------
    ratio:
        Merged tokens over all tokens, as `MergeTokens` has it.
    layers:
        Names of the layers inside modules with merged tokens, by glob.
    """

    def __init__(self, *, ratio: float, layers: Sequence[str]) -> None:
        self.left, self.layers = 1 - merged_tokens(ratio) / WINDOW**2, layers

    def kernel(self, name: str, linear: nn.Linear) -> SchemeKernel:
        """The kernel of one layer."""
        merged = any(fnmatchcase(name, pattern) for pattern in self.layers)
        return int8_kernel(_Merged(self.left) if merged else self, linear)


class _Merged(TokenInt8):
    """W8A8 on the tokens that are left."""

    def __init__(self, left: float) -> None:
        self.left = left

    def encode(self, x: Tensor, state: State, moment: Moment) -> Encoded:
        """Quantize each token to its own scale."""
        return super().encode(x, state, moment)._replace(left=self.left)


def merged_tokens(ratio: float, window: int = WINDOW) -> int:
    """Tokens that merge away in a window."""
    if not 0 <= ratio <= 0.75:
        raise ValueError(f"ratio must be between 0 and 0.75, got {ratio}")
    return round(ratio * window * window)


def windows(grid: int, window: int = WINDOW) -> Tensor:
    """Token numbers by window: int64 (windows, window * window), raster order inside."""
    if window < 2 or window % 2 or grid % window:
        raise ValueError(f"window must be even and divide the grid {grid}, got {window}")
    tokens = torch.arange(grid * grid).view(grid // window, window, grid // window, window)
    return tokens.permute(0, 2, 1, 3).reshape(-1, window * window)


def similarity(a: Tensor, b: Tensor) -> Tensor:
    """Channels in which both sign bits are set: (..., n, channels), (..., m, channels)."""
    return (a < 0).float() @ (b < 0).float().transpose(-1, -2)


class Merge:
    """Merged tokens of one call: who goes where.

    Parameters
    ----------
    x:
        Activation (batch, tokens, channels) that similarities are computed on.
    ratio:
        Merged tokens over all tokens, at most 3/4.
    grid:
        Tokens along the image's side.
    window:
        Tokens along a window's side.
    """

    def __init__(self, x: Tensor, *, ratio: float, grid: int, window: int = WINDOW) -> None:
        count = merged_tokens(ratio, window)
        place = windows(grid, window)
        inside = torch.arange(window * window)
        stays = (inside % window % 2 == 0) & (inside // window % 2 == 0)
        target, source = place[:, stays], place[:, ~stays]
        score, best = similarity(x[:, source], x[:, target]).max(-1)
        merged = score.topk(count, dim=-1).indices
        batch = x.shape[0]
        sources = source.expand(batch, -1, -1).gather(-1, merged).flatten(1)
        targets = target.expand(batch, -1, -1).gather(-1, best.gather(-1, merged)).flatten(1)
        root = torch.arange(x.shape[1]).repeat(batch, 1).scatter_(1, sources, targets)
        kept = torch.ones(batch, x.shape[1], dtype=torch.bool).scatter_(1, sources, False)
        #: For each token of the result, its number in the input (batch, kept).
        self.kept = kept.nonzero()[:, 1].view(batch, -1)
        #: For each token of the input, its number in the result (batch, tokens).
        self.place = (kept.cumsum(1) - 1).gather(1, root)

    def merge(self, x: Tensor) -> Tensor:
        """Averages of merged tokens: (batch, tokens, channels) to (batch, kept, channels)."""
        index = self.place[..., None].expand_as(x)
        zeros = x.new_zeros(x.shape[0], self.kept.shape[1], x.shape[2])
        return zeros.scatter_reduce(1, index, x, "mean", include_self=False)

    def unmerge(self, y: Tensor) -> Tensor:
        """Every token takes the output of the token it went into."""
        return y.gather(1, self.place[..., None].expand(-1, -1, y.shape[-1]))


class MergeTokens:
    """Hooks that run a module on merged tokens; `remove` undoes them.

    Parameters
    ----------
    module:
        Maps (batch, tokens, channels) to the same shape, whatever the number of tokens.
    ratio, grid, window:
        As in `Merge`.
    """

    def __init__(self, module: nn.Module, *, ratio: float, grid: int, window: int = WINDOW) -> None:
        self.ratio, self.grid, self.window = ratio, grid, window
        self._merge: Merge | None = None
        self._handles = [
            module.register_forward_pre_hook(self._before),
            module.register_forward_hook(self._after),
        ]

    def _before(self, module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        self._merge = Merge(args[0], ratio=self.ratio, grid=self.grid, window=self.window)
        return (self._merge.merge(args[0]),)

    def _after(self, module: nn.Module, args: tuple[Tensor, ...], y: Tensor) -> Tensor:
        merge, self._merge = self._merge, None
        return y if merge is None else merge.unmerge(y)

    def remove(self) -> None:
        """Take the hooks off the module."""
        for handle in self._handles:
            handle.remove()
