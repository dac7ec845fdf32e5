"""Counting sort of a tile's slices, second side: ``lanes`` consecutive ranks a cycle."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data

from dstar.rtl.qpu.buckets import Banks, Buckets
from dstar.rtl.qpu.logic import merged
from dstar.rtl.qpu.streams import slices_bits


def empty(
    m: Module, buckets: Buckets, banks: Banks, tile: Any, present: Value, words: Any
) -> Signal:
    """Read the windows of all buckets at the next ranks; put the slices into their places.

    Parameters
    ----------
    tile: the tile's summary.  present: it is complete.
    words: the stream to write to.

    Returns whether the tile's last word leaves the buckets in this cycle.
    """
    lanes, lane_bits, row_bits = buckets.cfg.array.lanes, buckets.lane_bits, buckets.row_bits
    leaves = Signal()
    bits = slices_bits(buckets.cfg)

    rank = Signal(bits)
    step, final = Signal(), Signal()
    remaining = Signal(bits)
    m.d.comb += [
        step.eq(~words.valid | words.ready),
        remaining.eq(tile.slices - rank),
        final.eq(remaining <= lanes),
        leaves.eq(step & present & final),
    ]
    with m.If(step):
        m.d.sync += words.valid.eq(present)
        with m.If(present):
            m.d.sync += rank.eq(Mux(final, 0, rank + lanes))

    # Rank r lies in bucket k when base[k] <= r < base[k - 1], in bucket 0 below the end.
    inside = Signal(data.ArrayLayout(buckets.number, lanes))
    for lane in range(lanes):
        place = Signal(bits + 1, name=f"rank_{lane}")
        m.d.comb += place.eq(rank + lane)
        reached = [place >= tile.bases[k] for k in range(buckets.number)]
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
                    m.d.comb += window.eq(joined.rotate_right(amount * buckets.entry.size))
        windows.append([window.word_select(i, buckets.entry.size) for i in range(lanes)])

    chosen = Signal(inside.shape(), reset_less=True)
    count = Signal(range(lanes + 1), reset_less=True)
    last, begins = Signal(reset_less=True), Signal(reset_less=True)
    summary = Signal(buckets.summary, reset_less=True)
    with m.If(step):
        m.d.sync += [
            chosen.eq(inside),
            count.eq(Mux(final, remaining, lanes)),
            last.eq(final),
            begins.eq(rank == 0),
            summary.eq(tile),
        ]
    _word(m, buckets, windows, chosen, begins, last, summary, words)
    m.d.comb += [words.payload.count.eq(count), words.payload.last.eq(last)]
    return leaves


def _word(
    m: Module,
    buckets: Buckets,
    windows: list[list[Value]],
    chosen: Any,
    begins: Value,
    last: Value,
    summary: Any,
    words: Any,
) -> None:
    """The word: slices from their windows, shifts from the buckets they come from."""
    payload = words.payload
    width = buckets.cfg.numeric.shift_bits
    # The bucket of the slice before: in this word, or the last of the word before.
    before = Signal(width, reset_less=True)
    bucket: Value = Signal(width)
    m.d.comb += bucket.eq(before)
    coarsest: Value = Const(0, width)
    for lane in range(buckets.cfg.array.lanes):
        flags = [chosen[lane][k] for k in range(buckets.number)]
        entry = Signal(buckets.entry, name=f"entry_{lane}")
        valid = Signal(name=f"valid_{lane}")
        m.d.comb += [
            valid.eq(chosen[lane].any()),
            entry.eq(merged(flags, [windows[k][lane] for k in range(buckets.number)])),
        ]
        own = Signal(width, name=f"bucket_{lane}")
        m.d.comb += own.eq(merged(flags, [Const(k, width) for k in range(buckets.number)]))
        first = begins if lane == 0 else Const(0, 1)
        m.d.comb += [
            payload.entries[lane].index.eq(entry.index),
            payload.entries[lane].metadata.channel.eq(entry.channel),
            payload.entries[lane].metadata.signed.eq(entry.top),
            payload.entries[lane].metadata.shift.eq(Mux(valid & ~first, bucket - own, 0)),
        ]
        bucket = own
        coarsest = Mux(valid, own, coarsest)
    with m.If(words.valid & words.ready):
        m.d.sync += before.eq(bucket)
    with m.If(last):
        m.d.comb += [
            payload.header.slices.eq(summary.slices),
            payload.header.channels.eq(summary.channels),
            payload.header.exponent.eq(Mux(summary.slices == 0, 0, summary.finest - coarsest)),
        ]
