"""Encode: quantized sub-channels to 2-bit slices in ascending order of exponent, and back.

A p-bit two's complement q is cut into p/2 slices; slice n is bits 2n+1..2n at exponent
``f - 2n``.  The top slice is signed (-2..1), the others are not (paper, section 3.1, steps 2 to
4: sub-channel decomposition, reordering, encoding).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from dstar.gen.config import SLICE_BITS, Config

from .quantize import tile_count


@dataclass(frozen=True, kw_only=True, eq=False)
class EncodedTile:
    """The slices of one tile in issue order, so a slice's address is its position.

    ``rows``: tokens, R.  ``channels``: channels of the tile, skipped ones included.
    ``channel``: uint16 (S,), the slice's channel.  ``signed``: bool (S,), true for a channel's
    top slice.  ``exponent``: int8 (S,), ascending; ties ascend in (channel, slice index).
    ``codes``: uint8 (S, R), the slice of every token as a 2-bit code 0..3.

    Raises
    ------
    ValueError
        If shapes differ; the message gives them.
    """

    rows: int
    channels: int
    channel: npt.NDArray[np.uint16]
    signed: npt.NDArray[np.bool_]
    exponent: npt.NDArray[np.int8]
    codes: npt.NDArray[np.uint8]

    def __post_init__(self) -> None:
        count = len(self.channel)
        shapes = (self.signed.shape, self.exponent.shape, self.codes.shape)
        if shapes != ((count,), (count,), (count, self.rows)):
            raise ValueError(
                f"signed, exponent and codes of {count} slices and {self.rows} rows must have "
                f"shapes {(count,)}, {(count,)} and {(count, self.rows)}, got {shapes}"
            )

    @property
    def slices(self) -> int:
        """Slices of the tile, S."""
        return len(self.channel)

    @property
    def shift(self) -> npt.NDArray[np.uint8]:
        """Doublings of the accumulator before each slice (S,): exponent minus the one before."""
        return np.diff(self.exponent, prepend=self.exponent[:1]).astype(np.uint8)

    @property
    def last_exponent(self) -> int:
        """Exponent of the last slice, hence of the accumulated sums; 0 for an empty tile."""
        return int(self.exponent[-1]) if self.slices else 0

    @property
    def bits(self) -> float:
        """Mean precision of the tile's channels, in bits; a skipped channel counts as 0."""
        return SLICE_BITS * self.slices / self.channels if self.channels else 0.0

    @property
    def values(self) -> npt.NDArray[np.int8]:
        """Slice values (S, R): -2..1 where signed, else 0..3."""
        codes = self.codes.astype(np.int8)
        return codes - 4 * (self.signed[:, None] & (codes > 1)).astype(np.int8)

    def check(self, cfg: Config) -> None:
        """Refuse a tile that the configured hardware cannot run.

        Raises
        ------
        ValueError
            If rows, channels, order, codes or shifts break a rule; the message states it.
        """
        limit = cfg.numeric
        order = self.exponent.astype(np.int64) * 2**16 + self.channel
        rules: list[tuple[bool, str, object]] = [
            (self.rows == cfg.array.rows, f"rows must be {cfg.array.rows}", self.rows),
            (
                self.channels <= limit.k_tile,
                f"channels must be at most {limit.k_tile}",
                self.channels,
            ),
            (
                not self.slices or int(self.channel.max()) < self.channels,
                f"channel must be below {self.channels}",
                self.channel.max(initial=0),
            ),
            (
                bool((np.diff(order) > 0).all()),
                "slices must ascend in (exponent, channel)",
                self.exponent,
            ),
            (
                bool((self.codes <= 3).all()),
                "codes must be 0 to 3",
                self.codes.max(initial=0),
            ),
            (
                bool((self.shift <= limit.max_shift).all()),
                f"shift must be at most {limit.max_shift}",
                self.shift.max(initial=0),
            ),
        ]
        for ok, rule, value in rules:
            if not ok:
                raise ValueError(f"encoded tile: {rule}, got {value}")


