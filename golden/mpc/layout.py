"""How tensors lie in memory as words of the buffer (docs/isa.md), and where."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dstar.golden.weights import QuantizedWeight

from .geometry import Geometry

Half = npt.NDArray[np.float16]
Bytes = npt.NDArray[np.uint8]


class CompileError(ValueError):
    """A layer that the core cannot run; the message names the rule and the numbers."""


@dataclass(frozen=True, kw_only=True)
class LayerShape:
    """Tokens, input channels and output channels of a linear layer."""

    tokens: int
    inner: int
    out: int

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise CompileError(f"{name} of a layer must be at least 1, got {value}")


@dataclass(frozen=True)
class Tiling:
    """A layer cut into tiles of ``rows`` tokens, ``channels`` inputs, ``cols`` outputs."""

    geometry: Geometry
    shape: LayerShape
    channels: int

    @property
    def token_tiles(self) -> int:
        """Token tiles; the last may have missing tokens, which are zero."""
        return -(-self.shape.tokens // self.geometry.cfg.array.rows)

    @property
    def missing_tokens(self) -> int:
        """Tokens that the last token tile lacks."""
        return -self.shape.tokens % self.geometry.cfg.array.rows

    @property
    def column_tiles(self) -> int:
        """Column tiles; the last may have columns that the layer has not."""
        return -(-self.shape.out // self.geometry.cfg.array.cols)

    @property
    def k_sizes(self) -> list[int]:
        """Input channels of every k tile."""
        inner = self.shape.inner
        return [min(self.channels, inner - k) for k in range(0, inner, self.channels)]

    @property
    def columns(self) -> int:
        """Output channels in whole tiles."""
        return self.column_tiles * self.geometry.cfg.array.cols

    @property
    def weight_tile_words(self) -> list[int]:
        """Words of the weights of every k tile, for one column tile."""
        return [self.geometry.weight_words(size) for size in self.k_sizes]

    def x_words(self, stride: int | None = None) -> int:
        """Words of the activations, of ``stride`` channels a token tile if it is not ``inner``."""
        return self.token_tiles * (stride or self.shape.inner)

    @property
    def y_words(self) -> int:
        """Words of the outputs."""
        return self.token_tiles * self.columns

    @property
    def weight_words(self) -> int:
        """Words of all weights."""
        return self.column_tiles * sum(self.weight_tile_words)

    @property
    def parameter_words(self) -> int:
        """Words of all scales and biases."""
        return self.column_tiles * self.geometry.parameter_words


def pack_vectors(x: Half, rows: int, channels: int | None = None) -> Bytes:
    """Activations (tokens, width) as words [token tile][channel], uint8, zeros where nothing is."""
    tokens, width = x.shape
    tiles = -(-tokens // rows)
    full = np.zeros((tiles * rows, channels or width), np.float16)
    full[:tokens, :width] = x
    words = full.reshape(tiles, rows, -1).transpose(0, 2, 1)
    return np.ascontiguousarray(words).view(np.uint8).reshape(-1)


def unpack_vectors(data: Bytes, rows: int, tokens: int, channels: int, width: int) -> Half:
    """The inverse of :func:`pack_vectors`: (tokens, width) of words with ``channels`` a tile."""
    words = data.view(np.float16).reshape(-1, channels, rows)
    return words.transpose(0, 2, 1).reshape(-1, channels)[:tokens, :width].copy()


def pack_weights(weight: QuantizedWeight, tiling: Tiling) -> Bytes:
    """Weights as words [column tile][k tile][input channel]."""
    geometry, cols = tiling.geometry, tiling.geometry.cfg.array.cols
    q = np.zeros((tiling.columns, tiling.shape.inner), np.int8)
    q[: weight.q.shape[0]] = weight.q
    parts = []
    for column in range(0, tiling.columns, cols):
        start = 0
        for size in tiling.k_sizes:
            words = geometry.weight_words(size)
            rows = np.zeros((words * geometry.rows_per_word, cols), np.int8)
            rows[:size] = q[column : column + cols, start : start + size].T
            word = np.zeros((words, geometry.word_bytes), np.uint8)
            word[:, : geometry.rows_per_word * cols] = rows.view(np.uint8).reshape(words, -1)
            parts.append(word.reshape(-1))
            start += size
    return np.concatenate(parts)


def pack_parameters(weight: QuantizedWeight, bias: Half, tiling: Tiling) -> Bytes:
    """Scales and biases as words [column tile][output channel]."""
    geometry, cols = tiling.geometry, tiling.geometry.cfg.array.cols
    pairs = np.zeros((tiling.columns, 2), np.uint16)
    pairs[: len(bias), 0] = np.ascontiguousarray(weight.scale).view(np.uint32) >> 16
    pairs[: len(bias), 1] = np.ascontiguousarray(bias).view(np.uint16)
    words = np.zeros(
        (tiling.column_tiles, geometry.parameter_words, geometry.word_bytes // 4, 2), np.uint16
    )
    flat = words.reshape(tiling.column_tiles, -1, 2)
    flat[:, :cols] = pairs.reshape(tiling.column_tiles, cols, 2)
    return words.view(np.uint8).reshape(-1)


@dataclass(frozen=True, kw_only=True)
class Places:
    """Addresses of a layer's tensors in memory.

    ``x_stride``: words of the activations from a token tile to the next, at least ``inner``.
    ``gelu``: where the activated outputs go, or None.  ``mask``: a token vector of ones, zero where
    the last token tile has no tokens; None where no tile lacks any.
    """

    x: int
    reference: int
    y: int
    weights: int
    parameters: int
    x_stride: int
    gelu: int | None = None
    mask: int | None = None


class Allocator:
    """Hands out memory from ``base`` up to ``end``, aligned to ``align`` bytes."""

    def __init__(self, base: int, end: int, align: int) -> None:
        self.next, self.end, self.align = -(-base // align) * align, end, align

    def take(self, size: int, what: str) -> int:
        """Address of ``size`` bytes.

        Raises
        ------
        CompileError
            If they do not fit.
        """
        address = self.next
        if address + size > self.end:
            raise CompileError(
                f"memory must hold {size} bytes of {what} from {address:#x} on, ends at "
                f"{self.end:#x}"
            )
        self.next = -(-(address + size) // self.align) * self.align
        return address
