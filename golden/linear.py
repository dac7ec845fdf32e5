"""One linear layer over the denoising steps: FMDQ as the hardware keeps its state.

Each step quantizes the difference to the layer's reference, multiplies it by the integer weights
and adds the result to last step's output (paper, section 3.1; the reverse differential).  Where
values are rounded:

1. difference: binary16, nearest even;
2. q: nearest even, clipped;
3. ``acc`` of each k tile: exact; the sum over k tiles in units of ``2**-finest`` of the step's
   table: exact (integers);
4. sum * ``2**-finest`` * ``w_scale``: to binary16, in one rounding of the exact product;
5. that plus last step's y, or plus the bias (binary16) at a keyframe: to binary16;
6. reference plus ``q * 2**-f``: to binary16.

Sums beyond binary16 in 4 to 6 saturate at 65504 and set ``saturated``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from dstar.gen.config import PRESETS, Config

from .accumulate import exact_product
from .bins import BinTable
from .half import MAX_HALF, Float32, Half, carry, round_any, round_sum, saturate, widen
from .quantize import Quantized, difference, per_token, quantize, reconstruct
from .step import LinearStep
from .weights import QuantizedWeight, quantize_weight

__all__ = ["FMDQLinear", "LayerTables", "LinearStep", "Mode", "keyframe_table"]

#: ``reconstructed``: differences to what the quantized differences add up to, so that one step's
#: error is corrected by the next.  ``previous``: differences to the true last activation.
Mode = Literal["reconstructed", "previous"]


@dataclass(frozen=True, kw_only=True)
class LayerTables:
    """Bin tables of one layer: ``delta`` for differences, ``keyframe`` for keyframes.

    Without a ``keyframe`` table each keyframe makes its own from its largest magnitude.
    """

    delta: BinTable
    keyframe: BinTable | None = None

    def check(self, cfg: Config) -> None:
        """Refuse tables that break the accumulator's bound (:meth:`BinTable.check`)."""
        for table in (self.delta, self.keyframe):
            if table is not None:
                table.check(cfg)


class FMDQLinear:
    """A linear layer and its state from step to step.

    Parameters
    ----------
    weight:
        Quantized weights, or float weights (out, in) to quantize.
    bias:
        (out,) or None; rounded to binary16.
    tables:
        Bin tables; checked against ``cfg``.
    mode:
        What differences are taken to.
    cfg:
        Gives the tile size, the k tile and the accumulator's bound.

    Raises
    ------
    ConfigError
        If a table breaks the bound of the accumulator.
    ValueError
        If weights or bias have wrong shapes or non-finite values.
    """

    def __init__(
        self,
        weight: QuantizedWeight | npt.NDArray[np.generic],
        bias: npt.NDArray[np.generic] | None = None,
        *,
        tables: LayerTables,
        mode: Mode = "reconstructed",
        cfg: Config = PRESETS["paper"],
    ) -> None:
        if not isinstance(weight, QuantizedWeight):
            weight = quantize_weight(weight, bits=cfg.numeric.weight_bits)
        if mode not in ("reconstructed", "previous"):
            raise ValueError(f"mode must be 'reconstructed' or 'previous', got {mode!r}")
        tables.check(cfg)
        out = weight.q.shape[0]
        values = np.zeros(out) if bias is None else np.asarray(bias, np.float64)
        if values.shape != (out,):
            raise ValueError(f"bias must have shape {(out,)}, got {values.shape}")
        self._bias = round_any(values)
        if not np.isfinite(self._bias).all():
            raise ValueError(f"bias must be finite in binary16, got {values.tolist()}")
        self.weight, self.tables, self.mode, self.cfg = weight, tables, mode, cfg
        self._weight_t = np.ascontiguousarray(weight.q.T, np.float32)
        self.reset()

    def reset(self) -> None:
        """Forget the state: the next step is a keyframe."""
        self._reference: Float32 | None = None
        self._y: Float32 | None = None

    @property
    def bias(self) -> npt.NDArray[np.float16]:
        """The bias in binary16 (out,): what a keyframe adds."""
        return self._bias.astype(np.float16)

    @property
    def reference(self) -> npt.NDArray[np.float16] | None:
        """What the next difference is taken to; None before a keyframe."""
        return None if self._reference is None else self._reference.astype(np.float16)

    def step(self, x: npt.NDArray[np.generic], keyframe: bool | None = None) -> LinearStep:
        """Run one denoising step.

        Parameters
        ----------
        x:
            Activation (..., tokens, in) as float16, float32 or float64, rounded to binary16 on
            the way in.  Leading dimensions are independent samples.
        keyframe:
            True to take the difference to zero, None or False to continue.  The first step is
            always a keyframe.

        Raises
        ------
        ValueError
            If the shape does not fit the weights or the step before.
        """
        k = self.weight.q.shape[1]
        if x.ndim < 2 or x.shape[-1] != k:
            raise ValueError(f"x must have shape (..., tokens, {k}), got {x.shape}")
        wide = carry(x)
        start = bool(keyframe) or self._reference is None
        if not start and self._reference is not None and wide.shape != self._reference.shape:
            raise ValueError(
                f"x must keep the shape {self._reference.shape} between keyframes, got {x.shape}"
            )
        d = difference(wide, None if start else self._reference)
        table = self._keyframe_table(d) if start else self.tables.delta
        quantized = quantize(d, table, self.cfg.array.rows)
        y, clipped = self._output(quantized, table, None if start else self._y)
        self._y = y
        if self.mode == "previous":
            self._reference, lost = wide, False
        else:
            zero = np.zeros_like(wide) if start else self._reference
            new, lost = reconstruct(zero, quantized)
            self._reference = widen(new)
        return LinearStep(
            quantized=quantized,
            y_carrier=y,
            keyframe=start,
            table=table,
            saturated=clipped or lost,
            weight=self.weight,
            k_tile=self.cfg.numeric.k_tile,
        )

    def _keyframe_table(self, d: Half) -> BinTable:
        if self.tables.keyframe is not None:
            return self.tables.keyframe
        return keyframe_table([d], self.cfg)

    def _output(
        self, quantized: Quantized, table: BinTable, before: Float32 | None
    ) -> tuple[Float32, bool]:
        """Roundings 3 to 5 of the module's list; ``before`` is None at a keyframe."""
        gap = table.finest - quantized.exponent.astype(np.int32)
        factor = np.ldexp(np.float32(1), gap)
        tokens = quantized.q.shape[-2]
        units: Float32 = quantized.q * per_token(factor, tokens, quantized.rows)
        total = exact_product(units, self._weight_t)
        scale = np.ldexp(self.weight.scale.astype(np.float64), -table.finest)
        product, clipped = saturate(round_any(total.astype(np.float64) * scale))
        product += self._bias if before is None else before
        y, over = saturate(round_sum(product))
        return y, clipped or over


def keyframe_table(activations: Iterable[Half], cfg: Config = PRESETS["paper"]) -> BinTable:
    """Keyframe table of a layer from its keyframe activations: by their largest magnitude.

    NaN and infinity are left out, so that they clip and do not coarsen everything else.
    """
    largest = 0.0
    for x in activations:
        peak = np.abs(widen(x))
        largest = max(largest, float(peak[peak <= MAX_HALF].max(initial=0.0)))
    return BinTable.keyframe(largest, span=cfg.numeric.exponent_span)
