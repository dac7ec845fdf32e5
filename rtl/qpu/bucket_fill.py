"""Counting sort of a tile's slices, first side: each slice goes to the end of its bucket."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Const, Module, Mux, Signal, Value

from dstar.gen.config import EXPONENT_BITS, MAX_SLICES, SLICE_BITS
from dstar.rtl.qpu.buckets import Banks, Buckets
from dstar.rtl.qpu.logic import merged, or_all


def fill(
    m: Module, buckets: Buckets, banks: Banks, item: Any, write: Value
) -> tuple[Value, Signal]:
    """Append a sub-channel's slices to their buckets.

    Returns the tile's summary so far, this sub-channel included, and whether a slice of it has no
    bucket.
    """
    row_bits, lane_bits = buckets.row_bits, buckets.lane_bits
    dropped = Signal()

    # Bucket 0 holds the finest exponent; slice n lies 2n buckets further on than slice 0.
    distance = Signal(EXPONENT_BITS + 1)
    one_hot = Signal(buckets.number)
    m.d.comb += [distance.eq(item.finest - item.exponent), one_hot.eq(1 << distance)]
    here = []
    for n in range(MAX_SLICES):
        bits = Signal(buckets.number, name=f"slice_{n}_buckets")
        exists = Signal(name=f"slice_{n}_exists")
        m.d.comb += [
            exists.eq(item.slices > n),
            bits.eq(Mux(exists, one_hot << SLICE_BITS * n, 0)),
        ]
        here.append(bits)
        with m.If(exists & ~bits.any()):
            m.d.comb += dropped.eq(write)

    filled, total = Signal(buckets.summary), Signal(buckets.summary)
    ends = write & item.last
    m.d.comb += [
        total.finest.eq(item.finest),
        total.channels.eq(filled.channels + 1),
        total.slices.eq(filled.slices + sum(bits.any() for bits in here)),
    ]
    for k, bucket in enumerate(banks):
        hits = [bits[k] for bits in here]
        hit = Signal(name=f"hit_{k}")
        count = Signal(range(buckets.cfg.numeric.k_tile + 1), name=f"count_{k}")
        entry = Signal(buckets.entry, name=f"entry_{k}")
        index = Signal(buckets.entry["index"].shape, name=f"index_{k}")
        # Finer buckets begin later by every slice that lands in a coarser one.
        coarser = sum((bits[k + 1 :].any() for bits in here), Const(0, 1))
        m.d.comb += [
            hit.eq(write & or_all(hits)),
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
    with m.Elif(write):
        m.d.sync += filled.eq(total)
    return total.as_value(), dropped
