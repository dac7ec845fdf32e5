"""Streams of addresses in the unified buffer, and of words read from it."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from dstar.rtl.mpc.buffer import read_signature
from dstar.rtl.mpc.bursts import COUNT_BITS
from dstar.rtl.mpc.queue import StreamQueue


class BufferReader(wiring.Component):
    """A stream of addresses into a stream of the buffer's words, in order.

    Parameters
    ----------
    width, address_bits: of the buffer.
    depth: words it can hold.  With 3 it reads a word a cycle; with 2, a word every other cycle or
        slower, which is enough where a word becomes several beats.

    Members
    -------
    addresses: stream of addresses.
    port: :func:`~dstar.rtl.mpc.buffer.read_signature`.
    words: stream of words.

    Latency: two cycles from an address to its word.
    """

    def __init__(self, *, width: int, address_bits: int, depth: int = 3) -> None:
        self.width = width
        self.depth = depth
        super().__init__(
            {
                "addresses": In(stream.Signature(address_bits)),
                "port": Out(read_signature(width=width, address_bits=address_bits)),
                "words": Out(stream.Signature(width)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """A queue, and a count of its words with those on their way."""
        m = Module()
        m.submodules.queue = queue = StreamQueue(self.width, depth=self.depth)
        wiring.connect(m, wiring.flipped(self.words), queue.output)
        held = Signal(range(self.depth + 1))
        address, room = self.port.address, Signal()
        m.d.comb += [
            room.eq(held != self.depth),
            address.payload.eq(self.addresses.payload),
            address.valid.eq(self.addresses.valid & room),
            self.addresses.ready.eq(address.ready & room),
            queue.input.payload.eq(self.port.data),
            queue.input.valid.eq(self.port.valid),
        ]
        taken, left = address.valid & address.ready, self.words.valid & self.words.ready
        m.d.sync += held.eq(held + taken - left)
        return m


class WordWalk(wiring.Component):
    """Buffer addresses of a transfer, in the order of its words in memory.

    Parameters
    ----------
    transfer: a layout of :func:`~dstar.rtl.mpc.bursts.transfer_layout`.

    Members
    -------
    transfer: stream of that layout.
    words: stream of addresses; ``last`` marks a transfer's last.

    Latency: one cycle.  Throughput: a word a cycle; one cycle between transfers.
    """

    def __init__(self, transfer: data.StructLayout) -> None:
        word = data.StructLayout({"address": transfer["buffer"].shape, "last": 1})
        super().__init__(
            {
                "transfer": In(stream.Signature(transfer)),
                "words": Out(stream.Signature(word)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Two nested counters."""
        m = Module()
        transfer, word = self.transfer.payload, self.words.payload
        running, row_ends = Signal(), Signal()
        length, left, rows = (Signal(COUNT_BITS, reset_less=True) for _ in range(3))
        place, row, step = (Signal(len(word.address), reset_less=True) for _ in range(3))
        m.d.comb += [
            self.transfer.ready.eq(~running),
            self.words.valid.eq(running),
            row_ends.eq(left == 1),
            word.address.eq(place),
            word.last.eq(row_ends & (rows == 1)),
        ]
        with m.If(running & self.words.ready):
            with m.If(row_ends):
                m.d.sync += [
                    place.eq(row + step),
                    row.eq(row + step),
                    left.eq(length),
                    rows.eq(rows - 1),
                    running.eq(rows != 1),
                ]
            with m.Else():
                m.d.sync += [place.eq(place + 1), left.eq(left - 1)]
        with m.Elif(self.transfer.valid & ~running):
            m.d.sync += [
                running.eq(1),
                place.eq(transfer.buffer),
                row.eq(transfer.buffer),
                step.eq(transfer.step),
                length.eq(transfer.length),
                left.eq(transfer.length),
                rows.eq(transfer.rows),
            ]
        return m
