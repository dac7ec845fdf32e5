"""QPU stage 4: the slices of a tile in ascending order of exponent, ``lanes`` a cycle."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from dstar.gen.config import EXPONENT_BITS, MAX_SLICES, SLICE_BITS, Config
from dstar.rtl.hierarchy import shared
from dstar.rtl.qpu.streams import channels_bits, order_layout, slices_bits, subchannel_layout
from dstar.rtl.store import Store

#: Tiles that may be on their way: one filling, one leaving, the others between.
TILES = 4
_TILE_BITS = (TILES - 1).bit_length()


def or_all(values: list[Value]) -> Value:
    """Bitwise or; the second half of an AND-OR multiplexer."""
    total: Value = values[0]
    for value in values[1:]:
        total = total | value
    return total


def merged(flags: list[Value], values: list[Value]) -> Value:
    """The value whose flag is set (at most one), else 0."""
    return or_all([v & f.replicate(len(v)) for f, v in zip(flags, values, strict=True)])


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

    @property
    def buckets(self) -> int:
        """Exponents that a tile's slices can have."""
        return self.cfg.numeric.max_shift + 1

    @property
    def _entry(self) -> data.StructLayout:
        """A slice in a bucket."""
        return data.StructLayout(
            {
                "channel": unsigned(self.cfg.numeric.channel_bits),
                "index": unsigned((MAX_SLICES - 1).bit_length()),
                "top": unsigned(1),
            }
        )

    @property
    def _summary(self) -> data.StructLayout:
        """A complete tile: first rank of each bucket, slices, channels, finest exponent."""
        return data.StructLayout(
            {
                "bases": data.ArrayLayout(slices_bits(self.cfg), self.buckets),
                "slices": unsigned(slices_bits(self.cfg)),
                "channels": unsigned(channels_bits(self.cfg)),
                "finest": signed(EXPONENT_BITS),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Fill side, tile queue, empty side."""
        m = Module()
        cfg, lanes = self.cfg, self.cfg.array.lanes
        row_bits = max(1, (-(-cfg.numeric.k_tile // lanes) - 1).bit_length())
        banks = [
            [Store(width=self._entry.size, depth=TILES << row_bits) for _ in range(lanes)]
            for _ in range(self.buckets)
        ]
        for k, bucket in enumerate(banks):
            for b, bank in enumerate(bucket):
                m.submodules[f"bucket_{k}_bank_{b}"] = shared(platform, bank)

        # Tiles between the two sides: written at the tile's end, read until it has left.
        summaries = Signal(data.ArrayLayout(self._summary, TILES), reset_less=True)
        waiting = Signal(range(TILES + 1))
        complete, leaves = Signal(), Signal()
        m.d.sync += waiting.eq(waiting + complete - leaves)
        m.d.comb += complete.eq(self.write & self.subchannel.last)

        summary = self._fill(m, banks, row_bits)
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
        tile = Signal(self._summary)
        m.d.comb += tile.eq(summaries[source])
        self._empty(m, banks, tile, waiting != 0, leaves, row_bits)
        return m

    def _fill(self, m: Module, banks: list[list[Store]], row_bits: int) -> Value:
        """Append a sub-channel's slices to their buckets; return the tile's summary so far."""
        cfg, lanes, item = self.cfg, self.cfg.array.lanes, self.subchannel
        lane_bits = lanes.bit_length() - 1

        # Bucket 0 holds the finest exponent; slice n lies 2n buckets further on than slice 0.
        distance = Signal(EXPONENT_BITS + 1)
        one_hot = Signal(self.buckets)
        m.d.comb += [distance.eq(item.finest - item.exponent), one_hot.eq(1 << distance)]
        here = []
        for n in range(MAX_SLICES):
            bits = Signal(self.buckets, name=f"slice_{n}_buckets")
            exists = Signal(name=f"slice_{n}_exists")
            m.d.comb += [
                exists.eq(item.slices > n),
                bits.eq(Mux(exists, one_hot << SLICE_BITS * n, 0)),
            ]
            here.append(bits)
            with m.If(exists & ~bits.any()):
                m.d.comb += self.dropped.eq(self.write)

        filled, total = Signal(self._summary), Signal(self._summary)
        ends = self.write & item.last
        m.d.comb += [
            total.finest.eq(item.finest),
            total.channels.eq(filled.channels + 1),
            total.slices.eq(filled.slices + sum(bits.any() for bits in here)),
        ]
        for k, bucket in enumerate(banks):
            hits = [bits[k] for bits in here]
            hit = Signal(name=f"hit_{k}")
            count = Signal(range(cfg.numeric.k_tile + 1), name=f"count_{k}")
            entry = Signal(self._entry, name=f"entry_{k}")
            index = Signal(self._entry["index"].shape, name=f"index_{k}")
            # Finer buckets begin later by every slice that lands in a coarser one.
            coarser = sum((bits[k + 1 :].any() for bits in here), Const(0, 1))
            m.d.comb += [
                hit.eq(self.write & or_all(hits)),
                index.eq(merged(hits, [Const(n, len(index)) for n in range(MAX_SLICES)])),
                entry.channel.eq(item.channel),
                entry.index.eq(index),
                entry.top.eq(item.slices == index + 1),
                total.bases[k].eq(filled.bases[k] + coarser),
            ]
            with m.If(ends):
                m.d.sync += count.eq(0)
            with m.Else():
                m.d.sync += count.eq(count + hit)
            for b, bank in enumerate(bucket):
                m.d.comb += [
                    bank.write.eq(hit & (count[:lane_bits] == b) if lane_bits else hit),
                    bank.write_address[:row_bits].eq(count[lane_bits:]),
                    bank.write_data.eq(entry),
                ]
        with m.If(ends):
            m.d.sync += filled.eq(0)
        with m.Elif(self.write):
            m.d.sync += filled.eq(total)
        return total.as_value()

    def _empty(
        self,
        m: Module,
        banks: list[list[Store]],
        tile: Any,
        present: Value,
        leaves: Signal,
        row_bits: int,
    ) -> None:
        """Read the windows of all buckets at the next ranks; put the slices into their places."""
        lanes = self.cfg.array.lanes
        lane_bits = lanes.bit_length() - 1
        bits = slices_bits(self.cfg)

        rank = Signal(bits)
        step, final = Signal(), Signal()
        remaining = Signal(bits)
        m.d.comb += [
            step.eq(~self.words.valid | self.words.ready),
            remaining.eq(tile.slices - rank),
            final.eq(remaining <= lanes),
            leaves.eq(step & present & final),
        ]
        with m.If(step):
            m.d.sync += self.words.valid.eq(present)
            with m.If(present):
                m.d.sync += rank.eq(Mux(final, 0, rank + lanes))

        # Rank r lies in bucket k when base[k] <= r < base[k - 1], in bucket 0 below the end.
        inside = Signal(data.ArrayLayout(self.buckets, lanes))
        for lane in range(lanes):
            place = Signal(bits + 1, name=f"rank_{lane}")
            m.d.comb += place.eq(rank + lane)
            reached = [place >= tile.bases[k] for k in range(self.buckets)]
            before = [place < tile.slices, *(~r for r in reached[:-1])]
            m.d.comb += inside[lane].eq(
                Cat(*(r & b & (place < tile.slices) for r, b in zip(reached, before, strict=True)))
            )

        windows: list[list[Value]] = []
        for k, bucket in enumerate(banks):
            # Where the word begins in the bucket; negative when the bucket begins in the word.
            offset = Signal(bits, name=f"offset_{k}")
            m.d.comb += offset.eq(rank - tile.bases[k])
            turn: Value = Const(0, 1)
            if lane_bits:
                turn = Signal(lane_bits, name=f"turn_{k}", reset_less=True)
                with m.If(step):
                    m.d.sync += turn.eq(offset[:lane_bits])
            for b, bank in enumerate(bucket):
                later = offset[:lane_bits] > b if lane_bits else Const(0, 1)
                m.d.comb += [
                    bank.enable.eq(step),
                    bank.address[:row_bits].eq(offset[lane_bits:] + later),
                ]
            joined = Cat(*(bank.data for bank in bucket))
            window = Signal(len(joined), name=f"window_{k}")
            with m.Switch(turn):
                for amount in range(lanes):
                    with m.Case(amount):
                        m.d.comb += window.eq(joined.rotate_right(amount * self._entry.size))
            windows.append([window.word_select(i, self._entry.size) for i in range(lanes)])

        chosen = Signal(inside.shape(), reset_less=True)
        count = Signal(range(lanes + 1), reset_less=True)
        last, begins = Signal(reset_less=True), Signal(reset_less=True)
        summary = Signal(self._summary, reset_less=True)
        with m.If(step):
            m.d.sync += [
                chosen.eq(inside),
                count.eq(Mux(final, remaining, lanes)),
                last.eq(final),
                begins.eq(rank == 0),
                summary.eq(tile),
            ]
        self._output(m, windows, chosen, begins, last, summary)
        m.d.comb += [self.words.payload.count.eq(count), self.words.payload.last.eq(last)]

    def _output(
        self,
        m: Module,
        windows: list[list[Value]],
        chosen: Any,
        begins: Value,
        last: Value,
        summary: Any,
    ) -> None:
        """The word: slices from their windows, shifts from the buckets they come from."""
        payload = self.words.payload
        width = self.cfg.numeric.shift_bits
        # The bucket of the slice before: in this word, or the last of the word before.
        before = Signal(width, reset_less=True)
        bucket: Value = Signal(width)
        m.d.comb += bucket.eq(before)
        coarsest: Value = Const(0, width)
        for lane in range(self.cfg.array.lanes):
            flags = [chosen[lane][k] for k in range(self.buckets)]
            entry = Signal(self._entry, name=f"entry_{lane}")
            valid = Signal(name=f"valid_{lane}")
            m.d.comb += [
                valid.eq(chosen[lane].any()),
                entry.eq(merged(flags, [windows[k][lane] for k in range(self.buckets)])),
            ]
            own = Signal(width, name=f"bucket_{lane}")
            m.d.comb += own.eq(merged(flags, [Const(k, width) for k in range(self.buckets)]))
            first = begins if lane == 0 else Const(0, 1)
            m.d.comb += [
                payload.entries[lane].index.eq(entry.index),
                payload.entries[lane].metadata.channel.eq(entry.channel),
                payload.entries[lane].metadata.signed.eq(entry.top),
                payload.entries[lane].metadata.shift.eq(Mux(valid & ~first, bucket - own, 0)),
            ]
            bucket = own
            coarsest = Mux(valid, own, coarsest)
        with m.If(self.words.valid & self.words.ready):
            m.d.sync += before.eq(bucket)
        with m.If(last):
            m.d.comb += [
                payload.header.slices.eq(summary.slices),
                payload.header.channels.eq(summary.channels),
                payload.header.exponent.eq(Mux(summary.slices == 0, 0, summary.finest - coarsest)),
            ]
