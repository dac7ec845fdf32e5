"""Choosing bin tables from data: the static thresholds of the paper's dataset profiling.

Every layer gets a ``uniform`` table with its own first step ``T = 2**-b`` and a keyframe table
(docs/numerics.md gives the measurements behind both choices).  Where nothing else is known, T is
the step that per-token INT8 quantization would take on the layer's activations, so that both
quantizers are equally fine.  Where the exponent b of a layer has been measured
(:mod:`dstar.golden.allocate`), as for the shipped model, that is used.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dstar.gen.config import MAX_Q, PRESETS, Config

from . import shipped
from .bins import BinTable
from .half import MAX_HALF, Float32, Half, carry
from .linear import LayerTables

#: Exponents b of uniform tables whose 8-bit entries lie within binary16.
MIN_B, MAX_B = -9, 23


@dataclass(frozen=True, kw_only=True)
class LayerProfile:
    """What the steps of one layer's activation say about its tables.

    ``token_step``: mean over steps and tokens of the largest magnitude of a token, over 127: the
    step of per-token INT8.  ``largest_difference``: largest magnitude of the difference between
    two steps.  ``largest_start``: largest magnitude at the first step, the keyframe.
    ``span``: octaves of coarser 8-bit scales that the accumulator has room for.
    """

    token_step: float
    largest_difference: float
    largest_start: float
    span: int

    @property
    def limit(self) -> int:
        """Largest b at which no difference of the profile exceeds the table and clips."""
        if self.largest_difference == 0:
            return MAX_B
        reach = (MAX_Q + 0.5) * 2.0**self.span
        return _within(math.floor(math.log2(reach / self.largest_difference)))

    @property
    def exponent(self) -> int:
        """b of the table whose step is nearest to :attr:`token_step`, within :attr:`limit`."""
        if self.token_step == 0:
            return self.limit
        return min(_within(round(-math.log2(self.token_step))), self.limit)

    def tables(self, b: int | None = None) -> LayerTables:
        """Tables with the step ``2**-b``, at most 2**-:attr:`limit` (default: by the rule)."""
        b = self.exponent if b is None else min(_within(b), self.limit)
        return LayerTables(
            delta=BinTable.uniform(b, span=self.span),
            keyframe=BinTable.keyframe(self.largest_start, span=self.span),
        )


def _within(b: int) -> int:
    return max(MIN_B, min(MAX_B, b))


def profile_layer(activations: Iterable[Half], cfg: Config = PRESETS["paper"]) -> LayerProfile:
    """Profile one layer from its activations, step by step; they are read once, in order.

    Parameters
    ----------
    activations:
        (..., tokens, channels), all of one shape.  Non-finite values are left out.

    Raises
    ------
    ValueError
        If there is no step.
    """
    steps: list[float] = []
    start = difference = 0.0
    before: Float32 | None = None
    for x in activations:
        wide = carry(x)
        wide[~(np.abs(wide) <= MAX_HALF)] = 0
        magnitude = np.abs(wide)
        steps.append(float(magnitude.max(axis=-1).mean(dtype=np.float64)) / MAX_Q)
        if before is None:
            start = float(magnitude.max())
        else:
            difference = max(difference, float(np.abs(wide - before).max()))
        before = wide
    if not steps:
        raise ValueError("a profile needs the activation of at least one step, got none")
    return LayerProfile(
        token_step=float(np.mean(steps)),
        largest_difference=difference,
        largest_start=start,
        span=cfg.numeric.exponent_span,
    )


def default_tables(
    activations: Mapping[str, Iterable[Half]],
    cfg: Config = PRESETS["paper"],
    *,
    exponents: Mapping[str, int] | None = None,
) -> dict[str, LayerTables]:
    """Tables of several layers: by measured ``exponents`` where given, else by the rule.

    Parameters
    ----------
    activations:
        For each layer, the activations of its steps in order.
    exponents:
        b of some or all layers.
    """
    known = exponents or {}
    return {
        name: profile_layer(steps, cfg).tables(known.get(name))
        for name, steps in activations.items()
    }


class Dump(Protocol):
    """What :func:`dump_tables` needs of a dump reader."""

    @property
    def steps(self) -> range:
        """Denoising steps."""

    def x(self, layer: str, step: int) -> npt.NDArray[np.float16]:
        """Input activation (tokens, in)."""

    def w(self, layer: str) -> npt.NDArray[np.float32]:
        """Weights (out, in)."""


def dump_tables(
    dump: Dump, names: Iterable[str], cfg: Config = PRESETS["paper"]
) -> dict[str, LayerTables]:
    """Default tables of a dump's linear layers; the same dump always gives the same tables.

    Layers that hold the shipped model's weights take the exponents measured on it.
    """
    tables = {}
    for name in names:
        profile = profile_layer((dump.x(name, step) for step in dump.steps), cfg)
        tables[name] = profile.tables(shipped.exponent(name, dump.w(name)))
    return tables
