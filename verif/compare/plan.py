"""What a simulator run of the matrix unit is made of: tile products, and the words they need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields

import numpy as np
import numpy.typing as npt

from dstar.gen.config import Config
from dstar.golden.accumulate import accumulate
from dstar.golden.encode import EncodedTile
from dstar.golden.quantize import tile_count
from dstar.golden.schedule import Schedule, schedule
from dstar.verif.packing import Words

Half = npt.NDArray[np.float16]


@dataclass(frozen=True, order=True)
class Place:
    """Where a tile product belongs; ``layer`` is the layer's position among those compared."""

    layer: int
    step: int
    token_tile: int
    k_tile: int
    col_tile: int


@dataclass(frozen=True, eq=False)
class Job:
    """One tile product: `tile`, of which ``tokens`` rows are real, times `weights` (out, in).

    ``y``: where the product is the last of its k tiles and the unit puts out their sum, that
    output in the golden model, binary16 (tokens, out).
    """

    place: Place
    tile: EncodedTile
    weights: npt.NDArray[np.int8]
    tokens: int
    y: Half | None = None

    def expected(self) -> npt.NDArray[np.int64]:
        """Golden sums of the real rows and columns: (tokens, columns)."""
        return accumulate(self.tile, self.weights)[: self.tokens]


@dataclass(eq=False)
class Stimulus:
    """Jobs in order and the words of the matrix unit's input streams, in parts."""

    jobs: list[Job] = field(default_factory=list)
    slices: list[Words] = field(default_factory=list)
    weights: list[Words] = field(default_factory=list)
    command: list[Words] = field(default_factory=list)
    store: list[Words] = field(default_factory=list)
    channel: list[Words] = field(default_factory=list)
    before: list[Words] = field(default_factory=list)

    def add(self, other: Stimulus) -> None:
        """Append another stimulus, to run after this one."""
        for item in fields(self):
            getattr(self, item.name).extend(getattr(other, item.name))

    def streams(self) -> dict[str, Words]:
        """Stream name to words; a stream without words is left out."""
        parts = {item.name: getattr(self, item.name) for item in fields(self)}
        del parts["jobs"]
        return {name: np.concatenate(words) for name, words in parts.items() if words}

    @property
    def outputs(self) -> int:
        """Tiles that leave the unit: jobs that end their k tiles."""
        return sum(job.y is not None for job in self.jobs)

    @property
    def load(self) -> int:
        """The longer of the two operand streams, in words (one a cycle)."""
        return max(sum(map(len, self.slices)), sum(map(len, self.weights)))


def job_schedule(job: Job, cfg: Config) -> Schedule:
    """Compute cycles and busy lane slots of one job; an empty tile takes one cycle."""
    result = schedule(job.tile, cfg.array.lanes)
    return Schedule(max(1, result.beats), result.slices, result.lanes)


def tile_total(tokens: int, inner: int, out: int, cfg: Config) -> int:
    """Tile products of one step of a linear layer."""
    array = cfg.array
    tokens_, k = tile_count(tokens, array.rows), tile_count(inner, cfg.numeric.k_tile)
    return tokens_ * k * tile_count(out, array.cols)


def runs(parts: Iterable[Stimulus], *, cfg: Config, cycles: int) -> Iterator[Stimulus]:
    """Join segments into stimuli of about `cycles` cycles each."""
    current, length = Stimulus(), 0
    for part in parts:
        current.add(part)
        length += max(part.load, len(part.jobs) * cfg.array.cols)
        if length >= cycles:
            yield current
            current, length = Stimulus(), 0
    if current.jobs:
        yield current
