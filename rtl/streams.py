"""Payload layouts of the MPU's streams: what a bench or another unit must produce, bit by bit.

Fields are listed from the least significant bit.
"""

from __future__ import annotations

from amaranth.hdl import signed, unsigned
from amaranth.lib import data

from dstar.gen.config import EXPONENT_BITS, SLICE_BITS, Config


def metadata_layout(cfg: Config) -> data.StructLayout:
    """Metadata of one slice.

    ``channel``: index within the k tile.  ``signed``: 1 for a sub-channel's top slice.
    ``shift``: exponent less that of the slice before; 0 for a tile's first.
    """
    return data.StructLayout(
        {
            "channel": unsigned(cfg.numeric.channel_bits),
            "signed": unsigned(1),
            "shift": unsigned(cfg.numeric.shift_bits),
        }
    )


def codes_layout(cfg: Config) -> data.ArrayLayout:
    """One slice: a 2-bit code for each token."""
    return data.ArrayLayout(SLICE_BITS, cfg.array.rows)


def slices_layout(cfg: Config) -> data.StructLayout:
    """``lanes`` consecutive slices of an encoded tile.

    ``count``: how many of them are valid (``lanes`` but in the last word; 0 in the only word of
    an empty tile).  ``last``: ends the tile.  ``exponent``: of the tile's last slice, valid with
    ``last``.
    """
    lanes = cfg.array.lanes
    return data.StructLayout(
        {
            "metadata": data.ArrayLayout(metadata_layout(cfg), lanes),
            "codes": data.ArrayLayout(codes_layout(cfg), lanes),
            "count": unsigned(lanes.bit_length()),
            "last": unsigned(1),
            "exponent": signed(EXPONENT_BITS),
        }
    )


def weights_layout(cfg: Config, *, channels: int = 1) -> data.StructLayout:
    """The weights of one channel for all output channels; ``last`` ends the tile.

    ``channels``: of so many consecutive channels, one after the other; those beyond a tile's last
    mean nothing.
    """
    row = data.ArrayLayout(signed(cfg.numeric.weight_bits), cfg.array.cols)
    rows = row if channels == 1 else data.ArrayLayout(row, channels)
    return data.StructLayout({"weights": rows, "last": unsigned(1)})


def command_layout() -> data.StructLayout:
    """One tile product.  The flags say that its operands are not used again."""
    return data.StructLayout({"release_slices": unsigned(1), "release_weights": unsigned(1)})


def sums_layout(cfg: Config) -> data.StructLayout:
    """One output channel of a tile product: ``value = sums * 2**-exponent``."""
    return data.StructLayout(
        {
            "sums": data.ArrayLayout(signed(cfg.numeric.acc_width), cfg.array.rows),
            "exponent": signed(EXPONENT_BITS),
            "last": unsigned(1),
        }
    )
