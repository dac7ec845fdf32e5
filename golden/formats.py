"""The packed format of an encoded tile in memory: encoder, decoder and size bound.

A tile is a header of 8 bytes and then the words that the MPU loads, each padded with zero bits to
whole bytes; ``docs/formats.md`` gives every bit.  Everything is little-endian.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

from dstar.gen.config import EXPONENT_BITS, SLICE_BITS, Config

from .encode import EncodedTile

#: Header: slices, channels, exponent of the last slice, slices a word, zero.
HEADER = struct.Struct("<HHbBH")


class FormatError(ValueError):
    """A packed tile that breaks the format; the message names the field, the rule and the value."""


def slice_bits(cfg: Config) -> tuple[int, int]:
    """Bits of one slice in a word: its metadata, its codes."""
    numeric = cfg.numeric
    return numeric.channel_bits + 1 + numeric.shift_bits, SLICE_BITS * cfg.array.rows


def word_bits(cfg: Config) -> int:
    """Bits of a word: ``lanes`` slices, their count, the last flag, an exponent."""
    lanes = cfg.array.lanes
    return lanes * sum(slice_bits(cfg)) + lanes.bit_length() + 1 + EXPONENT_BITS


def word_bytes(cfg: Config) -> int:
    """Bytes of a word."""
    return -(-word_bits(cfg) // 8)


def packed_bytes(slices: int, cfg: Config) -> int:
    """Bytes of a packed tile of so many slices; an empty tile has one word."""
    return HEADER.size + max(1, -(-slices // cfg.array.lanes)) * word_bytes(cfg)


def size_bound(cfg: Config) -> int:
    """Most bytes of a packed tile: four slices in every channel."""
    return packed_bytes(cfg.numeric.max_tile_slices, cfg)


def _put(bits: npt.NDArray[np.uint8], offset: int, width: int, values: npt.ArrayLike) -> None:
    """Write values (words,) as ``width`` bits from ``offset`` on into bits (words, bits)."""
    numbers = np.asarray(values, np.int64)
    bits[:, offset : offset + width] = numbers[:, None] >> np.arange(width) & 1


def _get(bits: npt.NDArray[np.uint8], offset: int, width: int) -> npt.NDArray[np.int64]:
    """Read ``width`` bits from ``offset`` on: (words,)."""
    field = bits[:, offset : offset + width].astype(np.int64)
    return (field << np.arange(width)).sum(axis=1)


def pack_tile(tile: EncodedTile, cfg: Config) -> bytes:
    """Pack a tile.

    Raises
    ------
    ValueError
        If the tile does not fit the configuration (:meth:`EncodedTile.check`).
    """
    tile.check(cfg)
    lanes, numeric = cfg.array.lanes, cfg.numeric
    metadata, codes = slice_bits(cfg)
    words = max(1, -(-tile.slices // lanes))
    bits = np.zeros((words, 8 * word_bytes(cfg)), np.uint8)
    for lane in range(lanes):
        own = slice(lane, None, lanes)
        used = len(tile.channel[own])
        part, at = bits[:used], lane * metadata
        _put(part, at, numeric.channel_bits, tile.channel[own])
        _put(part, at + numeric.channel_bits, 1, tile.signed[own])
        _put(part, at + numeric.channel_bits + 1, numeric.shift_bits, tile.shift[own])
        start = lanes * metadata + lane * codes
        for row in range(tile.rows):
            _put(part, start + SLICE_BITS * row, SLICE_BITS, tile.codes[own, row])
    end = lanes * (metadata + codes)
    count = np.full(words, lanes)
    count[-1] = tile.slices - (words - 1) * lanes
    _put(bits, end, lanes.bit_length(), count)
    bits[-1, end + lanes.bit_length()] = 1
    _put(bits[-1:], end + lanes.bit_length() + 1, EXPONENT_BITS, [tile.last_exponent])
    header = HEADER.pack(tile.slices, tile.channels, tile.last_exponent, lanes, 0)
    return header + np.packbits(bits, axis=1, bitorder="little").tobytes()


def _need(ok: bool, name: str, rule: str, value: object) -> None:
    if not ok:
        raise FormatError(f"packed tile: {name} must be {rule}, got {value}")


def unpack_tile(packed: bytes, cfg: Config) -> EncodedTile:
    """Unpack a tile; the inverse of :func:`pack_tile`.

    Raises
    ------
    FormatError
        If a field breaks the format or contradicts another.
    """
    lanes, numeric = cfg.array.lanes, cfg.numeric
    _need(len(packed) >= HEADER.size, "length", f"at least {HEADER.size} bytes", len(packed))
    slices, channels, last_exponent, header_lanes, zero = HEADER.unpack_from(packed)
    _need(header_lanes == lanes, "slices a word", str(lanes), header_lanes)
    _need(zero == 0, "reserved bytes", "0", zero)
    _need(1 <= channels <= numeric.k_tile, "channels", f"1 to {numeric.k_tile}", channels)
    _need(slices <= 4 * channels, "slices", f"at most {4 * channels}", slices)
    size = packed_bytes(slices, cfg)
    _need(len(packed) == size, "length", f"{size} bytes", len(packed))
    raw = np.frombuffer(packed, np.uint8, offset=HEADER.size).reshape(-1, word_bytes(cfg))
    bits = np.unpackbits(raw, axis=1, bitorder="little")

    metadata, codes = slice_bits(cfg)
    end = lanes * (metadata + codes)
    words = len(bits)
    count = _get(bits, end, lanes.bit_length())
    wanted = np.full(words, lanes)
    wanted[-1] = slices - (words - 1) * lanes
    _need(bool((count == wanted).all()), "counts", str(wanted.tolist()), count.tolist())
    last = _get(bits, end + lanes.bit_length(), 1)
    _need(bool((last == (np.arange(words) == words - 1)).all()), "last flags",
          "set in the last word alone", last.tolist())  # fmt: skip
    low = end + lanes.bit_length() + 1
    exponent = int(_get(bits[-1:], low, EXPONENT_BITS)[0])
    exponent -= (exponent >> (EXPONENT_BITS - 1)) << EXPONENT_BITS
    _need(exponent == last_exponent, "exponent of the last word", str(last_exponent), exponent)

    places = np.arange(slices)
    lane, word = places % lanes, places // lanes
    fields = np.zeros((3, slices), np.int64)
    slice_codes = np.zeros((slices, cfg.array.rows), np.uint8)
    for i in range(lanes):
        own = lane == i
        part, at = bits[word[own]], i * metadata
        fields[0, own] = _get(part, at, numeric.channel_bits)
        fields[1, own] = _get(part, at + numeric.channel_bits, 1)
        fields[2, own] = _get(part, at + numeric.channel_bits + 1, numeric.shift_bits)
        start = lanes * metadata + i * codes
        for row in range(cfg.array.rows):
            slice_codes[own, row] = _get(part, start + SLICE_BITS * row, SLICE_BITS)
    channel, signed, shift = fields
    steps = np.cumsum(shift)
    _need(slices == 0 or int(shift[0]) == 0, "first shift", "0", shift[:1].tolist())
    scale = last_exponent - (steps[-1] - steps) if slices else steps
    tile = EncodedTile(
        rows=cfg.array.rows,
        channels=channels,
        channel=channel.astype(np.uint16),
        signed=signed.astype(bool),
        exponent=scale.astype(np.int8),
        codes=slice_codes,
    )
    try:
        tile.check(cfg)
    except ValueError as error:
        raise FormatError(f"packed tile: {error}") from None
    again = pack_tile(tile, cfg)
    _need(again == packed, "unused bits", "0", "others")
    return tile
