"""Block masks of attention: profiled attention mass, and which blocks it lets go.

Paper, section 3.2: attention scores of profiling runs are summed by block and averaged; blocks of
little importance are pruned for good.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from dstar.gen.config import ConfigError

from .blocks import Order, additive, blocked, softmax_scores, token_order
from .method import AttentionStats, Moment, State


def attention_digest(module: nn.Module) -> str:
    """Sixteen hex digits that identify an attention module's weights, to binary16."""
    found = hashlib.sha256()
    for name, parameter in sorted(module.named_parameters()):
        found.update(name.encode())
        found.update(parameter.detach().to(torch.float16).cpu().contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


def prune(mass: Tensor, thr: float) -> Tensor:
    """Blocks to keep: bool, of the shape of ``mass`` (heads, query blocks, key blocks).

    ``thr`` is the fraction of a head's mass that may go: blocks leave, least important first,
    while what they take along stays within it.  Every query block keeps its heaviest key block.
    """
    share = mass.double() / mass.double().sum(dim=(1, 2), keepdim=True).clamp(min=1e-300)
    best = functional.one_hot(mass.argmax(dim=-1), mass.shape[-1]).bool()
    order = share.masked_fill(best, 2.0).flatten(1).sort(dim=1, stable=True)
    lost = order.values.cumsum(dim=1)
    keep = torch.ones_like(best.flatten(1))
    keep.scatter_(1, order.indices, lost > thr)
    return keep.view_as(best) | best


@dataclass(frozen=True, kw_only=True)
class LayerMask:
    """Kept blocks of one attention layer: bool (heads, query blocks, key blocks).

    ``queries``, ``keys``: tokens they were profiled for.  ``weights``: digest of the layer's.
    """

    keep: Tensor
    queries: int
    keys: int
    weights: str


@dataclass(frozen=True, kw_only=True)
class BlockMasks:
    """Masks of a model's attention layers.

    ``block``: edge of a block in tokens.  ``order``: of tokens in blocks.  ``steps``: denoising
    steps of the profiling runs.  ``thr``: fraction of a head's attention mass that may go.
    """

    layers: Mapping[str, LayerMask]
    block: int
    order: Order
    steps: int
    thr: float

    @property
    def pruned_fraction(self) -> float:
        """Share of the blocks that are pruned."""
        total = sum(m.keep.numel() for m in self.layers.values())
        kept = sum(int(m.keep.sum()) for m in self.layers.values())
        return 1 - kept / total if total else 0.0

    def layer(self, name: str, module: nn.Module) -> LayerMask | None:
        """Mask of a layer, or None if there is none.

        Raises
        ------
        ConfigError
            If the layer's weights are not those that were profiled.
        """
        known = self.layers.get(name)
        if known is not None and (found := attention_digest(module)) != known.weights:
            raise ConfigError(
                f"block mask of {name} must be that of its weights ({found}), got a profile of "
                f"weights {known.weights}; profile this model"
            )
        return known

    def save(self, path: str | Path) -> None:
        """Write a readable file: JSON, ``#`` for a kept block, a line a layer and head."""
        layers = {
            name: {
                "queries": m.queries,
                "keys": m.keys,
                "weights": m.weights,
                "heads": [
                    " ".join("".join("#" if k else "." for k in row) for row in head)
                    for head in m.keep.tolist()
                ],
            }
            for name, m in self.layers.items()
        }
        head = {"block": self.block, "order": self.order, "steps": self.steps, "thr": self.thr}
        Path(path).write_text(json.dumps({"masks": head, "layers": layers}, indent=1) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> BlockMasks:
        """Read what :meth:`save` wrote.

        Raises
        ------
        ConfigError
            If the file is not one.
        """
        try:
            content = json.loads(Path(path).read_text())
            layers = {
                name: LayerMask(
                    keep=torch.tensor(
                        [[[c == "#" for c in row] for row in head.split()] for head in m["heads"]]
                    ),
                    queries=m["queries"],
                    keys=m["keys"],
                    weights=m["weights"],
                )
                for name, m in content["layers"].items()
            }
            return cls(layers=layers, **content["masks"])
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{path} must be a file of block masks, got {error!r}") from None


@dataclass
class Mass:
    """Attention mass of one layer: summed scores of each block, over calls and batch.

    ``sums``: float64 (heads, query blocks, key blocks).
    """

    sums: Tensor
    queries: int
    keys: int
    weights: str


@dataclass(kw_only=True)
class AttentionProfile:
    """An attention method that computes densely and records mass; run it, then ask for masks.

    Parameters
    ----------
    block, order:
        As in :class:`BlockMasks`.
    """

    block: int = 64
    order: Order = "raster"
    layers: dict[str, Mass] = field(default_factory=dict)
    steps: int = 0

    @property
    def reuses(self) -> bool:
        """Never."""
        return False

    def kernel(self, name: str, attention: nn.Module) -> _Recorder:
        """The kernel of one layer."""
        return _Recorder(name, attention_digest(attention), self)

    def masks(self, thr: float) -> BlockMasks:
        """Masks at a threshold, see :func:`prune`.

        Raises
        ------
        ConfigError
            If ``thr`` is not at least 0 and below 1, or nothing was recorded.
        """
        if not 0 <= thr < 1:
            raise ConfigError(f"thr must be at least 0 and below 1, got {thr}")
        if not self.layers:
            raise ConfigError("an attention profile needs a run before it gives masks, got none")
        layers = {
            name: LayerMask(
                keep=prune(m.sums, thr), queries=m.queries, keys=m.keys, weights=m.weights
            )
            for name, m in self.layers.items()
        }
        return BlockMasks(
            layers=layers, block=self.block, order=self.order, steps=self.steps, thr=thr
        )


class _Recorder:
    def __init__(self, name: str, digest: str, profile: AttentionProfile) -> None:
        self.name, self.digest, self.profile = name, digest, profile

    def needs_scores(self, state: State, moment: Moment) -> bool:
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
        p = softmax_scores(q, k, additive(mask), scale)
        self._record(p)
        self.profile.steps = max(self.profile.steps, moment.step + 1)
        o = (p @ v.float()).to(v.dtype)
        return o, AttentionStats(scores=p.numel(), computed=p.numel(), used=p.numel())

    def _record(self, p: Tensor) -> None:
        block, (queries, keys) = self.profile.block, p.shape[2:]
        total = p.double().sum(dim=0)
        for dim, tokens in ((1, queries), (2, keys)):
            order = token_order(self.profile.order, tokens, block)
            if order is not None:
                total = total.index_select(dim, order.to(total.device))
        total = functional.pad(total, (0, -keys % block, 0, -queries % block))
        sums = blocked(blocked(total, 2, block), 1, block).sum(dim=(2, 4)).cpu()
        known = self.profile.layers.get(self.name)
        if known is None:
            self.profile.layers[self.name] = Mass(sums, queries, keys, self.digest)
        elif (known.queries, known.keys) != (queries, keys):
            raise ConfigError(
                f"{self.name} must keep {known.queries} x {known.keys} tokens while profiled, got "
                f"{queries} x {keys}"
            )
        else:
            known.sums += sums
