"""The memory bus and its clients: sizes, and what a client tells of its state."""

from __future__ import annotations

from dataclasses import dataclass

from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from dstar.gen.config import Config
from dstar.rtl.mpc.axi import RESPONSE_BITS, read_signature
from dstar.rtl.mpc.buffer import write_layout
from dstar.rtl.mpc.bursts import BurstSplitter, transfer_layout


@dataclass(frozen=True, kw_only=True)
class BusShape:
    """The memory bus and what travels on it.

    ``address_bits``: of a byte address.  ``data_bits``: of a beat, a power of two from 8 to 1024.
    ``id_bits``: of a read burst's ID.  ``max_beats``: longest burst, a power of two up to 256.
    ``outstanding``: bursts in flight in each direction and for each client, at least 1.
    ``word_bits``: of a buffer word, a multiple of ``data_bits``.  ``buffer_bits``: of its address.
    """

    address_bits: int = 64
    data_bits: int = 512
    id_bits: int = 1
    max_beats: int = 16
    outstanding: int = 8
    word_bits: int = 1024
    buffer_bits: int = 10

    def __post_init__(self) -> None:
        if self.outstanding < 1:
            raise ValueError(f"outstanding must be at least 1, got {self.outstanding}")
        if self.word_bits < 1 or self.word_bits % self.data_bits:
            rule = f"a multiple of data_bits ({self.data_bits})"
            raise ValueError(f"word_bits must be {rule}, got {self.word_bits}")

    @classmethod
    def of(cls, cfg: Config) -> BusShape:
        """The bus of a configured core: its memory port and its buffer's words."""
        core = cfg.core
        return cls(
            address_bits=core.address_bits,
            data_bits=core.axi_data_bits,
            outstanding=core.outstanding,
            word_bits=16 * cfg.array.rows,
            buffer_bits=(core.words - 1).bit_length(),
        )

    @property
    def beat_bytes(self) -> int:
        """Bytes of a beat, and alignment of every address."""
        return self.data_bits // 8

    @property
    def word_beats(self) -> int:
        """Beats of a buffer word."""
        return self.word_bits // self.data_bits

    @property
    def transfer(self) -> data.StructLayout:
        """Layout of a DMA's commands."""
        return transfer_layout(address_bits=self.address_bits, buffer_bits=self.buffer_bits)

    @property
    def read(self) -> wiring.Signature:
        """A read client's AXI channels."""
        return read_signature(
            address_bits=self.address_bits, data_bits=self.data_bits, id_bits=self.id_bits
        )

    @property
    def words(self) -> data.StructLayout:
        """Layout of a buffer write."""
        return write_layout(width=self.word_bits, address_bits=self.buffer_bits)

    def splitter(self) -> BurstSplitter:
        """Burst splitter for this bus."""
        return BurstSplitter(
            address_bits=self.address_bits,
            buffer_bits=self.buffer_bits,
            data_bits=self.data_bits,
            word_beats=self.word_beats,
            max_beats=self.max_beats,
        )


def status_signature(address_bits: int) -> wiring.Signature:
    """State of a bus client, as the client drives it.

    ``stop``: no new bursts; those on the way end, their data go nowhere.  Once raised, it stays
    until reset.  ``idle``: no burst is on the way, so the client may be reset.
    ``error``: a response was an error, until reset; the client then stops by itself.
    ``error_address``, ``error_response``: byte address and AXI code (2: SLVERR, 3: DECERR) of the
    first one.
    """
    return wiring.Signature(
        {
            "stop": In(1),
            "idle": Out(1),
            "error": Out(1),
            "error_address": Out(address_bits),
            "error_response": Out(RESPONSE_BITS),
        }
    )
