"""Words of several bus beats: collected from beats, and cut into them."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out


class Collect(wiring.Component):
    """``count`` beats into a word, the first beat lowest.

    Members
    -------
    input: stream of beats of ``width`` bits.  output: stream of words.

    Latency: one cycle.  Throughput: a beat a cycle; the next word's first beat may come in the
    cycle in which a word leaves.
    """

    def __init__(self, *, width: int, count: int) -> None:
        self.width = width
        self.count = count
        super().__init__(
            {"input": In(stream.Signature(width)), "output": Out(stream.Signature(width * count))}
        )

    def elaborate(self, platform: Any) -> Module:
        """A word's register and the place of the next beat."""
        m = Module()
        place = Signal(range(max(2, self.count)))
        full = Signal()
        word = Signal(self.width * self.count, reset_less=True)
        m.d.comb += [
            self.input.ready.eq(~full | self.output.ready),
            self.output.valid.eq(full),
            self.output.payload.eq(word),
        ]
        with m.If(self.output.ready):
            m.d.sync += full.eq(0)
        with m.If(self.input.valid & self.input.ready):
            m.d.sync += word.word_select(place, self.width).eq(self.input.payload)
            with m.If(place == self.count - 1):
                m.d.sync += [place.eq(0), full.eq(1)]
            with m.Else():
                m.d.sync += place.eq(place + 1)
        return m


class Cut(wiring.Component):
    """A word into ``count`` beats, the lowest first.

    Members
    -------
    input: stream of words, from a queue: a word is taken with its last beat.
    output: stream of beats of ``width`` bits.

    Latency: none.  Throughput: a beat a cycle.
    """

    def __init__(self, *, width: int, count: int) -> None:
        self.width = width
        self.count = count
        super().__init__(
            {"input": In(stream.Signature(width * count)), "output": Out(stream.Signature(width))}
        )

    def elaborate(self, platform: Any) -> Module:
        """The place of the next beat."""
        m = Module()
        place, last = Signal(range(max(2, self.count))), Signal()
        m.d.comb += [
            last.eq(place == self.count - 1),
            self.input.ready.eq(self.output.ready & last),
            self.output.valid.eq(self.input.valid),
            self.output.payload.eq(self.input.payload.word_select(place, self.width)),
        ]
        with m.If(self.output.valid & self.output.ready):
            m.d.sync += place.eq(Mux(last, 0, place + 1))
        return m
