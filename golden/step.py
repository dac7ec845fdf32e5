"""What one denoising step of a quantized linear layer computed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from dstar.gen.config import SLICE_BITS

from .accumulate import Int64, accumulate
from .bins import BinTable
from .encode import EncodedTile, encode_layer
from .half import Float32
from .quantize import Quantized
from .weights import QuantizedWeight


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearStep:
    """What one step of a layer computed.

    ``quantized``: q, precisions and exponents.  ``y_carrier``: output (..., tokens, out) as a
    float32 carrier of binary16 values.  ``keyframe``: whether the step was one.  ``table``: the
    bin table it used.  ``saturated``: some output or reference left binary16's range.
    """

    quantized: Quantized
    y_carrier: Float32
    keyframe: bool
    table: BinTable
    saturated: bool
    weight: QuantizedWeight
    k_tile: int

    @property
    def q(self) -> npt.NDArray[np.int8]:
        """Quantized differences, int8 (..., tokens, in)."""
        return self.quantized.q

    @property
    def precision(self) -> npt.NDArray[np.uint8]:
        """Bits of each sub-channel, uint8 (..., token tiles, in)."""
        return self.quantized.precision

    @property
    def exponent(self) -> npt.NDArray[np.int8]:
        """Scale exponent of each sub-channel, int8 (..., token tiles, in)."""
        return self.quantized.exponent

    @property
    def nonfinite(self) -> bool:
        """Whether some difference was NaN or infinite."""
        return self.quantized.nonfinite

    @property
    def average_bits(self) -> float:
        """Mean precision over the values of the activation; skipped ones count as 0."""
        return self.quantized.average_bits

    @property
    def slices(self) -> int:
        """Slices of all tiles."""
        return int(self.precision.sum(dtype=np.int64) // SLICE_BITS)

    @cached_property
    def y(self) -> npt.NDArray[np.float16]:
        """Output, binary16 (..., tokens, out)."""
        return self.y_carrier.astype(np.float16)

    @cached_property
    def tiles(self) -> list[list[EncodedTile]]:
        """Encoded tiles [token tile][k tile]; leading dimensions are stacked as token tiles."""
        rows, out = self.quantized.rows, []
        parts = (self.q, self.precision, self.exponent)
        per_sample = [a.reshape(-1, *a.shape[-2:]) for a in parts]
        for q, precision, exponent in zip(*per_sample, strict=True):
            out += encode_layer(q, precision, exponent, rows=rows, k_tile=self.k_tile)
        return out

    def tile_weights(self, k: int) -> npt.NDArray[np.int8]:
        """Weights that k tile ``k`` meets: int8 (out, channels)."""
        return self.weight.q[:, k * self.k_tile : (k + 1) * self.k_tile]

    def acc(self, token_tile: int, k: int) -> Int64:
        """Sums of one tile, int64 (rows, out), in units of ``2**-last_exponent`` of the tile."""
        return accumulate(self.tiles[token_tile][k], self.tile_weights(k))
