"""Lower bounds on a layer's cycles at a differential step.

:class:`Bounds`, engine by engine, from a layer's plan: every engine is taken to work without a
pause, at one word a cycle, and all at the same time; so a layer takes at least as long as its
slowest engine, and the array is busy at most :attr:`Bounds.utilization` of the time.

:class:`AnyOrder`, of the memory alone, for every layer and every order of its products.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt

from dstar.gen.config import SLICE_BITS, Config

from .forms import INSTRUCTION_BYTES
from .geometry import HALF_BYTES
from .plan import Plan


@dataclass(frozen=True)
class Bounds:
    """Bounds of one plan.

    ``bits``: average precision of the sub-channels.  ``bytes_per_cycle``: of the memory, both
    directions together.  ``once``: count every tensor once, as if the buffer and the kept sums
    held a whole layer.
    """

    plan: Plan
    bits: float
    bytes_per_cycle: float
    once: bool = False

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
        rows = sum(-(-size // tiling.geometry.weight_channels) for size in tiling.k_sizes)
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


@dataclass(frozen=True)
class AnyOrder:
    """How few bytes the memory can move for a product (a multiply-accumulate), and how busy that
    leaves the array; :meth:`utilization` holds for a layer of any size in any order.

    Proof.  For each element the memory moves at least 2 bytes of an activation (its reference is
    left out: an order could keep differences), 1 of a weight, 4 of an output (the last one in, the
    new one out).  In a stretch of M bytes in all, products are made of A activations, B weights
    and C outputs, each of which was moved, or held at the stretch's start (operands) or end
    (outputs): 2 A + B + 4 C <= M + :attr:`held`.  By Loomis and Whitney they are at most
    sqrt(A B C), and A B C at most ((M + held) / 3)**3 / 8.  With M = 2 held, a layer of P products
    moves at least P sqrt(32 / held) - 2 held bytes.  Layers that are small enough for the last
    term to matter move more than that: each tensor once is 6 / N + 1 / T + 4 / K bytes a product.
    """

    cfg: Config
    bits: float
    bytes_per_cycle: float

    @property
    def held(self) -> int:
        """Bytes that need not be moved in a stretch, for what the core holds at its ends.

        A byte of the buffer counts twice, for an operand at the start and an output at the end.  At
        most two tiles of activations are in the QPU and two in the MPU, with two of weights; three
        of sums are in the array and on their way out of it.
        """
        array, numeric, core = self.cfg.array, self.cfg.numeric, self.cfg.core
        buffer = 2 * core.words * HALF_BYTES * array.rows
        operands = numeric.k_tile * (4 * HALF_BYTES * array.rows + 2 * array.cols)
        sums = array.rows * (core.columns + 3 * array.cols)
        return buffer + operands + 4 * sums

    @property
    def products_per_cycle(self) -> float:
        """Of a busy array."""
        array = self.cfg.array
        return array.rows * array.cols * array.lanes * SLICE_BITS / self.bits

    def allowed(self, utilization: float) -> float:
        """Bytes that the memory gives for a product at a utilization."""
        return self.bytes_per_cycle / (utilization * self.products_per_cycle)

    @property
    def utilization(self) -> float:
        """Most that the array can be busy, of all the time of any layer."""

        def possible(utilization: float) -> bool:
            allowed = self.allowed(utilization)
            # The mean of three terms bounds their product, so that P >= 648 / allowed**3.
            return sqrt(32 / self.held) - 2 * self.held * allowed**3 / 648 <= allowed

        low, high = 0.0, 1.0
        if possible(high):
            return high
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if possible(middle) else (low, middle)
        return low

    @property
    def sums(self) -> int:
        """Sums that the output path keeps."""
        return self.cfg.array.rows * self.cfg.core.columns

    @property
    def blocked(self) -> float:
        """Likewise where sums stay until they are whole, and each tile of them reads its operands,
        as the compiler has it, for layers of more than one k tile.

        A tile of p tokens and q columns reads 4 p + q bytes a channel, with the references, for
        p q products.  (Sums of a single k tile are not kept, but then outputs alone are
        4 / k_tile bytes a product.)
        """
        return min(1.0, self.bytes_per_cycle / (self.products_per_cycle * 4 / sqrt(self.sums)))

    def needed_sums(self, utilization: float) -> int:
        """Sums that must be kept for :attr:`blocked` to be a utilization."""
        return round((4 / self.allowed(utilization)) ** 2)

    def needed_bytes(self, utilization: float) -> float:
        """Bytes a cycle that the memory must give for that, with the sums that there are."""
        return utilization * self.products_per_cycle * 4 / sqrt(self.sums)
