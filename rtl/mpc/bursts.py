"""Cuts two-dimensional transfers into AXI bursts."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from dstar.rtl.mpc.axi import BOUNDARY, LENGTH_BITS

#: Width of a transfer's counts, and of its stride.
COUNT_BITS = 16
STRIDE_BITS = 32


def transfer_layout(*, address_bits: int, buffer_bits: int) -> data.StructLayout:
    """``rows`` rows of ``length`` consecutive words, in memory and in the buffer.

    ``address``: byte address of the first row, a multiple of the beat's bytes (lower bits are
    ignored).  ``stride``: bytes from a row to the next in memory, likewise.  ``buffer``: first
    word in the buffer.  ``step``: words from a row to the next there.  ``length``, ``rows``: at
    least 1.  Addresses wrap at the end of their range.
    """
    return data.StructLayout(
        {
            "address": unsigned(address_bits),
            "stride": unsigned(STRIDE_BITS),
            "buffer": unsigned(buffer_bits),
            "step": unsigned(buffer_bits),
            "length": unsigned(COUNT_BITS),
            "rows": unsigned(COUNT_BITS),
        }
    )


def burst_layout(*, address_bits: int) -> data.StructLayout:
    """A burst: byte address, beats less one, and whether it is its transfer's last."""
    return data.StructLayout(
        {
            "address": unsigned(address_bits),
            "length": unsigned(LENGTH_BITS),
            "last": unsigned(1),
        }
    )


class BurstSplitter(wiring.Component):
    """Bursts of a transfer, in address order of its rows.

    Parameters
    ----------
    address_bits: of a byte address.
    data_bits: of a beat, a power of two from 8 to 1024.
    word_beats: beats of a word.
    max_beats: longest burst, a power of two up to 256.

    Members
    -------
    transfer: stream of :func:`transfer_layout` (its place in the buffer is not used here).
    bursts: stream of :func:`burst_layout`.

    A burst ends at the row's end, at a 4 KB boundary, or after ``max_beats``.  Latency: one cycle.
    Throughput: a burst a cycle; one cycle between transfers.
    """

    def __init__(
        self,
        *,
        address_bits: int,
        buffer_bits: int,
        data_bits: int,
        word_beats: int,
        max_beats: int,
    ) -> None:
        if not 8 <= data_bits <= 1024 or data_bits & (data_bits - 1):
            raise ValueError(f"data_bits must be a power of two from 8 to 1024, got {data_bits}")
        if not 1 <= max_beats <= 256 or max_beats & (max_beats - 1):
            raise ValueError(f"max_beats must be a power of two up to 256, got {max_beats}")
        if word_beats < 1:
            raise ValueError(f"word_beats must be at least 1, got {word_beats}")
        self.data_bits = data_bits
        self.word_beats = word_beats
        self.max_beats = max_beats
        transfer = transfer_layout(address_bits=address_bits, buffer_bits=buffer_bits)
        super().__init__(
            {
                "transfer": In(stream.Signature(transfer)),
                "bursts": Out(stream.Signature(burst_layout(address_bits=address_bits))),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Counters of a row's beats and of rows, addresses in units of beats."""
        m = Module()
        transfer, burst = self.transfer.payload, self.bursts.payload
        shift = (self.data_bits // 8).bit_length() - 1
        # Beats of an aligned block that no burst leaves.
        block = min(self.max_beats, BOUNDARY >> shift)
        row_beats = range(self.word_beats * 2**COUNT_BITS)

        running = Signal()
        place = Signal(len(transfer.address) - shift, reset_less=True)
        row = Signal.like(place)
        stride = Signal(STRIDE_BITS - shift, reset_less=True)
        left, beats = Signal(row_beats, reset_less=True), Signal(row_beats, reset_less=True)
        rows = Signal(COUNT_BITS, reset_less=True)

        room, length = Signal(range(block + 1)), Signal(range(block + 1))
        row_ends = Signal()
        m.d.comb += [
            room.eq(block - (place % block)),
            row_ends.eq(left <= room),
            length.eq(Mux(row_ends, left, room)),
            burst.address.eq(place << shift),
            burst.length.eq(length - 1),
            burst.last.eq(row_ends & (rows == 1)),
            self.bursts.valid.eq(running),
            self.transfer.ready.eq(~running),
        ]
        with m.If(running & self.bursts.ready):
            with m.If(row_ends):
                m.d.sync += [
                    place.eq(row + stride),
                    row.eq(row + stride),
                    left.eq(beats),
                    rows.eq(rows - 1),
                    running.eq(rows != 1),
                ]
            with m.Else():
                m.d.sync += [place.eq(place + length), left.eq(left - length)]
        with m.Elif(self.transfer.valid & ~running):
            total = transfer.length * self.word_beats
            m.d.sync += [
                running.eq(1),
                place.eq(transfer.address[shift:]),
                row.eq(transfer.address[shift:]),
                stride.eq(transfer.stride[shift:]),
                left.eq(total),
                beats.eq(total),
                rows.eq(transfer.rows),
            ]
        return m
