"""Order of a layer's tile products, and the places in the buffer that they use in turn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .plan import Plan


@dataclass
class Ring:
    """``places`` places of ``words`` words from ``base`` on, used in turn."""

    base: int
    words: int
    places: int
    used: int = 0

    def take(self) -> tuple[int, bool]:
        """The next place, and whether it was used before, so that it must be free first."""
        place, again = self.used % self.places, self.used >= self.places
        self.used += 1
        return self.base + place * self.words, again

    @property
    def end(self) -> int:
        """First word beyond."""
        return self.base + self.words * self.places


@dataclass(frozen=True)
class Visit:
    """One token tile's k tile, and the column tiles that it meets."""

    group: int
    token_tile: int
    k: int
    columns: range


@dataclass(eq=False)
class WeightUse:
    """A weight tile for one product: its place, whether it must be loaded and whether that place
    was in use before, and whether the product is the last that needs what is replaced later."""

    place: int
    load: bool
    again: bool = False
    frees: bool = False


def visits(plan: Plan) -> list[Visit]:
    """The order of a plan."""
    tiling, out = plan.tiling, []
    for group in range(plan.groups):
        first = group * plan.group
        columns = range(first, min(first + plan.group, tiling.column_tiles))
        for start in range(0, tiling.token_tiles, plan.tokens):
            for k in range(len(tiling.k_sizes)):
                stop = min(start + plan.tokens, tiling.token_tiles)
                out += [Visit(group, t, k, columns) for t in range(start, stop)]
    return out


def weight_uses(plan: Plan, order: Iterable[Visit]) -> list[list[WeightUse]]:
    """Weights of every visit's products; places are refilled in the order they were filled."""
    held: dict[tuple[int, int], int] = {}
    last: dict[tuple[int, int], WeightUse] = {}
    uses: list[list[WeightUse]] = []
    filled = 0
    for visit in order:
        uses.append([])
        for column in visit.columns:
            key = (visit.k, column)
            if key in held:
                use = WeightUse(held[key], load=False)
            else:
                use = WeightUse(filled % plan.weights, load=True, again=filled >= plan.weights)
                filled += 1
                if use.again:
                    old = next(k for k, place in held.items() if place == use.place)
                    del held[old]
                    last[old].frees = True
                held[key] = use.place
            last[key] = use
            uses[-1].append(use)
    return uses


def boundaries(order: list[Visit]) -> Iterator[tuple[Visit, bool, bool]]:
    """Visits, whether each begins a group, and whether it ends one."""
    for n, visit in enumerate(order):
        begins = n == 0 or order[n - 1].group != visit.group
        ends = n + 1 == len(order) or order[n + 1].group != visit.group
        yield visit, begins, ends
