"""Stimuli of the QPU and what the golden model makes of them, as stream words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from dstar.gen.config import EXPONENT_BITS, MAX_SLICES, SLICE_BITS, Config
from dstar.golden.bins import MAX_ENTRIES, BinTable
from dstar.golden.encode import EncodedTile, encode_layer
from dstar.golden.quantize import Quantized, difference, quantize, reconstruct, tile_count
from dstar.verif.packing import Field, Int64, Layout, Words, pack, pack_slices, unpack

Float16 = npt.NDArray[np.float16]
Bits = npt.NDArray[np.uint16]

#: Magnitude pattern above every number: the threshold of rows that fill up a table.
LARGEST = 0x7FFF
#: The one NaN that comparisons use.
CANONICAL_NAN = 0x7E00


def vector_fields(cfg: Config) -> Layout:
    """Fields of a token vector: one pattern a token."""
    return (Field(16, cfg.array.rows),)


def command_fields(cfg: Config) -> Layout:
    """Fields of a QPU command, see :func:`dstar.rtl.qpu.streams.qpu_command_layout`."""
    return (
        Field(1),
        Field((MAX_ENTRIES - 1).bit_length()),
        Field(15),
        Field(MAX_SLICES.bit_length()),
        Field(EXPONENT_BITS, signed=True),
        Field(1),
        Field(1),
        Field(cfg.numeric.channel_bits),
    )


def header_fields(cfg: Config) -> Layout:
    """Fields of a header word: slices, channels, last exponent."""
    numeric = cfg.numeric
    return (
        Field(numeric.max_tile_slices.bit_length()),
        Field(numeric.k_tile.bit_length()),
        Field(EXPONENT_BITS, signed=True),
    )


def pack_vectors(values: Bits, cfg: Config) -> Words:
    """Token vectors: patterns (vectors, rows)."""
    return pack(vector_fields(cfg), (values,))


def unpack_vectors(words: Words, cfg: Config) -> Bits:
    """Patterns (vectors, rows) of token vectors."""
    return unpack(vector_fields(cfg), words)[0].astype(np.uint16)


def unpack_headers(words: Words, cfg: Config) -> Int64:
    """Slices, channels and last exponent of each header: (headers, 3)."""
    return np.concatenate(unpack(header_fields(cfg), words), axis=1)


def pack_table(table: BinTable, cfg: Config) -> Words:
    """Commands that program a bin table; unused rows repeat the last one."""
    used = len(table.entries)
    row = np.minimum(np.arange(MAX_ENTRIES), used - 1)
    threshold = np.where(np.arange(MAX_ENTRIES) < used, table.threshold_bits[row], LARGEST)
    one, zero = np.ones(MAX_ENTRIES, np.int64), np.zeros(MAX_ENTRIES, np.int64)
    slices = table.precisions[row] // SLICE_BITS
    fields = (one, np.arange(MAX_ENTRIES), threshold, slices, table.exponents[row])
    return pack(command_fields(cfg), (*fields, zero, zero, zero))


def pack_tile_commands(channels: Int64, *, keyframe: bool, previous: bool, cfg: Config) -> Words:
    """One command for each tile of the given numbers of channels."""
    zero = np.zeros(len(channels), np.int64)
    flags = (zero + keyframe, zero + previous)
    return pack(command_fields(cfg), (zero, zero, zero, zero, zero, *flags, channels - 1))


@dataclass(frozen=True, kw_only=True, eq=False)
class Activation:
    """A tensor to quantize: (tokens, channels), cut into tiles of ``rows`` by ``k_tile``.

    ``reference``: what the difference is taken to; None at a keyframe.  ``previous``: the next
    reference is ``x`` itself.
    """

    x: Float16
    reference: Float16 | None
    table: BinTable
    cfg: Config
    previous: bool = False

    @cached_property
    def quantized(self) -> Quantized:
        """Golden codes and parameters."""
        with np.errstate(over="ignore"):
            d = difference(self.x, self.reference)
        return quantize(d, self.table, self.cfg.array.rows)

    @cached_property
    def next_reference(self) -> Float16:
        """Golden reference of the next step."""
        return self._reconstructed[0]

    @property
    def saturated(self) -> bool:
        """Whether a reconstruction left binary16's range."""
        return self._reconstructed[1]

    @cached_property
    def _reconstructed(self) -> tuple[Float16, bool]:
        if self.previous:
            return self.x, False
        start = np.zeros_like(self.x) if self.reference is None else self.reference
        with np.errstate(all="ignore"):
            total, saturated = reconstruct(start, self.quantized)
        return total.astype(np.float16), saturated

    @cached_property
    def tiles(self) -> list[EncodedTile]:
        """Golden tiles: token tiles, in each the k tiles."""
        q = self.quantized
        rows = encode_layer(
            q.q,
            q.precision,
            q.exponent,
            rows=self.cfg.array.rows,
            k_tile=self.cfg.numeric.k_tile,
        )
        return [tile for row in rows for tile in row]

    def vectors(self, values: Float16) -> Bits:
        """Patterns of a tensor in the order of the streams: (vectors, rows), padded with 0."""
        tokens, channels = values.shape
        rows = self.cfg.array.rows
        tiles = tile_count(tokens, rows)
        padded = np.zeros((tiles * rows, channels), np.float16)
        padded[:tokens] = values
        return (
            padded.view(np.uint16).reshape(tiles, rows, channels).swapaxes(1, 2).reshape(-1, rows)
        )

    @property
    def commands(self) -> Words:
        """One command a tile."""
        channels = np.array([tile.channels for tile in self.tiles], np.int64)
        return pack_tile_commands(
            channels, keyframe=self.reference is None, previous=self.previous, cfg=self.cfg
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class QPUStimulus:
    """Words of the QPU's input streams, and the golden words of its outputs."""

    inputs: dict[str, Words]
    outputs: dict[str, Words]
    tiles: list[EncodedTile]
    nonfinite: bool
    saturated: bool


def canonical(patterns: Bits) -> Bits:
    """Patterns with every NaN as one: payloads are not compared."""
    return np.where((patterns & LARGEST) > 0x7C00, np.uint16(CANONICAL_NAN), patterns)


def stimulus(activations: Iterable[Activation], cfg: Config) -> QPUStimulus:
    """Quantize the activations one after the other; the table is programmed where it changes."""
    parts: dict[str, list[Words]] = {
        name: [] for name in ("command", "x", "reference", "slices", "header", "next_reference")
    }
    tiles: list[EncodedTile] = []
    table: BinTable | None = None
    nonfinite = saturated = False
    for a in activations:
        if a.table is not table:
            parts["command"].append(pack_table(a.table, cfg))
            table = a.table
        parts["command"].append(a.commands)
        parts["x"].append(pack_vectors(a.vectors(a.x), cfg))
        if a.reference is not None:
            parts["reference"].append(pack_vectors(a.vectors(a.reference), cfg))
        after = canonical(a.vectors(a.next_reference))
        parts["next_reference"].append(pack_vectors(after, cfg))
        for tile in a.tiles:
            parts["slices"].append(pack_slices(tile, cfg))
        counts = [
            np.array([getattr(tile, name) for tile in a.tiles], np.int64)
            for name in ("slices", "channels", "last_exponent")
        ]
        parts["header"].append(pack(header_fields(cfg), counts))
        tiles += a.tiles
        nonfinite |= a.quantized.nonfinite
        saturated |= a.saturated
    empty = pack_vectors(np.zeros((0, cfg.array.rows), np.uint16), cfg)
    words = {name: np.concatenate(part or [empty]) for name, part in parts.items()}
    return QPUStimulus(
        inputs={name: words[name] for name in ("command", "x", "reference")},
        outputs={name: words[name] for name in ("slices", "header", "next_reference")},
        tiles=tiles,
        nonfinite=nonfinite,
        saturated=saturated,
    )


def first_difference(got: Words, want: Words) -> int | None:
    """Index of the first word that differs, or None; a missing or surplus word differs."""
    common = min(len(got), len(want))
    wrong = np.flatnonzero((got[:common] != want[:common]).any(axis=1))
    if len(wrong):
        return int(wrong[0])
    return None if len(got) == len(want) else common
