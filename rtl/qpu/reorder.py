"""QPU stage 4: the slices of a tile in ascending order of exponent, ``lanes`` a cycle."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from dstar.gen.config import Config
from dstar.rtl.hierarchy import shared
from dstar.rtl.qpu.bucket_fill import fill
from dstar.rtl.qpu.bucket_read import empty
from dstar.rtl.qpu.buckets import Buckets
from dstar.rtl.qpu.streams import order_layout, subchannel_layout
from dstar.rtl.store import Store

#: Tiles that may be on their way: one filling, one leaving, the others between.
TILES = 4
_TILE_BITS = (TILES - 1).bit_length()


class BucketReorder(wiring.Component):
    """Stable counting sort: one bucket for each exponent that a slice can have.

    By the accumulator's bound a tile's exponents lie within ``max_shift`` below the bin table's
    finest scale: ``max_shift + 1`` buckets, 9 at ``paper``.  Sub-channels arrive in channel order
    and have at most one slice in a bucket, so appending keeps ties in (channel, slice) order.
    When the tile ends, everything is sorted: bucket sizes are known and with them the rank at
    which each bucket begins.  A word of ``lanes`` consecutive ranks reads a window of each bucket
    it touches, whose ``lanes`` banks make that one read a bank; no word waits for another.

    Slices outside the buckets, which no legal table makes, are dropped.

    Members
    -------
    write, subchannel: one sub-channel of :func:`~dstar.rtl.qpu.streams.subchannel_layout`; the
    user leaves no more than :attr:`tiles` between the first write and the last word.
    words: stream of :func:`~dstar.rtl.qpu.streams.order_layout`.
    dropped: a slice of this cycle's sub-channel has no bucket.

    Latency: :meth:`latency`.
    Throughput: one sub-channel and one word a cycle.
    """

    #: Tiles between the first write and the last word.
    tiles = TILES

    def __init__(self, cfg: Config) -> None:
        self.cfg = cfg
        super().__init__(
            {
                "write": In(1),
                "subchannel": In(subchannel_layout(cfg)),
                "words": Out(stream.Signature(order_layout(cfg))),
                "dropped": Out(1),
            }
        )

    @classmethod
    def latency(cls, cfg: Config) -> int:
        """Cycles from a tile's last sub-channel to its first word."""
        return 2

    def elaborate(self, platform: Any) -> Module:
        """Fill side, tile queue, empty side."""
        m = Module()
        cfg, lanes = self.cfg, self.cfg.array.lanes
        buckets = Buckets(cfg)
        row_bits = buckets.row_bits
        banks = [
            [Store(width=buckets.entry.size, depth=TILES << row_bits) for _ in range(lanes)]
            for _ in range(buckets.number)
        ]
        for k, bucket in enumerate(banks):
            for b, bank in enumerate(bucket):
                m.submodules[f"bucket_{k}_bank_{b}"] = shared(platform, bank)

        # Tiles between the two sides: written at the tile's end, read until it has left.
        summaries = Signal(data.ArrayLayout(buckets.summary, TILES), reset_less=True)
        waiting = Signal(range(TILES + 1))
        complete, leaves = Signal(), Signal()
        m.d.sync += waiting.eq(waiting + complete - leaves)
        m.d.comb += complete.eq(self.write & self.subchannel.last)

        summary, dropped = fill(m, buckets, banks, self.subchannel, self.write)
        m.d.comb += self.dropped.eq(dropped)
        target = Signal(_TILE_BITS)
        with m.If(complete):
            m.d.sync += [summaries[target].eq(summary), target.eq(target + 1)]
        for bucket in banks:
            for bank in bucket:
                m.d.comb += bank.write_address[row_bits:].eq(target)

        source = Signal(_TILE_BITS)
        with m.If(leaves):
            m.d.sync += source.eq(source + 1)
        for bucket in banks:
            for bank in bucket:
                m.d.comb += bank.address[row_bits:].eq(source)
        tile = Signal(buckets.summary)
        m.d.comb += tile.eq(summaries[source])
        m.d.comb += leaves.eq(empty(m, buckets, banks, tile, waiting != 0, self.words))
        return m
