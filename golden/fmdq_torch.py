"""FMDQ on whole tensors in PyTorch, bit for bit equal to the NumPy model.

A tensor is ``(..., tokens, channels)``; see :mod:`dstar.golden.quantize` for tiles, rounding and
flags.  It is processed in chunks that stay in the cache, in float32 with correctly rounded
conversions, on the device that holds it (tested on CPUs).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from .bins import BinTable, max_q
from .half import MAX_HALF
from .quantize import ROWS, tile_count

#: Values of a chunk on a CPU: just below the 32768 from which PyTorch uses several threads.
CHUNK = 2**15 - 1
#: Values of a chunk on any other device.
DEVICE_CHUNK = 2**24
#: Magnitudes from here on round to infinity.
OVERFLOW = 65520.0


@dataclass(frozen=True, eq=False)
class TorchQuantized:
    """The counterpart of :class:`dstar.golden.quantize.Quantized`, with the reconstruction.

    ``x_hat``: float16, the shape of x: the reference plus the quantized difference.  ``q``: int8,
    the shape of x, or None where it was not asked for.  ``precision``, ``exponent``: uint8 and
    int8 (..., tiles, channels).  ``nonfinite``, ``saturated``: sticky flags.
    """

    x_hat: Tensor
    q: Tensor | None
    precision: Tensor
    exponent: Tensor
    nonfinite: bool
    saturated: bool


class _Table:
    """A bin table as tensors on one device."""

    def __init__(self, table: BinTable, device: torch.device) -> None:
        def put(values: list[float], dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=device)

        exponents, precisions = table.exponents.tolist(), table.precisions.tolist()
        # Without the last threshold, whatever exceeds the others finds the last entry, NaN too.
        self.thresholds = put(table.thresholds.tolist()[:-1])
        self.precision = put(precisions, torch.uint8)
        self.exponent = put(exponents, torch.int8)
        self.scale = put([2.0**f for f in exponents])
        self.step = put([2.0**-f for f in exponents])
        self.limit = put([float(max_q(p)) for p in precisions])


def quantize(
    x: Tensor,
    table: BinTable,
    *,
    reference: Tensor | None = None,
    rows: int = ROWS,
    with_q: bool = True,
) -> TorchQuantized:
    """Quantize the difference to a reference and reconstruct: one step of FMDQ.

    Parameters
    ----------
    x:
        Activation (..., tokens, channels): float16, or bfloat16 or float32, which are rounded to
        binary16 first.
    table:
        Bin table.
    reference:
        Last step's ``x_hat`` (mode ``reconstructed``) or x (mode ``previous``), of the shape of
        x; None at a keyframe.
    rows:
        Tokens of a tile.
    with_q:
        Also return the integers.

    Raises
    ------
    TypeError, ValueError
        If a type or shape does not fit; the message states the rule and the value.
    """
    x = _half(x, "x")
    if x.dim() < 2 or x.numel() == 0:
        raise ValueError(f"x must have tokens and channels, got shape {tuple(x.shape)}")
    if reference is not None:
        if reference.shape != x.shape:
            shapes = f"{tuple(x.shape)}, got {tuple(reference.shape)}"
            raise ValueError(f"reference must have the shape of x, {shapes}")
        reference = _half(reference, "reference")
    return _Run(x.detach(), reference, table, rows, with_q).run()


def fake_quantize(
    x: Tensor, table: BinTable, *, reference: Tensor | None = None, rows: int = ROWS
) -> Tensor:
    """``quantize(...).x_hat`` alone: float16, the shape of x."""
    return quantize(x, table, reference=reference, rows=rows, with_q=False).x_hat


def _half(x: Tensor, name: str) -> Tensor:
    """A contiguous float16 version of an argument."""
    if x.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise TypeError(f"{name} must be float16, bfloat16 or float32, got {x.dtype}")
    return x.to(torch.float16).contiguous()


class _Run:
    """One call of :func:`quantize`: outputs, the bin table on the device, and reused buffers.

    On a CPU, chunks stay in its cache and are so small that PyTorch runs each operation on one
    thread: with larger ones the threads spend their time waiting for each other.
    """

    def __init__(
        self, x: Tensor, reference: Tensor | None, table: BinTable, rows: int, with_q: bool
    ) -> None:
        *lead, tokens, channels = x.shape
        self.shape, self.rows, self.lut = x.shape, rows, _Table(table, x.device)
        if tokens % rows == 0:  # no tile crosses a sample: one long sample
            lead, tokens = [], math.prod(lead) * tokens
        self.samples, self.tokens, self.channels = math.prod(lead), tokens, channels
        self.tiles = tile_count(tokens, rows)
        self.x, self.reference, self.x_hat = x, reference, torch.empty_like(x)
        self.q = torch.empty_like(x, dtype=torch.int8) if with_q else None
        self.peak = torch.empty(
            (*self.shape[:-2], tile_count(self.shape[-2], rows), channels), device=x.device
        )
        self.chunk = CHUNK if x.device.type == "cpu" else DEVICE_CHUNK
        self.buffers: dict[tuple[torch.dtype, int, tuple[int, ...]], Tensor] = {}
        self.saturated = False

    @torch.no_grad()
    def run(self) -> TorchQuantized:
        """Process every chunk and collect the results in the caller's shapes."""
        full, rest = divmod(self.tokens, self.rows)
        parts = tile_count(self.channels * min(self.rows, self.tokens), self.chunk)
        width = tile_count(self.channels, min(parts, self.channels))
        group = max(1, self.chunk // (self.rows * width))
        starts = range(0, self.channels, width)
        for sample, start in product(range(self.samples), starts):
            columns = min(width, self.channels - start)
            for tile in range(0, full, group):
                shape = min(group, full - tile), self.rows, columns
                self._process(sample, tile, start, shape)
            if rest:
                self._process(sample, full, start, (1, rest, columns))
        index = torch.bucketize(self.peak, self.lut.thresholds)
        return TorchQuantized(
            x_hat=self.x_hat,
            q=self.q,
            precision=self.lut.precision[index],
            exponent=self.lut.exponent[index],
            nonfinite=not bool(self.peak.max() <= MAX_HALF),
            saturated=self.saturated,
        )

    def _buffer(self, dtype: torch.dtype, which: int, shape: tuple[int, ...]) -> Tensor:
        key = dtype, which, shape
        if key not in self.buffers:
            self.buffers[key] = torch.empty(shape, dtype=dtype, device=self.x.device)
        return self.buffers[key]

    def _process(self, sample: int, tile: int, start: int, shape: tuple[int, int, int]) -> None:
        """Quantize and reconstruct ``shape`` (tiles, tokens, channels) from a place on."""
        lut, stride = self.lut, (self.rows * self.channels, self.channels, 1)
        place = (sample * self.tokens + tile * self.rows) * self.channels + start

        def take(t: Tensor) -> Tensor:
            return t.as_strided(shape, stride, place)

        value = self._buffer(torch.float32, 0, shape).copy_(take(self.x))
        other = self._buffer(torch.float32, 1, shape)
        reference = None
        if self.reference is not None:
            reference = self._buffer(torch.float32, 2, shape).copy_(take(self.reference))
            # Through float16 and back: the difference is rounded to binary16.
            half = self._buffer(torch.float16, 0, shape).copy_(value.sub_(reference))
            value.copy_(half)
        peak = torch.abs(value, out=other).amax(dim=1, keepdim=True)
        place_of_peak = (sample * self.tiles + tile) * self.channels + start
        self.peak.as_strided(peak.shape, (self.channels, 1, 1), place_of_peak).copy_(peak)
        index = torch.bucketize(peak, lut.thresholds)
        limit = torch.take(lut.limit, index)
        value.mul_(torch.take(lut.scale, index)).round_()
        torch.clamp(value, -limit, limit, out=value)
        if not float(peak.max()) <= MAX_HALF:
            value.nan_to_num_(nan=0.0)
        # Through int8 and back: there is no -0 to carry into x_hat.
        q = self._buffer(torch.int8, 0, shape) if self.q is None else take(self.q)
        value.copy_(q.copy_(value))
        value.mul_(torch.take(lut.step, index))
        if reference is not None:
            value.add_(reference)
            low, high = torch.aminmax(value)
            if max(-float(low), float(high)) >= OVERFLOW:
                self.saturated = True
                value.clamp_(-MAX_HALF, MAX_HALF)
        take(self.x_hat).copy_(value)
