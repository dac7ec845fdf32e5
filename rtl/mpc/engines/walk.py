"""Addresses of an operand in the buffer: two nested loops."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from dstar.gen.config import Config
from dstar.rtl.mpc.engines.ports import buffer_address_bits

#: Width of a number of items or runs.
COUNT_BITS = 16


def walk_layout(cfg: Config, *, count_bits: int = COUNT_BITS) -> data.StructLayout:
    """Run r of ``runs`` begins at word ``first + r outer``, below twice the buffer's words.

    Its words are ``inner`` apart and hold ``count`` items.  Counts are at least 1.
    """
    step = unsigned(cfg.core.words.bit_length())
    return data.StructLayout(
        {
            "first": unsigned(buffer_address_bits(cfg)),
            "inner": step,
            "outer": step,
            "count": unsigned(count_bits),
            "runs": unsigned(COUNT_BITS),
        }
    )


def place_layout(cfg: Config, *, per: int) -> data.StructLayout:
    """A word's address, how many of its items count, whether it ends its run, and the walk."""
    return data.StructLayout(
        {
            "address": unsigned(buffer_address_bits(cfg)),
            "items": unsigned(per.bit_length()),
            "last": unsigned(1),
            "final": unsigned(1),
        }
    )


class Walk(wiring.Component):
    """Steps through the words of an operand.

    Parameters
    ----------
    per: items of a word.
    count_bits: width of the number of items of a run.

    Members
    -------
    start: stream of :func:`walk_layout`.
    places: stream of :func:`place_layout`.
    beyond: the next word lies beyond the buffer; the walk ends there until reset.

    Latency: one cycle.  Throughput: a word a cycle; one cycle between walks.
    """

    def __init__(self, cfg: Config, *, per: int = 1, count_bits: int = COUNT_BITS) -> None:
        self.cfg = cfg
        self.per = per
        self.count_bits = count_bits
        super().__init__(
            {
                "start": In(stream.Signature(walk_layout(cfg, count_bits=count_bits))),
                "places": Out(stream.Signature(place_layout(cfg, per=per))),
                "beyond": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Two counters, two addresses."""
        m = Module()
        words = self.cfg.core.words
        loop = Signal(self.start.payload.shape(), reset_less=True)
        running = Signal()
        left = Signal(self.count_bits, reset_less=True)
        place, row = (Signal(range(2 * words + 1), reset_less=True) for _ in range(2))
        payload, ends, next_row = self.places.payload, Signal(), Signal.like(row)
        m.d.comb += [
            self.start.ready.eq(~running),
            self.beyond.eq(running & (place >= words)),
            self.places.valid.eq(running & ~self.beyond),
            ends.eq(left <= self.per),
            next_row.eq(row + loop.outer),
            payload.address.eq(place),
            payload.items.eq(Mux(ends, left, self.per)),
            payload.last.eq(ends),
            payload.final.eq(ends & (loop.runs == 1)),
        ]
        with m.If(self.places.valid & self.places.ready):
            with m.If(ends):
                m.d.sync += [
                    place.eq(next_row),
                    row.eq(next_row),
                    left.eq(loop.count),
                    loop.runs.eq(loop.runs - 1),
                    running.eq(loop.runs != 1),
                ]
            with m.Else():
                m.d.sync += [place.eq(place + loop.inner), left.eq(left - self.per)]
        with m.Elif(self.start.valid & self.start.ready):
            m.d.sync += [
                loop.eq(self.start.payload),
                running.eq(1),
                place.eq(self.start.payload.first),
                row.eq(self.start.payload.first),
                left.eq(self.start.payload.count),
            ]
        return m
