"""Every method of the quality table by name: how to wrap the shipped model.

Parameters are fixed here or come from the profiling set (:mod:`.sets`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property

from torch import nn

from dstar.gen.config import ConfigError
from dstar.golden.bins import BinTable
from dstar.golden.linear import LayerTables, Mode
from dstar.golden.model.apply import DstarModel, apply
from dstar.golden.model.blocks import Order
from dstar.golden.model.fmdq import FMDQ, Base
from dstar.golden.model.masks import AttentionProfile, BlockMasks
from dstar.golden.model.method import AttentionMethod, LinearMethod
from dstar.golden.model.sar import SAR
from dstar.golden.rivals import (
    CambriconD,
    Ditto,
    FFNReuse,
    GroupInt8,
    MergedInt8,
    MergeTokens,
    TokenInt8,
    TopKeys,
    ZeroSmall,
    exion,
    profile_activations,
    sdma,
)
from dstar.golden.rivals.profile import ActivationProfile

from .sets import LAYERS, draw_profile, fresh_model
from .thresholds import tables

#: Block masks of the methods with pruning: tokens of a block's edge, order, share of mass.
BLOCK, THR = 16, 4e-3
ORDER: Order = "squares"


class Context:
    """What methods take from the profiling set; computed when first asked for.

    Parameters
    ----------
    steps:
        Denoising steps of the runs.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self._attention: dict[tuple[int, Order], AttentionProfile] = {}

    @cached_property
    def activations(self) -> dict[str, ActivationProfile]:
        """For the rivals' static parameters."""
        model = fresh_model()
        return profile_activations(model, LAYERS, lambda: draw_profile(model, steps=self.steps))

    def attention(self, block: int = BLOCK, order: Order = ORDER) -> AttentionProfile:
        """Attention mass by blocks."""
        if (block, order) not in self._attention:
            profile = AttentionProfile(block=block, order=order)
            draw_profile(apply(fresh_model(), attention=profile), steps=self.steps)
            self._attention[block, order] = profile
        return self._attention[block, order]

    def masks(self, thr: float = THR, block: int = BLOCK, order: Order = ORDER) -> BlockMasks:
        """Block masks at a share of the attention mass that may go."""
        return self.attention(block, order).masks(thr)


@dataclass(frozen=True, kw_only=True)
class Method:
    """One row of the table.

    ``name``: what ``--methods`` matches.  ``build``: wraps a fresh copy of the shipped model.
    ``main``: part of the default table; the others are points of a curve.
    """

    name: str
    build: Callable[[Context], nn.Module]
    main: bool = True


def wrap(linear: LinearMethod | None, attention: AttentionMethod | None = None) -> DstarModel:
    """A fresh copy of the shipped model, wrapped."""
    return apply(fresh_model(), linear, attention)


def fmdq(
    shift: int = 0, *, mode: Mode = "reconstructed", base: Base = "static", paper: bool = False
) -> FMDQ:
    """FMDQ with the profiled thresholds times ``2**-shift``; ``paper``: with its bin table."""
    chosen = tables(shift)
    if paper:
        chosen = {
            name: LayerTables(delta=BinTable.paper(t.delta.finest), keyframe=t.keyframe)
            for name, t in chosen.items()
        }
    return FMDQ(tables=chosen, mode=mode, base=base)


def _merged(ratio: float) -> nn.Module:
    model = fresh_model()
    for block in model.blocks:
        for module in (block.attn, block.mlp):
            assert isinstance(module, nn.Module)
            MergeTokens(module, ratio=ratio, grid=model.spec.grid)
    return apply(model, MergedInt8(ratio=ratio, layers=["*.attn.*", "*.mlp.*"]))


def _factor(shift: int) -> str:
    return f"-x{2.0**-shift:g}" if shift else ""


def _fmdq_points(mode: Mode, shifts: range, main: Sequence[int]) -> list[Method]:
    name = "fmdq" if mode == "reconstructed" else "fmdq-previous"
    return [
        Method(
            name=name + _factor(shift),
            build=lambda c, s=shift: wrap(fmdq(s, mode=mode)),  # type: ignore[misc]
            main=shift in main,
        )
        for shift in shifts
    ]


METHODS: tuple[Method, ...] = (
    Method(name="w8a8", build=lambda c: wrap(TokenInt8())),
    *_fmdq_points("reconstructed", range(1, -5, -1), (0, -1, -2)),
    *_fmdq_points("previous", range(6, -3, -1), (0,)),
    Method(name="fmdq-dynamic", build=lambda c: wrap(fmdq(base="dynamic"))),
    Method(name="fmdq-paper-table", build=lambda c: wrap(fmdq(-1, paper=True)), main=False),
    Method(name="sar", build=lambda c: wrap(TokenInt8(), SAR(interval=2))),
    Method(
        name="sar-mixed",
        build=lambda c: wrap(TokenInt8(), SAR(interval=2, score_bits="mixed")),
    ),
    Method(
        name="sparse",
        build=lambda c: wrap(TokenInt8(), SAR(masks=c.masks(), interval=1)),
    ),
    Method(
        name="dstar",
        build=lambda c: wrap(fmdq(-1), SAR(masks=c.masks(), interval=2, score_bits="mixed")),
    ),
    Method(name="int8-sa", build=lambda c: wrap(GroupInt8())),
    Method(name="ditto.dstar", build=lambda c: wrap(Ditto(c.activations, mode="as_dstar"))),
    Method(name="ditto.published", build=lambda c: wrap(Ditto(c.activations, mode="as_published"))),
    Method(
        name="cambricon-d.dstar", build=lambda c: wrap(CambriconD(c.activations, mode="as_dstar"))
    ),
    Method(
        name="cambricon-d.published",
        build=lambda c: wrap(CambriconD(c.activations, mode="as_published")),
    ),
    Method(
        name="exion.dstar",
        build=lambda c: wrap(ZeroSmall(c.activations), TopKeys(exion.KEEP_DSTAR)),
    ),
    Method(
        name="exion.published",
        build=lambda c: wrap(FFNReuse(c.activations), TopKeys(exion.KEEP_PUBLISHED)),
    ),
    Method(name="s-dma.dstar", build=lambda c: _merged(sdma.RATIO_DSTAR)),
    Method(name="s-dma.published", build=lambda c: _merged(sdma.RATIO_PUBLISHED)),
)


def find(patterns: str | None) -> list[Method]:
    """Methods whose name matches one of some globs, separated by commas; None: the main ones.

    Raises
    ------
    ConfigError
        If a glob matches none; the message lists the names.
    """
    if patterns is None:
        return [m for m in METHODS if m.main]
    found: dict[str, Method] = {}
    for pattern in patterns.split(","):
        matching = [m for m in METHODS if fnmatchcase(m.name, pattern.strip())]
        if not matching:
            names = ", ".join(m.name for m in METHODS)
            raise ConfigError(f"--methods must match a method, got {pattern!r}; there are {names}")
        found |= {m.name: m for m in matching}
    return [m for m in METHODS if m.name in found]