def encode(
    q: npt.NDArray[np.int8],
    precision: npt.NDArray[np.uint8],
    exponent: npt.NDArray[np.int8],
    *,
    rows: int,
) -> EncodedTile:
    """Encode one tile.

    Parameters
    ----------
    q:
        int8 (tokens, channels), at most ``rows`` tokens; missing ones become zeros.
    precision, exponent:
        Bits (0, 2, 4, 6, 8) and scale exponent f of each channel.
    rows:
        Tokens of the encoded tile, R.
    """
    return encode_layer(q, precision[None], exponent[None], rows=rows, k_tile=q.shape[1])[0][0]


def encode_layer(
    q: npt.NDArray[np.int8],
    precision: npt.NDArray[np.uint8],
    exponent: npt.NDArray[np.int8],
    *,
    rows: int,
    k_tile: int,
) -> list[list[EncodedTile]]:
    """Encode a layer's activation, cut into ``rows`` tokens by ``k_tile`` consecutive channels.

    Parameters
    ----------
    q:
        int8 (tokens, channels).
    precision, exponent:
        (tiles, channels), for tiles of ``rows`` tokens; exponents of one tile may differ by any
        amount that int8 holds.

    Returns
    -------
    Tiles by [token tile][k tile]; the last k tile may have fewer channels.
    """
    tokens, channels = q.shape
    tiles, k_tiles = tile_count(tokens, rows), tile_count(channels, k_tile)
    padded = np.zeros((tiles, channels, rows), np.uint8)
    for t in range(tiles):
        part = q[t * rows : (t + 1) * rows].view(np.uint8)
        padded[t, :, : part.shape[0]] = part.T
    # One row per slice of the layer, in (tile, channel, slice index) order.
    counts = precision.astype(np.intp) // SLICE_BITS
    tile, channel = np.nonzero(counts)
    count = counts[tile, channel]
    ends = np.cumsum(count)
    tile, channel = np.repeat(tile, count), np.repeat(channel, count)
    index = np.arange(len(tile)) - np.repeat(ends - count, count)
    scale = exponent[tile, channel] - SLICE_BITS * index
    # A stable sort by (tile, k tile, exponent) leaves ties in (channel, slice index) order.
    place = tile * k_tiles + channel // k_tile
    order = np.argsort(place * 2**9 + scale + 2**8, kind="stable")
    tile, channel, index = tile[order], channel[order], index[order]
    codes = padded[tile, channel]
    codes >>= (SLICE_BITS * index).astype(np.uint8)[:, None]
    codes &= 3
    signed = index == counts[tile, channel] - 1
    scale = scale[order].astype(np.int8)
    within = (channel % k_tile).astype(np.uint16)
    bounds = np.searchsorted(place[order], np.arange(tiles * k_tiles + 1))
    spans = [slice(a, b) for a, b in pairwise(bounds)]
    return [
        [
            EncodedTile(
                rows=rows,
                channels=min(k_tile, channels - k * k_tile),
                channel=within[span],
                signed=signed[span],
                exponent=scale[span],
                codes=codes[span],
            )
            for k, span in enumerate(spans[t * k_tiles : (t + 1) * k_tiles])
        ]
        for t in range(tiles)
    ]


def decode(
    tile: EncodedTile,
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.uint8], npt.NDArray[np.int8]]:
    """Reassemble a tile: q (rows, channels), precision and exponent (channels,).

    The inverse of :func:`encode`; a skipped channel has exponent 0.
    """
    counts = np.bincount(tile.channel, minlength=tile.channels)
    top = np.zeros(tile.channels, np.int64)
    top[tile.channel[tile.signed]] = tile.exponent[tile.signed]
    exponent = np.where(counts, top + SLICE_BITS * (counts - 1), 0)
    index = (exponent[tile.channel] - tile.exponent) // SLICE_BITS
    q = np.zeros((tile.channels, tile.rows), np.int64)
    np.add.at(q, tile.channel, tile.values.astype(np.int64) << (SLICE_BITS * index)[:, None])
    precision = (SLICE_BITS * counts).astype(np.uint8)
    return q.T.astype(np.int8), precision, exponent.astype(np.int8)
