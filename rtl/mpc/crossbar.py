"""Selection of words by one-hot lines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from amaranth.hdl import Cat, Module, Mux
from amaranth.lib import data
from amaranth.lib.wiring import In, Out

from dstar.rtl.hierarchy import Shared, shared

#: Most bits of a word that one crossbar carries.
CROSSBAR_BITS = 128


def choose(one_hot: Any, values: Any) -> Any:
    """The value whose bit is set, else 0."""
    result: Any = 0
    for number in range(len(one_hot)):
        result = result | Mux(one_hot[number], values[number], 0)
    return result


class Crossbar(Shared):
    """Some bits of every word on their way from ``sources`` places to ``targets`` others.

    A whole word passes through several of these: the logic between every pair of places is then
    written once for a part of the width.

    Members
    -------
    selects: for each target its source, one-hot, or zero for no word.
    words: of each source.  selected: for each target its source's word, or 0.
    """

    def __init__(self, *, width: int, sources: int, targets: int) -> None:
        self.width, self.sources, self.targets = width, sources, targets
        super().__init__(
            {
                "selects": In(data.ArrayLayout(sources, targets)),
                "words": In(data.ArrayLayout(width, sources)),
                "selected": Out(data.ArrayLayout(width, targets)),
            }
        )

    @property
    def module_name(self) -> str:
        """Verilog module name."""
        return f"crossbar_{self.width}_{self.sources}to{self.targets}"

    def elaborate(self, platform: Any) -> Module:
        """An OR of ANDs a target."""
        m = Module()
        m.d.comb += [
            self.selected[i].eq(choose(self.selects[i], self.words)) for i in range(self.targets)
        ]
        return m


def crossbars(
    m: Module, platform: Any, name: str, selects: Sequence[Any], words: Sequence[Any], width: int
) -> list[Any]:
    """For each select, the word whose bit is set, through as many crossbars as ``width`` takes."""
    bits = math.gcd(width, CROSSBAR_BITS)
    parts: list[list[Any]] = [[] for _ in selects]
    for number in range(width // bits):
        part = Crossbar(width=bits, sources=len(words), targets=len(selects))
        m.submodules[f"{name}_{number}"] = shared(platform, part)
        m.d.comb += [
            part.selects.eq(Cat(*selects)),
            part.words.eq(Cat(*(word.word_select(number, bits) for word in words))),
        ]
        for i, selected in enumerate(parts):
            selected.append(part.selected[i])
    return [Cat(*selected) for selected in parts]
