"""FMDQ for the linear layers of whole models, in PyTorch, bit for bit as the NumPy layer.

One step quantizes the difference to the layer's reference, multiplies it by integer weights and
adds the result to last step's output: see :mod:`dstar.golden.linear` for the six roundings and
``docs/numerics.md`` for the tables (paper, section 3.1).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

import torch
from torch import Tensor, nn

from dstar.gen.config import PRESETS, Config, ConfigError

from .. import shipped
from ..bins import BinTable
from ..fmdq_torch import TorchQuantized, quantize
from ..half import MAX_HALF
from ..linear import LayerTables, Mode
from ..profile import LayerProfile
from ..weights import quantize_weight
from .method import LinearStats, Moment, State, whole_layer
from .product import IntegerLinear
from .statistics import count
from .thresholds import Thresholds

#: ``static``: scales are powers of two.  ``dynamic``: scales are powers of two times the smallest
#: sub-channel maximum of the tensor, the paper's DS-FMDQ-DYN.
Base = Literal["static", "dynamic"]


@dataclass(frozen=True, kw_only=True)
class FMDQ:
    """Fine-grained mixed-precision differential quantization of linear layers.

    Where a layer's tables come from, first match first: ``tables``, ``exponents`` (both by glob
    over layer names), ``thresholds``, the exponents shipped with the trained model, and else the
    rule of :mod:`dstar.golden.profile` on the layer's first activation: the step that per-token
    INT8 would take.

    Parameters
    ----------
    tables:
        Bin tables by glob.
    exponents:
        b of the first step ``T = 2**-b`` by glob; the paper's ScaleBase is ``2**b``, larger for
        the first layers of some models: ``{"blocks.0.*": 8, "*": 6}``.
    thresholds:
        A measured set, see :func:`~dstar.golden.model.thresholds.profile`; refused if its weights
        are not the model's.
    shift:
        Added to the exponents of ``thresholds`` and of the shipped model: 1 is an octave finer.
    table:
        ``uniform`` or ``paper``: the kind of table made from an exponent.
    mode:
        ``reconstructed``: differences to what the quantized differences add up to.  ``previous``:
        to the true last activation, so that errors add up.
    base:
        ``static``, or ``dynamic``: the paper's DS-FMDQ-DYN as we read it.  The smallest nonzero
        sub-channel maximum of a sample's tensor, at run time, is the base; bin edges and scales
        are the table's times the base's significand in [1, 2), so that they lie at the base times
        powers of two.  Needs the whole tensor before its first value, and scales are no powers
        of two; differences over base are rounded to binary16, the rest is float32.
    keyframes:
        Further steps, besides the first, that start afresh.
    cfg:
        Gives tokens of a tile, weight bits and the accumulator's bound.

    Raises
    ------
    ConfigError
        If a name is none of those above, or a table breaks the accumulator's bound.
    """

    tables: Mapping[str, LayerTables] = field(default_factory=dict)
    exponents: Mapping[str, int] = field(default_factory=dict)
    thresholds: Thresholds | None = None
    shift: int = 0
    table: Literal["uniform", "paper"] = "uniform"
    mode: Mode = "reconstructed"
    base: Base = "static"
    keyframes: Collection[int] = ()
    cfg: Config = PRESETS["paper"]

    def __post_init__(self) -> None:
        for name, known in (
            ("table", ("uniform", "paper")),
            ("mode", ("reconstructed", "previous")),
            ("base", ("static", "dynamic")),
        ):
            if (value := getattr(self, name)) not in known:
                raise ConfigError(f"{name} must be {' or '.join(known)}, got {value!r}")
        for tables in self.tables.values():
            tables.check(self.cfg)

    def kernel(self, name: str, linear: nn.Linear) -> FMDQKernel:
        """The kernel of one layer; some rows of a layer have the tables of the whole."""
        return FMDQKernel(linear, self.layer_tables(name, whole_layer(linear)), self)

    def layer_tables(self, name: str, linear: nn.Linear) -> LayerTables | None:
        """Tables of a layer, or None where its first activation decides."""
        for pattern, tables in self.tables.items():
            if fnmatchcase(name, pattern):
                return tables
        for pattern, b in self.exponents.items():
            if fnmatchcase(name, pattern):
                return LayerTables(delta=self.delta(b))
        if self.thresholds is not None and (known := self.thresholds.tables(name, linear)):
            b = known.delta.finest + self.shift
            return LayerTables(delta=self.delta(b), keyframe=known.keyframe)
        weight = linear.weight.detach().float().cpu().numpy()
        b_shipped = shipped.exponent(name, weight)
        return None if b_shipped is None else LayerTables(delta=self.delta(b_shipped + self.shift))

    def delta(self, b: int) -> BinTable:
        """The table for differences with the step ``2**-b``."""
        make = BinTable.uniform if self.table == "uniform" else BinTable.paper
        return make(b, span=self.cfg.numeric.exponent_span)


class FMDQKernel:
    """FMDQ in one layer.

    ``tables``: of the layer; None before the first activation decided.
    """

    def __init__(self, linear: nn.Linear, tables: LayerTables | None, settings: FMDQ) -> None:
        self.settings, self.tables = settings, tables
        weight = linear.weight.detach().float().cpu().numpy()
        self.product = IntegerLinear(
            quantize_weight(weight, bits=settings.cfg.numeric.weight_bits),
            linear.bias,
            linear.weight.device,
        )

    def __call__(self, x: Tensor, state: State, moment: Moment) -> tuple[Tensor, LinearStats]:
        """One step; the state holds ``reference`` and ``y``, both binary16."""
        s = self.settings
        if moment.step in s.keyframes and state.get("step") != moment.step:
            state.clear()
        if state and state["reference"].shape != x.shape:
            state.clear()  # another batch or image size
        state["step"] = moment.step
        reference: Tensor | None = state.get("reference")
        half = x.to(torch.float16)
        if self.tables is None:
            self.tables = LayerTables(delta=self._rule(half))
        if reference is not None:
            done, base = self._quantize(half, self.tables.delta, reference)
            y, clipped = self.product.add(done, self.tables.delta, state["y"], s.cfg, base)
        else:
            done, base, y, clipped = self._keyframe(half, self.tables.keyframe)
        state["y"] = y
        state["reference"] = half.clone() if s.mode == "previous" else done.x_hat
        return y.to(x.dtype), count(done, s.cfg.array.rows, clipped=clipped)

    def _rule(self, x: Tensor) -> BinTable:
        """The table whose step per-token INT8 would take on a first activation."""
        magnitude = x.float().nan_to_num(0.0, 0.0, 0.0).abs()
        largest = float(magnitude.max())
        profile = LayerProfile(
            token_step=float(magnitude.amax(dim=-1).mean()) / 127,
            largest_difference=largest,
            largest_start=largest,
            span=self.settings.cfg.numeric.exponent_span,
        )
        return self.settings.delta(profile.exponent)

    def _keyframe(
        self, x: Tensor, table: BinTable | None
    ) -> tuple[TorchQuantized, Tensor | None, Tensor, bool]:
        """The first step of every sample, each with the table of its own largest magnitude."""
        peaks = [MAX_HALF] * len(x)
        if table is None:
            finite = torch.where(x.isfinite(), x, 0).abs()
            peaks = finite.flatten(1).amax(dim=1).tolist()
        span = self.settings.cfg.numeric.exponent_span
        tables = [table or BinTable.keyframe(peak, span=span) for peak in peaks]
        parts = []
        for name in dict.fromkeys(t.name for t in tables):
            rows = [i for i, t in enumerate(tables) if t.name == name]
            chosen = tables[rows[0]]
            done, base = self._quantize(x[rows], chosen, None)
            y, clipped = self.product.add(done, chosen, None, self.settings.cfg, base)
            parts.append((rows, done, base, y, clipped))
        if len(parts) == 1:
            return parts[0][1:]
        order = torch.tensor([row for rows, *_ in parts for row in rows]).argsort()

        def join(tensors: list[Tensor]) -> Tensor:
            return torch.cat(tensors)[order.to(tensors[0].device)]

        done = TorchQuantized(
            x_hat=join([p[1].x_hat for p in parts]),
            q=None,
            precision=join([p[1].precision for p in parts]),
            exponent=join([p[1].exponent for p in parts]),
            nonfinite=any(p[1].nonfinite for p in parts),
            saturated=any(p[1].saturated for p in parts),
        )
        return done, None, join([p[3] for p in parts]), any(p[4] for p in parts)

    def _quantize(
        self, x: Tensor, table: BinTable, reference: Tensor | None
    ) -> tuple[TorchQuantized, Tensor | None]:
        """Quantize; also the factor in [1, 2) of every scale, (batch, 1, 1), if dynamic."""
        rows = self.settings.cfg.array.rows
        if self.settings.base == "static":
            return quantize(x, table, reference=reference, rows=rows), None
        start = torch.zeros_like(x) if reference is None else reference
        d = (x.float() - start.float()).half()
        base = _significand(d, rows)
        done = quantize(d.float() / base, table, rows=rows)
        x_hat = (start.float() + done.x_hat.float() * base).clamp(-MAX_HALF, MAX_HALF).half()
        return (
            TorchQuantized(
                x_hat, done.q, done.precision, done.exponent, done.nonfinite, done.saturated
            ),
            base,
        )


def _significand(d: Tensor, rows: int) -> Tensor:
    """Significand in [1, 2) of the smallest nonzero sub-channel maximum: float32 (batch, 1, 1)."""
    tokens = d.shape[1]
    peak = torch.stack(
        [d[:, i : i + rows].abs().amax(dim=1) for i in range(0, tokens, rows)], dim=1
    ).float()
    peak = torch.where((peak > 0) & peak.isfinite(), peak, math.inf).flatten(1).amin(dim=1)
    mantissa = torch.frexp(peak).mantissa * 2
    return torch.where(peak.isfinite(), mantissa, 1.0).view(-1, 1, 1)
