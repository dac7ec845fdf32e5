"""What a sorting network sorts, and its one part: the comparator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, unsigned
from amaranth.lib import data

#: Most items of a sorter.
MAX_SIZE = 4096


@dataclass(frozen=True, kw_only=True)
class SorterShape:
    """What is sorted: ``size`` items of ``key_bits`` (unsigned) and ``payload_bits``.

    Raises
    ------
    ValueError
        If a value breaks its rule; the message states it.
    """

    size: int
    key_bits: int
    payload_bits: int = 0

    def __post_init__(self) -> None:
        for name, low, high in (
            ("size", 2, MAX_SIZE),
            ("key_bits", 1, 64),
            ("payload_bits", 0, 1024),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"{name} must be from {low} to {high}, got {value}")

    @property
    def levels(self) -> int:
        """Merge stages: log2 of the size, rounded up."""
        return (self.size - 1).bit_length()

    @property
    def columns(self) -> int:
        """Columns of comparators of the network, ``levels * (levels + 1) / 2``."""
        return self.levels * (self.levels + 1) // 2

    @property
    def comparators(self) -> int:
        """Comparators of a column."""
        return (1 << self.levels) // 2

    @property
    def item(self) -> data.StructLayout:
        """One item as users see it."""
        fields = {"payload": unsigned(self.payload_bits)} if self.payload_bits else {}
        return data.StructLayout({"key": unsigned(self.key_bits), **fields})

    @property
    def items(self) -> data.ArrayLayout:
        """All items, first to last."""
        return data.ArrayLayout(self.item, self.size)

    @property
    def ordered(self) -> data.ArrayLayout:
        """All items in order, each with its ``index``, the place it came from."""
        fields = {"index": unsigned(self.levels), **{n: f.shape for n, f in self.item}}
        return data.ArrayLayout(data.StructLayout(fields), self.size)

    def inside(self, items: Any) -> list[Value]:
        """Words of the network: payload, index, key from the least significant bit.

        The index makes all words distinct, so the network, which is not stable, sorts stably.
        Places beyond ``size`` hold the largest key and larger indices: they stay behind.
        """
        words: list[Value] = []
        for index in range(1 << self.levels):
            place = Const(index, self.levels)
            if index < self.size:
                payload = items[index].payload if self.payload_bits else Const(0, 0)
                words.append(Cat(payload, place, items[index].key))
            else:
                fill = Const((1 << self.key_bits) - 1, self.key_bits)
                words.append(Cat(Const(0, self.payload_bits), place, fill))
        return words

    def outside(self, words: Sequence[Value]) -> Value:
        """Items of the first ``size`` words."""
        low, high = self.payload_bits, self.payload_bits + self.levels
        return Cat(*(Cat(word[low:high], word[high:], word[:low]) for word in words[: self.size]))

    def less(self, a: Value, b: Value) -> Value:
        """Whether word ``a`` comes before ``b``, by (key, index)."""
        return a[self.payload_bits :] < b[self.payload_bits :]


def exchange(
    m: Module, name: str, shape: SorterShape, a: Value, b: Value, descending: Value
) -> tuple[Value, Value]:
    """One comparator: ``a`` and ``b`` in order, or in descending order."""
    swap = Signal(name=f"{name}_swap")
    first, second = (Signal(len(a), name=f"{name}_{end}") for end in ("first", "second"))
    m.d.comb += [
        swap.eq(shape.less(b, a) ^ descending),
        first.eq(Mux(swap, b, a)),
        second.eq(Mux(swap, a, b)),
    ]
    return first, second
