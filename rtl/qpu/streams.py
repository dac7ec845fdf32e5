"""Payload layouts of the QPU's streams; fields from the least significant bit."""

from __future__ import annotations

from amaranth.hdl import signed, unsigned
from amaranth.lib import data

from dstar.gen.config import EXPONENT_BITS, MAX_SLICES, Config
from dstar.rtl.streams import metadata_layout

#: Entries of the bin table.
TABLE_ENTRIES = 16
#: Width of an entry's index.
INDEX_BITS = (TABLE_ENTRIES - 1).bit_length()
#: Width of a binary16 number, and of its magnitude.
HALF_BITS, MAGNITUDE_BITS = 16, 15
#: Width of a number of slices, 0 to 4.
SLICES_BITS = MAX_SLICES.bit_length()


def vector_layout(cfg: Config) -> data.ArrayLayout:
    """One token vector: the binary16 patterns of one channel for all tokens of a tile."""
    return data.ArrayLayout(HALF_BITS, cfg.array.rows)


def bin_layout() -> data.StructLayout:
    """One row of the bin table.

    ``threshold``: largest magnitude it serves, binary16 without sign.  ``slices``: half its
    precision.  ``exponent``: its scale exponent f.
    """
    return data.StructLayout(
        {
            "threshold": unsigned(MAGNITUDE_BITS),
            "slices": unsigned(SLICES_BITS),
            "exponent": signed(EXPONENT_BITS),
        }
    )


def qpu_command_layout(cfg: Config) -> data.StructLayout:
    """One command: ``program`` writes ``row`` into the bin table, else a tile is quantized.

    ``keyframe``: there is no reference; the difference is the activation itself.  ``previous``:
    the next reference is the activation, not its reconstruction.  ``last_channel``: channels of
    the tile less one, below ``k_tile``.
    """
    return data.StructLayout(
        {
            "program": unsigned(1),
            "index": unsigned(INDEX_BITS),
            "row": bin_layout(),
            "keyframe": unsigned(1),
            "previous": unsigned(1),
            "last_channel": unsigned(cfg.numeric.channel_bits),
        }
    )


def slices_bits(cfg: Config) -> int:
    """Width of a number of slices of a tile."""
    return cfg.numeric.max_tile_slices.bit_length()


def channels_bits(cfg: Config) -> int:
    """Width of a number of channels of a tile."""
    return cfg.numeric.k_tile.bit_length()


def header_layout(cfg: Config) -> data.StructLayout:
    """What a tile's words do not say before their last: slices, channels, last exponent."""
    return data.StructLayout(
        {
            "slices": unsigned(slices_bits(cfg)),
            "channels": unsigned(channels_bits(cfg)),
            "exponent": signed(EXPONENT_BITS),
        }
    )


def entry_layout(cfg: Config) -> data.StructLayout:
    """A slice in sorted order: its metadata for the MPU and its index within the sub-channel."""
    index = unsigned((MAX_SLICES - 1).bit_length())
    return data.StructLayout({"metadata": metadata_layout(cfg), "index": index})


def order_layout(cfg: Config) -> data.StructLayout:
    """``lanes`` consecutive slices of a sorted tile; ``count`` are valid, the others are zero.

    ``last``: ends the tile; with it ``header`` is valid, before it is zero.
    """
    return data.StructLayout(
        {
            "entries": data.ArrayLayout(entry_layout(cfg), cfg.array.lanes),
            "count": unsigned(cfg.array.lanes.bit_length()),
            "last": unsigned(1),
            "header": header_layout(cfg),
        }
    )


def subchannel_layout(cfg: Config) -> data.StructLayout:
    """A sub-channel's parameters: its channel, number of slices, scale exponent.

    ``finest``: the largest scale exponent of the tile's bin table.  ``last``: ends the tile.
    """
    return data.StructLayout(
        {
            "channel": unsigned(cfg.numeric.channel_bits),
            "slices": unsigned(SLICES_BITS),
            "exponent": signed(EXPONENT_BITS),
            "finest": signed(EXPONENT_BITS),
            "last": unsigned(1),
        }
    )
