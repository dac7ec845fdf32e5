"""Operands between the buffer and a unit: words, parts of words, results."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from dstar.gen.config import Config
from dstar.golden.mpc.geometry import Geometry
from dstar.rtl.mpc.access import BufferReader
from dstar.rtl.mpc.engines.ports import buffer_address_bits, read_port, write_port
from dstar.rtl.mpc.engines.walk import COUNT_BITS, Walk, walk_layout
from dstar.rtl.mpc.queue import StreamQueue

#: Words that a reader holds to deliver one a cycle, and one every other cycle.
FULL_RATE, HALF_RATE = 3, 2


class OperandReader(wiring.Component):
    """The words of a walk.

    Parameters
    ----------
    depth: as of :class:`~dstar.rtl.mpc.access.BufferReader`.

    Members
    -------
    start, beyond: of :class:`~dstar.rtl.mpc.engines.walk.Walk`.
    port: read client of the buffer.
    words: stream of words.
    """

    def __init__(self, cfg: Config, *, depth: int = FULL_RATE) -> None:
        self.cfg = cfg
        self.depth = depth
        super().__init__(
            {
                "start": In(stream.Signature(walk_layout(cfg))),
                "port": Out(read_port(cfg)),
                "words": Out(stream.Signature(8 * Geometry(cfg).word_bytes)),
                "beyond": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """A walk, a reader."""
        m = Module()
        m.submodules.walk = walk = Walk(self.cfg)
        m.submodules.reader = reader = BufferReader(
            width=len(self.words.payload),
            address_bits=buffer_address_bits(self.cfg),
            depth=self.depth,
        )
        wiring.connect(m, wiring.flipped(self.start), walk.start)
        wiring.connect(m, wiring.flipped(self.port), reader.port)
        wiring.connect(m, reader.words, wiring.flipped(self.words))
        m.d.comb += [
            reader.addresses.payload.eq(walk.places.payload.address),
            reader.addresses.valid.eq(walk.places.valid),
            walk.places.ready.eq(reader.addresses.ready),
            self.beyond.eq(walk.beyond),
        ]
        return m


def items_layout(bits: int) -> data.StructLayout:
    """Items of a word; ``last`` ends a run, ``final`` the walk."""
    return data.StructLayout({"data": unsigned(bits), "last": unsigned(1), "final": unsigned(1)})


class ItemReader(wiring.Component):
    """The words of a walk, cut into items from their first bit on.

    Parameters
    ----------
    width: bits of an item.
    per: items of a word.
    group: items that leave together, a divisor of ``per``; a run that ends within a group leaves
        with items that mean nothing.
    depth, count_bits: as of the reader and the walk.

    Members
    -------
    start, beyond, port: as of :class:`OperandReader`; ``count`` is in items.
    items: stream of :func:`items_layout`, one group a cycle.
    """

    def __init__(
        self,
        cfg: Config,
        *,
        width: int,
        per: int,
        group: int = 1,
        depth: int = HALF_RATE,
        count_bits: int = COUNT_BITS,
    ) -> None:
        if per % group:
            raise ValueError(f"group must divide {per}, got {group}")
        self.cfg, self.per, self.group = cfg, per, group
        self.depth, self.count_bits = depth, count_bits
        super().__init__(
            {
                "start": In(stream.Signature(walk_layout(cfg, count_bits=count_bits))),
                "port": Out(read_port(cfg)),
                "items": Out(stream.Signature(items_layout(group * width))),
                "beyond": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """A walk, a reader, beside it what the words hold, and a selection."""
        m = Module()
        word_bits = 8 * Geometry(self.cfg).word_bytes
        m.submodules.walk = walk = Walk(self.cfg, per=self.per, count_bits=self.count_bits)
        m.submodules.reader = reader = BufferReader(
            width=word_bits, address_bits=buffer_address_bits(self.cfg), depth=self.depth
        )
        m.submodules.tags = tags = StreamQueue(walk.places.payload.shape(), depth=self.depth)
        wiring.connect(m, wiring.flipped(self.start), walk.start)
        wiring.connect(m, wiring.flipped(self.port), reader.port)

        # A place goes to the reader and, as the tag of its word, beside it.
        place, moves = walk.places, Signal()
        m.d.comb += [
            reader.addresses.payload.eq(place.payload.address),
            reader.addresses.valid.eq(place.valid & tags.input.ready),
            moves.eq(reader.addresses.valid & reader.addresses.ready),
            place.ready.eq(moves),
            tags.input.payload.eq(place.payload),
            tags.input.valid.eq(moves),
            self.beyond.eq(walk.beyond),
        ]

        groups = self.per // self.group
        tag, word, items = tags.output.payload, reader.words, self.items
        index, ends = Signal(range(max(2, groups))), Signal()
        size = len(items.payload.data)
        m.d.comb += [
            ends.eq((index + 1) * self.group >= tag.items),
            items.valid.eq(word.valid & tags.output.valid),
            items.payload.data.eq(word.payload.word_select(index, size)),
            items.payload.last.eq(tag.last & ends),
            items.payload.final.eq(tag.final & ends),
            word.ready.eq(tags.output.valid & items.ready & ends),
            tags.output.ready.eq(word.valid & items.ready & ends),
        ]
        with m.If(items.valid & items.ready):
            m.d.sync += index.eq(Mux(ends, 0, index + 1))
        return m


def job_layout(cfg: Config, *, count_bits: int = COUNT_BITS) -> data.StructLayout:
    """``count`` results, to the words from ``first`` on; without ``write`` they are dropped."""
    return data.StructLayout(
        {
            "first": unsigned(buffer_address_bits(cfg)),
            "count": unsigned(count_bits),
            "write": unsigned(1),
        }
    )


class ResultWriter(wiring.Component):
    """Writes a unit's results into consecutive words.

    Members
    -------
    job: stream of :func:`job_layout`; taken with its last word, one of no words at once.
    words: stream of words.
    port: write client of the buffer.
    beyond: the next word lies beyond the buffer; nothing moves until reset.

    Latency: none.
    """

    def __init__(self, cfg: Config, *, count_bits: int = COUNT_BITS) -> None:
        self.cfg = cfg
        self.count_bits = count_bits
        super().__init__(
            {
                "job": In(stream.Signature(job_layout(cfg, count_bits=count_bits))),
                "words": In(stream.Signature(8 * Geometry(cfg).word_bytes)),
                "port": Out(write_port(cfg)),
                "beyond": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """A counter."""
        m = Module()
        job, port, words = self.job.payload, self.port, self.words
        position, last, active, takes = Signal(self.count_bits), Signal(), Signal(), Signal()
        place = Signal(range(self.cfg.core.words + (1 << self.count_bits)))
        m.d.comb += [
            active.eq(self.job.valid & (job.count != 0) & ~self.beyond),
            last.eq(position + 1 == job.count),
            place.eq(job.first + position),
            self.beyond.eq(
                self.job.valid & job.write & (job.count != 0) & (place >= self.cfg.core.words)
            ),
            port.payload.address.eq(place),
            port.payload.data.eq(words.payload),
            port.valid.eq(active & job.write & words.valid),
            words.ready.eq(active & (port.ready | ~job.write)),
            takes.eq(words.valid & words.ready),
            self.job.ready.eq((job.count == 0) | (takes & last)),
        ]
        with m.If(takes):
            m.d.sync += position.eq(Mux(last, 0, position + 1))
        return m
