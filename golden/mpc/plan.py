"""Tiling of a linear layer for the core: what fits the buffer and moves the fewest bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from dstar.gen.config import Config

from .geometry import Geometry
from .layout import CompileError, LayerShape, Tiling

#: Cycles of the memory that a plan is made for, from an address to its word.
_LATENCY = 40


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a layer runs.

    For every group of ``group`` column tiles, for every ``tokens`` token tiles, for every k tile:
    each token tile is quantized and multiplied by the group's column tiles.  ``inputs``,
    ``outputs``: tiles of x and x̂, and of y, that the buffer holds; ``weights``: weight tiles.
    ``gelu``: the VPU works on outputs where they are, before their place is free; where the last
    token tile lacks tokens, a mask of them has a word in the buffer, so that they stay zero.
    """

    tiling: Tiling
    group: int
    tokens: int
    inputs: int
    outputs: int
    weights: int
    gelu: bool

    @property
    def masked(self) -> bool:
        """Whether activated outputs of missing tokens must be made zero."""
        return self.gelu and self.tiling.missing_tokens > 0

    @property
    def groups(self) -> int:
        """Column groups."""
        return -(-self.tiling.column_tiles // self.group)

    @property
    def weight_words(self) -> int:
        """Words of a weight tile's place."""
        return max(self.tiling.weight_tile_words)

    @property
    def parameter_words(self) -> int:
        """Words of a group's parameters."""
        return self.group * self.tiling.geometry.parameter_words

    @property
    def _weight_columns(self) -> int:
        """Column tiles of weights read in all, each with all its k tiles; tiles that the buffer
        still holds are not read again."""
        last = self.tiling.column_tiles - (self.groups - 1) * self.group
        groups = [self.group] * (self.groups - 1) + [last]
        return sum(n * self._passes(n) for n in groups)

    @property
    def weight_words_read(self) -> int:
        """Words of weights read in all."""
        return sum(self.tiling.weight_tile_words) * self._weight_columns

    def _passes(self, columns: int) -> int:
        """How often a group of so many column tiles reads its weights."""
        tiling = self.tiling
        if self.weights >= len(tiling.k_sizes) * columns:
            return 1
        if self.weights >= columns:
            return -(-tiling.token_tiles // self.tokens)
        return tiling.token_tiles

    @property
    def products(self) -> int:
        """Tile products."""
        tiling = self.tiling
        return tiling.token_tiles * len(tiling.k_sizes) * tiling.column_tiles

    @property
    def instructions(self) -> int:
        """Instructions of a differential step."""
        tiling = self.tiling
        k_tiles = len(tiling.k_sizes)
        tiles = tiling.token_tiles * k_tiles
        outputs = tiling.token_tiles * tiling.column_tiles
        moved = 3 * tiles * self.groups + tiles + k_tiles * self._weight_columns
        masked = tiling.column_tiles + 2 if self.masked else 0
        outputs *= 4 if self.gelu else 2
        return 17 + moved + self.products + outputs + masked + self.groups

    @property
    def words_read(self) -> int:
        """Words read at a differential step, instructions not counted."""
        tiling = self.tiling
        x = 2 * tiling.x_words() * self.groups
        return x + tiling.y_words + tiling.parameter_words + self.weight_words_read

    @property
    def words_written(self) -> int:
        """Words written at any step."""
        return self.tiling.x_words() + self.tiling.y_words * (2 if self.gelu else 1)

    @property
    def array_cycles(self) -> int:
        """Cycles that quantizing and multiplying take at least, one tile after the other.

        A product takes as long as its weights take to enter the MPU or its columns to drain.
        """
        geometry = self.tiling.geometry
        cols, rows = geometry.cfg.array.cols, geometry.weight_channels
        return sum(max(-(-size // rows), cols) for size in self.tiling.k_sizes) * (
            self.products // len(self.tiling.k_sizes)
        )

    @property
    def output_cycles(self) -> int:
        """Cycles that outputs wait for a place in the buffer, about.

        A place is taken while last step's outputs come, columns are computed and leave the array,
        and the new ones go.
        """
        geometry = self.tiling.geometry
        cols, memory = geometry.cfg.array.cols, self.words_read * geometry.beats
        taken = 2 * cols * (geometry.beats + 1) + 2 * _LATENCY
        work = max(cols, memory // self.products)
        outputs = self.tiling.token_tiles * self.tiling.column_tiles
        return outputs * max(0, taken // self.outputs - work)

    @property
    def cost(self) -> int:
        """What the planner makes small: cycles of the memory at full width and of the array, and
        those in which both wait."""
        memory = max(self.words_read, self.words_written) * self.tiling.geometry.beats
        return memory + self.array_cycles + self.output_cycles


def _fixed_words(plan: Plan) -> int:
    """Words of all but the weights."""
    tiling, cols = plan.tiling, plan.tiling.geometry.cfg.array.cols
    inputs = 2 * plan.inputs * max(tiling.k_sizes)
    outputs = plan.outputs * cols
    return inputs + outputs + min(2, plan.groups) * plan.parameter_words + plan.masked


def _candidates(cfg: Config, shape: LayerShape, gelu: bool) -> Iterator[tuple[Plan, int]]:
    """Plans, the preferred kinds first, and the words that they lack: at most zero if they fit."""
    geometry = Geometry(cfg)
    channels = cfg.numeric.k_tile
    while channels:
        tiling = Tiling(geometry, shape, channels)
        many = len(tiling.k_sizes) > 1
        limit = geometry.column_tiles if many else tiling.column_tiles
        # The smallest group of each number of groups.
        columns = tiling.column_tiles
        groups = {-(-columns // n) for n in range(1, columns + 1)}
        for outputs in (3, 4, 6, 2, 1) if gelu else (2, 3, 4, 6, 1):
            for group in sorted(size for size in groups if size <= limit):
                most = min(limit // group if many else tiling.token_tiles, tiling.token_tiles)
                for tokens, inputs in product(sorted({1, min(2, most), most}), (2, 1)):
                    plan = Plan(tiling=tiling, group=group, tokens=tokens, inputs=inputs,
                                outputs=outputs, weights=1, gelu=gelu)  # fmt: skip
                    room = geometry.words - _fixed_words(plan)
                    total = len(tiling.k_sizes) * columns
                    slots = max(1, min(total, room // plan.weight_words))
                    lack = min(2, total) * plan.weight_words - room
                    yield replace(plan, weights=slots), lack
        channels //= 2


def _kind(plan: Plan) -> tuple[int, int]:
    """What is preferred over any cost: large k tiles, then two places for outputs; with a GELU
    three, so that while the VPU has one the next is computed and the one before leaves."""
    return plan.tiling.channels, min(plan.outputs, 3 if plan.gelu else 2)


def plan_layer(cfg: Config, shape: LayerShape, *, gelu: bool = False) -> Plan:
    """The plan of the lowest cost that fits; of the largest k tile that fits at all.

    Raises
    ------
    CompileError
        If the layer has more input channels than the output path can add up, or no tiling fits
        the buffer; the message tells the numbers.
    ConfigError
        If the configuration makes no core.
    """
    limit = cfg.core.k_tiles * cfg.numeric.k_tile
    if shape.inner > limit:
        raise CompileError(
            f"input channels of a layer must be at most {limit} (core.k_tiles {cfg.core.k_tiles} "
            f"of {cfg.numeric.k_tile}), got {shape.inner}"
        )
    best: Plan | None = None
    lacking: int | None = None
    for plan, lack in _candidates(cfg, shape, gelu):
        if best is not None and _kind(plan) != _kind(best):
            break
        if lack > 0:
            lacking = lack if lacking is None else min(lacking, lack)
        elif best is None or plan.cost < best.cost:
            best = plan
    if best is None:
        words = cfg.core.words
        raise CompileError(
            f"the buffer must hold at least {words + (lacking or 0)} words for a layer of "
            f"{shape.inner} x {shape.out} channels, has {words} (core.banks {cfg.core.banks} of "
            f"core.bank_words {cfg.core.bank_words})"
        )
    return best
