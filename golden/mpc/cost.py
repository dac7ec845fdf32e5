"""Lower bounds on a layer's cycles at a differential step, engine by engine, from its plan.

Every engine is taken to work without a pause, at one word a cycle, and all at the same time; so a
layer takes at least as long as its slowest engine, and the array is busy at most
:attr:`Bounds.utilization` of the time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from dstar.gen.config import SLICE_BITS

from .forms import INSTRUCTION_BYTES
from .plan import Plan


@dataclass(frozen=True)
class Bounds:
    """Bounds of one plan.

    ``bits``: average precision of the sub-channels.  ``bytes_per_cycle``: of the memory, both
    directions together.  ``once``: count every tensor once, as if the buffer and the kept sums
    held a whole layer.  ``rows_per_cycle``: weight rows that enter the MPU a cycle.
    """

    plan: Plan
    bits: float
    bytes_per_cycle: float
    once: bool = False
    rows_per_cycle: int = 1

    @cached_property
    def traffic(self) -> dict[str, int]:
        """Bytes by tensor: in, ``x``, ``reference``, ``weights`` (with parameters), ``before``,
        ``program``; out, ``next`` and ``y``."""
        plan = self.plan
        tiling = plan.tiling
        word = tiling.geometry.word_bytes
        x = tiling.x_words() * word
        passes = 1 if self.once else plan.groups
        weights = tiling.weight_words if self.once else plan.weight_words_read
        return {
            "x": x * passes,
            "reference": x * passes,
            "weights": (weights + tiling.parameter_words) * word,
            "before": tiling.y_words * word,
            "program": 0 if self.once else plan.instructions * INSTRUCTION_BYTES,
            "next": x,
            "y": tiling.y_words * word,
        }

    @property
    def memory(self) -> float:
        """Cycles of the memory."""
        return sum(self.traffic.values()) / self.bytes_per_cycle

    @property
    def beats(self) -> float:
        """Cycles in which the array computes, if every beat fills its lanes."""
        tiling = self.plan.tiling
        lanes = tiling.geometry.cfg.array.lanes
        slices = tiling.shape.inner * self.bits / SLICE_BITS
        return tiling.token_tiles * tiling.column_tiles * slices / lanes

    @property
    def drain(self) -> int:
        """Cycles in which columns leave the array: one a column of every product."""
        return self.plan.products * self.plan.tiling.geometry.cfg.array.cols

    @property
    def weight_rows(self) -> int:
        """Cycles in which weights enter the MPU, for every product."""
        tiling = self.plan.tiling
        rows = sum(-(-size // self.rows_per_cycle) for size in tiling.k_sizes)
        return tiling.token_tiles * tiling.column_tiles * rows

    @property
    def quantize(self) -> int:
        """Cycles of the QPU, a vector a cycle."""
        return self.plan.tiling.x_words() * (1 if self.once else self.plan.groups)

    @property
    def cycles(self) -> float:
        """The slowest engine's; ``once`` leaves out what another order could save."""
        array = max(self.beats, self.drain)
        inside = array if self.once else max(array, self.weight_rows, self.quantize)
        return max(inside, self.memory)

    @property
    def utilization(self) -> float:
        """Most that the array's beats can be of all cycles."""
        return self.beats / self.cycles

    def needed_bytes(self, utilization: float) -> float | None:
        """Bytes a cycle that the memory must give for a utilization; None if another engine is
        too slow for it."""
        cycles = self.beats / utilization
        free = replace(self, bytes_per_cycle=float("inf"))
        return sum(self.traffic.values()) / cycles if free.cycles <= cycles else None
