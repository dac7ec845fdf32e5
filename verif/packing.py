"""The MPU's stream words as bytes: exact, vectorised packing and unpacking.

A word's fields follow each other from its least significant bit, as in
:mod:`dstar.rtl.streams`; its bytes are little-endian (the first byte is bits 7..0), padded with
zero bits to whole bytes.  Arrays of words are uint8 (words, bytes).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dstar.gen.config import EXPONENT_BITS, SLICE_BITS, Config
from dstar.golden.encode import EncodedTile

Words = npt.NDArray[np.uint8]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Field:
    """`count` values of `width` bits (1 to 56), two's complement if `signed`."""

    width: int
    count: int = 1
    signed: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.width <= 56:
            raise ValueError(f"width of a field must be from 1 to 56 bits, got {self.width}")

    @property
    def low(self) -> int:
        """Smallest value."""
        return -(1 << (self.width - 1)) if self.signed else 0

    @property
    def high(self) -> int:
        """Largest value."""
        return (1 << (self.width - self.signed)) - 1


Layout = Sequence[Field]


def word_bits(layout: Layout) -> int:
    """Bits of a word."""
    return sum(field.width * field.count for field in layout)


def word_bytes(layout: Layout) -> int:
    """Bytes of a word."""
    return -(-word_bits(layout) // 8)


def pack(layout: Layout, values: Sequence[npt.NDArray[np.generic]]) -> Words:
    """Words of the given field values.

    Parameters
    ----------
    values:
        One integer array for each field, (words, count), or (words,) where the count is 1.

    Raises
    ------
    ValueError
        If a shape differs or a value does not fit its field; the message names both.
    """
    words = len(values[0])
    bits = np.empty((words, word_bits(layout)), np.uint8)
    offset = 0
    for i, (field, array) in enumerate(zip(layout, values, strict=True)):
        if array.size != words * field.count or len(array) != words:
            shape = (words, field.count)
            raise ValueError(f"field {i}: values must have shape {shape}, got {array.shape}")
        if array.size and not field.low <= int(array.min()) <= int(array.max()) <= field.high:
            raise ValueError(
                f"field {i}: values must be from {field.low} to {field.high}, "
                f"got {array.min()} to {array.max()}"
            )
        carrier = np.uint8 if field.width <= 8 else np.dtype("<u8")
        raw = array.reshape(words, field.count).astype(np.int64).astype(carrier, order="C")
        as_bytes = raw.view(np.uint8).reshape(words, field.count, raw.itemsize)
        end = offset + field.width * field.count
        bits[:, offset:end] = np.unpackbits(
            as_bytes, axis=-1, count=field.width, bitorder="little"
        ).reshape(words, end - offset)
        offset = end
    return np.packbits(bits, axis=1, bitorder="little")


def unpack(layout: Layout, words: Words) -> list[Int64]:
    """Field values of the words: int64 (words, count) for each field.

    Raises
    ------
    ValueError
        If the words are not as long as the layout says.
    """
    if words.ndim != 2 or words.shape[1] != word_bytes(layout):
        raise ValueError(f"words must have shape (n, {word_bytes(layout)}), got {words.shape}")
    # Every byte begins an unaligned 64-bit window, which holds any field of up to 56 bits.
    padded = np.zeros((words.shape[0], words.shape[1] + 8), np.uint8)
    padded[:, : words.shape[1]] = words
    windows = np.ndarray(
        (words.shape[0], words.shape[1]), "<u8", buffer=padded, strides=(padded.shape[1], 1)
    )
    result = []
    offset = 0
    for field in layout:
        positions = offset + field.width * np.arange(field.count)
        offset += field.width * field.count
        # Left-align the field, then shift it down with or without its sign.
        value = windows[:, positions >> 3]
        value <<= (64 - field.width - (positions & 7)).astype(np.uint64)
        if field.signed:
            result.append(value.view(np.int64) >> np.int64(64 - field.width))
        else:
            result.append((value >> np.uint64(64 - field.width)).astype(np.int64))
    return result


def slices_fields(cfg: Config) -> tuple[Field, ...]:
    """Fields of a slices word: metadata lane by lane, codes lane by lane, count, last, exponent."""
    lanes = cfg.array.lanes
    metadata = Field(cfg.numeric.channel_bits + 1 + cfg.numeric.shift_bits, lanes)
    codes = Field(SLICE_BITS, lanes * cfg.array.rows)
    return metadata, codes, Field(lanes.bit_length()), Field(1), Field(EXPONENT_BITS, signed=True)


def weights_fields(cfg: Config) -> tuple[Field, ...]:
    """Fields of a weights word: one channel's weights by column, last."""
    return Field(cfg.numeric.weight_bits, cfg.array.cols, signed=True), Field(1)


def command_fields() -> tuple[Field, ...]:
    """Fields of a command word: release the slices, release the weights."""
    return Field(1), Field(1)


def output_fields(cfg: Config) -> tuple[Field, ...]:
    """Fields of an output word: one column's sums by row, exponent, last."""
    sums = Field(cfg.numeric.acc_width, cfg.array.rows, signed=True)
    return sums, Field(EXPONENT_BITS, signed=True), Field(1)


def pack_slices(tile: EncodedTile, cfg: Config) -> Words:
    """The words that load an encoded tile; an empty tile is one word of count 0."""
    lanes, bits = cfg.array.lanes, cfg.numeric.channel_bits
    words = max(1, -(-tile.slices // lanes))
    metadata = np.zeros(words * lanes, np.int64)
    metadata[: tile.slices] = tile.channel
    metadata[: tile.slices] |= tile.signed.astype(np.int64) << bits
    metadata[: tile.slices] |= tile.shift.astype(np.int64) << (bits + 1)
    codes = np.zeros((words * lanes, cfg.array.rows), np.uint8)
    codes[: tile.slices] = tile.codes
    count = np.full(words, lanes)
    count[-1] = tile.slices - (words - 1) * lanes
    last = np.arange(words) == words - 1
    exponent = np.where(last, tile.last_exponent, 0)
    fields = (metadata.reshape(words, lanes), codes.reshape(words, -1), count, last, exponent)
    return pack(slices_fields(cfg), fields)


def pack_weights(weights: npt.NDArray[np.int8], cfg: Config) -> Words:
    """The words that load a weight tile, int8 (out, channels); missing columns become zeros."""
    out, channels = weights.shape
    padded = np.zeros((channels, cfg.array.cols), np.int8)
    padded[:, :out] = weights.T
    return pack(weights_fields(cfg), (padded, np.arange(channels) == channels - 1))


def pack_commands(
    release_slices: npt.NDArray[np.bool_], release_weights: npt.NDArray[np.bool_]
) -> Words:
    """One command word for each tile product."""
    return pack(command_fields(), (release_slices, release_weights))


def pack_output(sums: Int64, exponent: Int64, last: Int64, cfg: Config) -> Words:
    """Output words: sums (words, rows), exponent and last (words,)."""
    return pack(output_fields(cfg), (sums, exponent, last))


def unpack_output(words: Words, cfg: Config) -> tuple[Int64, Int64, Int64]:
    """Sums (words, rows), exponent (words,) and last (words,) of output words."""
    sums, exponent, last = unpack(output_fields(cfg), words)
    return sums, exponent[:, 0], last[:, 0]
