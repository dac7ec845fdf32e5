"""QPU stage 4 as the paper draws it: a bitonic network over all slices of a tile."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from dstar.gen.config import EXPONENT_BITS, MAX_SLICES, SLICE_BITS, Config
from dstar.rtl.qpu.streams import channels_bits, order_layout, slices_bits, subchannel_layout
from dstar.rtl.sorter import IterativeSorter


class BitonicReorder(wiring.Component):
    """Sorts the ``4 * k_tile`` places of a tile's slices by exponent (paper, section 4.2).

    A slice's place is (channel, slice index), so the sorter's own order of equal keys is the
    order that ties need; absent slices have a key above all others.  At ``paper`` the iterative
    sorter takes 74 cycles for 512 places, while the next tile arrives in 128; the pipelined one
    would start a sort every cycle, which nobody asks for, with 45 times the comparators
    (``docs/qpu.md``).

    Members and meaning as :class:`~dstar.rtl.qpu.reorder.BucketReorder`, which has a tenth of
    the logic, but memories.

    Latency: :meth:`latency`.  Throughput: one sub-channel and one word a cycle, but the sorted
    slices stay in the sorter until the tile's last word: the fullest tiles take 201 cycles each.
    """

    #: Tiles between the first write and the last word: one is collected, one sorted and read.
    tiles = 2

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
        levels = (cfg.numeric.max_tile_slices - 1).bit_length()
        return levels * levels - levels + 1 + 3

    def elaborate(self, platform: Any) -> Module:
        """Collect, sort, read out."""
        m = Module()
        numeric = self.cfg.numeric
        # The key: octaves above the coarsest exponent; its top bit marks absent slices.
        m.submodules.sorter = sorter = IterativeSorter(
            size=numeric.max_tile_slices, key_bits=numeric.shift_bits + 1, payload_bits=1
        )
        summary = data.StructLayout(
            {
                "slices": slices_bits(self.cfg),
                "channels": channels_bits(self.cfg),
                "finest": EXPONENT_BITS,
            }
        )
        collected, sorting = (
            Signal(summary, name="collected"),
            Signal(summary, name="sorting", reset_less=True),
        )
        full = Signal()
        starts = sorter.items.valid & sorter.items.ready
        m.d.comb += sorter.items.valid.eq(full)
        # The next tile's first write may fall into the cycle in which this one goes on.
        m.d.sync += full.eq(full & ~starts | self.write & self.subchannel.last)
        with m.If(starts):
            m.d.sync += sorting.eq(collected)
        self._collect(m, sorter, collected, starts)
        self._read(m, sorter, sorting)
        return m

    def _collect(self, m: Module, sorter: IterativeSorter, summary: Any, starts: Value) -> None:
        """Note which slices exist, at which octave; hand all places to the sorter at once."""
        numeric, item = self.cfg.numeric, self.subchannel
        octaves = Signal(data.ArrayLayout(numeric.shift_bits, numeric.max_tile_slices),
                         reset_less=True)  # fmt: skip
        top = Signal(numeric.max_tile_slices, reset_less=True)
        present = Signal(numeric.max_tile_slices)
        with m.If(starts):
            m.d.sync += present.eq(0)
        exists = []
        for n in range(MAX_SLICES):
            below = Signal(EXPONENT_BITS + 2, name=f"below_{n}")
            here = Signal(name=f"exists_{n}")
            m.d.comb += [
                below.eq(item.finest - item.exponent + SLICE_BITS * n),
                here.eq((item.slices > n) & (below <= numeric.max_shift)),
            ]
            with m.If((item.slices > n) & ~here):
                m.d.comb += self.dropped.eq(self.write)
            exists.append(here)
            for channel in range(numeric.k_tile):
                place = channel * MAX_SLICES + n
                with m.If(self.write & (item.channel == channel)):
                    m.d.sync += [
                        present[place].eq(here),
                        octaves[place].eq(numeric.max_shift - below),
                        top[place].eq(item.slices == n + 1),
                    ]
        slices, channels = (Mux(starts, 0, f) for f in (summary.slices, summary.channels))
        m.d.sync += [
            summary.slices.eq(slices + Mux(self.write, sum(exists), 0)),
            summary.channels.eq(channels + self.write),
        ]
        with m.If(self.write):
            m.d.sync += summary.finest.eq(item.finest)
        for place in range(numeric.max_tile_slices):
            key = Cat(octaves[place] | (~present[place]).replicate(numeric.shift_bits))
            m.d.comb += [
                sorter.items.payload[place].key.eq(Cat(key, ~present[place])),
                sorter.items.payload[place].payload.eq(top[place]),
            ]

    def _read(self, m: Module, sorter: IterativeSorter, summary: Any) -> None:
        """``lanes`` sorted slices a cycle, with the shifts between them."""
        lanes, numeric = self.cfg.array.lanes, self.cfg.numeric
        words = -(-numeric.max_tile_slices // lanes)
        item = sorter.shape.ordered.elem_shape
        everything = Signal(words * lanes * item.size)
        m.d.comb += everything.eq(sorter.sorted.payload.as_value())

        word, done = Signal(range(max(2, words))), Signal(slices_bits(self.cfg))
        remaining, last, step = Signal(slices_bits(self.cfg)), Signal(), Signal()
        m.d.comb += [
            step.eq(sorter.sorted.valid & (~self.words.valid | self.words.ready)),
            remaining.eq(summary.slices - done),
            last.eq(remaining <= lanes),
            sorter.sorted.ready.eq(step & last),
        ]
        with m.If(self.words.ready):
            m.d.sync += self.words.valid.eq(0)
        payload = self.words.payload
        group = Signal(lanes * item.size)
        m.d.comb += group.eq(everything.word_select(word, lanes * item.size))
        before = Signal(numeric.shift_bits, reset_less=True)
        octave: Value = before
        highest: Value = Const(0, numeric.shift_bits)
        updates = []
        for lane in range(lanes):
            entry = data.View(item, group.word_select(lane, item.size))
            own, valid = entry.key[:-1], remaining > lane
            first = (done == 0) if lane == 0 else Const(0, 1)
            target = payload.entries[lane]
            updates += [
                target.index.eq(Mux(valid, entry.index[:2], 0)),
                target.metadata.channel.eq(Mux(valid, entry.index[2:], 0)),
                target.metadata.signed.eq(valid & entry.payload),
                target.metadata.shift.eq(Mux(valid & ~first, own - octave, 0)),
            ]
            octave, highest = own, Mux(valid, own, highest)
        header = payload.header
        with m.If(step):
            m.d.sync += [
                self.words.valid.eq(1),
                *updates,
                before.eq(octave),
                payload.count.eq(Mux(last, remaining, lanes)),
                payload.last.eq(last),
                header.eq(0),
                word.eq(Mux(last, 0, word + 1)),
                done.eq(Mux(last, 0, done + lanes)),
            ]
            with m.If(last):
                m.d.sync += [
                    header.slices.eq(summary.slices),
                    header.channels.eq(summary.channels),
                    header.exponent.eq(
                        Mux(
                            summary.slices == 0,
                            0,
                            summary.finest - numeric.max_shift + highest,
                        )
                    ),
                ]
