"""Reads of the unified buffer as a stream."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from dstar.rtl.mpc.buffer import read_signature
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
