"""Bitonic sorting network, stable, as a pipeline or as one reused column of comparators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from dstar.rtl.sorter_network import SorterShape, exchange


class _Sorter(wiring.Component):
    """Interface of both builds.

    Members
    -------
    items: stream of ``size`` items at once.
    sorted: stream of the items in ascending order of key, each with its index; equal keys keep
    their order.
    """

    def __init__(self, *, size: int, key_bits: int, payload_bits: int = 0) -> None:
        self.shape = SorterShape(size=size, key_bits=key_bits, payload_bits=payload_bits)
        super().__init__(
            {
                "items": In(stream.Signature(self.shape.items)),
                "sorted": Out(stream.Signature(self.shape.ordered)),
            }
        )


class PipelinedSorter(_Sorter):
    """Bitonic sorter with a register after every column of comparators (Batcher, 1968).

    Parameters
    ----------
    size, key_bits, payload_bits: see :class:`SorterShape`.

    Cost: ``columns * size / 2`` comparators, ``columns * size`` registers of words.
    Latency: :attr:`latency`.  Throughput: one sort a cycle.
    """

    @property
    def latency(self) -> int:
        """Cycles from accepted items to the sorted ones."""
        return self.shape.columns

    @property
    def interval(self) -> int:
        """Cycles from one sort to the next."""
        return 1

    def elaborate(self, platform: Any) -> Module:
        """Columns in a row; they move on together."""
        m = Module()
        shape = self.shape
        enable = Signal()
        m.d.comb += [enable.eq(~self.sorted.valid | self.sorted.ready)]
        m.d.comb += self.items.ready.eq(enable)

        words = shape.inside(self.items.payload)
        valid: Value = self.items.valid
        column = 0
        for level in range(1, shape.levels + 1):
            for bit in reversed(range(level)):
                words = list(words)
                for low in range(len(words)):
                    high = low | 1 << bit
                    if low == high:
                        continue
                    words[low], words[high] = exchange(
                        m,
                        f"column{column}_{low}",
                        shape,
                        words[low],
                        words[high],
                        Const(low >> level & 1, 1),
                    )
                kept = [
                    Signal(len(word), name=f"column{column}_word{i}", reset_less=True)
                    for i, word in enumerate(words)
                ]
                kept_valid = Signal(name=f"column{column}_valid")
                with m.If(enable):
                    m.d.sync += kept_valid.eq(valid)
                    m.d.sync += [a.eq(b) for a, b in zip(kept, words, strict=True)]
                words, valid = list(kept), kept_valid
                column += 1
        m.d.comb += [
            self.sorted.valid.eq(valid),
            self.sorted.payload.as_value().eq(shape.outside(words)),
        ]
        return m


class IterativeSorter(_Sorter):
    """Bitonic sorter with one column of comparators, used once a cycle (Stone, 1971).

    Every cycle the words pass a perfect shuffle, so that the pairs of each column in turn lie
    side by side: wiring is the same in all cycles and no word needs a multiplexer of strides.
    The price is cycles that only shuffle: ``levels**2 - levels + 1`` instead of
    ``columns``.

    Parameters
    ----------
    size, key_bits, payload_bits: see :class:`SorterShape`.

    Cost: ``size / 2`` comparators, ``size`` registers of words.
    Latency: :attr:`latency`.  Throughput: one sort every :attr:`interval` cycles.
    """

    @property
    def steps(self) -> int:
        """Cycles of comparing and shuffling."""
        levels = self.shape.levels
        return levels * levels - levels + 1

    @property
    def latency(self) -> int:
        """Cycles from accepted items to the sorted ones."""
        return self.steps + 1

    @property
    def interval(self) -> int:
        """Cycles from one sort to the next, when the sorted items are taken at once."""
        return self.steps + 1

    def elaborate(self, platform: Any) -> Module:
        """Registers, a column of comparators, a shuffle, and two counters."""
        m = Module()
        shape = self.shape
        levels = shape.levels
        loaded = shape.inside(self.items.payload)
        words = [
            Signal(len(loaded[0]), name=f"word{i}", reset_less=True) for i in range(len(loaded))
        ]
        busy, done = Signal(), Signal()
        take = Signal()
        m.d.comb += [
            self.sorted.valid.eq(done),
            self.items.ready.eq(~busy & (~done | self.sorted.ready)),
            take.eq(self.items.valid & self.items.ready),
        ]
        with m.If(self.sorted.ready):
            m.d.sync += done.eq(0)

        # Place p holds item rotate_left(p, turn): the pairs that differ in bit `turn`.
        turn, level = Signal(range(max(2, levels))), Signal(range(levels + 1))
        last = Signal()
        m.d.comb += last.eq((level == levels) & (turn == 0))
        with m.If(busy):
            m.d.sync += turn.eq(Mux(turn == 0, levels - 1, turn - 1))
            with m.If(turn == 0):
                m.d.sync += level.eq(level + 1)
            with m.If(last):
                m.d.sync += [busy.eq(0), done.eq(1)]
        with m.If(take):
            m.d.sync += [busy.eq(1), turn.eq(0), level.eq(1)]
            m.d.sync += [word.eq(value) for word, value in zip(words, loaded, strict=True)]

        active, descending = self._control(m, turn, level)
        shuffled: list[Value] = list(words)
        for pair in range(shape.comparators):
            a, b = words[2 * pair], words[2 * pair + 1]
            reverse = Cat(*(descending[k] for k in range(1, levels) if 2 * pair >> k & 1)).any()
            first, second = exchange(m, f"pair{pair}", shape, a, b, reverse)
            for place, value in ((2 * pair, first), (2 * pair + 1, second)):
                shuffled[_rotate_left(place, levels)] = Mux(active, value, words[place])
        with m.If(busy):
            m.d.sync += [word.eq(value) for word, value in zip(words, shuffled, strict=True)]
        # The last step shuffled once more.
        order = [words[_rotate_left(index, levels)] for index in range(len(words))]
        m.d.comb += self.sorted.payload.as_value().eq(shape.outside(order))
        return m

    def _control(self, m: Module, turn: Signal, level: Signal) -> tuple[Signal, Signal]:
        """Whether this step compares, and which bit of a place means descending (one-hot).

        Level ``s`` compares at turns ``s - 1`` down to 0; an item's bit ``s`` gives the
        direction, which at turn ``r`` is bit ``s - r`` of its place; the last level has none.
        """
        levels = self.shape.levels
        active = Signal()
        descending = Signal(levels)
        distance = Signal(range(levels + 1))
        m.d.comb += [
            active.eq(turn < level),
            distance.eq(level - turn),
        ]
        with m.If(level != levels):
            m.d.comb += descending.eq(Const(1, 1) << distance)
        return active, descending


def _rotate_left(place: int, bits: int) -> int:
    """``place`` rotated by one bit."""
    return (place << 1 | place >> bits - 1) & (1 << bits) - 1


#: Builds by name.
BUILDS: dict[str, Callable[..., PipelinedSorter | IterativeSorter]] = {
    "iterative": IterativeSorter,
    "pipelined": PipelinedSorter,
}


def sorter(
    *, size: int, key_bits: int, payload_bits: int = 0, build: str = "iterative"
) -> PipelinedSorter | IterativeSorter:
    """A sorter of the named build; the iterative one unless a sort a cycle is needed.

    Raises
    ------
    ValueError
        If the build is unknown or a size breaks its rule.
    """
    if build not in BUILDS:
        raise ValueError(f"build must be one of {', '.join(BUILDS)}, got {build!r}")
    return BUILDS[build](size=size, key_bits=key_bits, payload_bits=payload_bits)
