"""What a bucket of the counting sort holds, and what is known of a sorted tile."""

from __future__ import annotations

from dataclasses import dataclass

from amaranth.hdl import signed, unsigned
from amaranth.lib import data

from dstar.gen.config import EXPONENT_BITS, MAX_SLICES, Config
from dstar.rtl.qpu.streams import channels_bits, slices_bits
from dstar.rtl.store import Store

#: Banks of each bucket, one a lane.
Banks = list[list[Store]]


@dataclass(frozen=True)
class Buckets:
    """Numbers and layouts of the buckets of a configuration."""

    cfg: Config

    @property
    def number(self) -> int:
        """Exponents that a tile's slices can have."""
        return self.cfg.numeric.max_shift + 1

    @property
    def lane_bits(self) -> int:
        """Bits of a rank that say in which bank of its bucket it lies."""
        return self.cfg.array.lanes.bit_length() - 1

    @property
    def row_bits(self) -> int:
        """Address bits of a bank within a tile."""
        return max(1, (-(-self.cfg.numeric.k_tile // self.cfg.array.lanes) - 1).bit_length())

    @property
    def entry(self) -> data.StructLayout:
        """A slice in a bucket; ``top``: it is the signed one."""
        return data.StructLayout(
            {
                "channel": unsigned(self.cfg.numeric.channel_bits),
                "index": unsigned((MAX_SLICES - 1).bit_length()),
                "top": unsigned(1),
            }
        )

    @property
    def summary(self) -> data.StructLayout:
        """A complete tile: first rank of each bucket, slices, channels, finest exponent."""
        return data.StructLayout(
            {
                "bases": data.ArrayLayout(slices_bits(self.cfg), self.number),
                "slices": unsigned(slices_bits(self.cfg)),
                "channels": unsigned(channels_bits(self.cfg)),
                "finest": signed(EXPONENT_BITS),
            }
        )
