"""Cuts a layer's steps into blocks that the QPU quantizes, and those into stream words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dstar.gen.config import Config
from dstar.verif.compare.plan import Job, Place
from dstar.verif.compare.select import GoldenStep
from dstar.verif.packing import Words, pack_commands, pack_weights
from dstar.verif.qpu.stimulus import Activation, QPUStimulus, stimulus


@dataclass(frozen=True, eq=False)
class Block:
    """One token tile of a layer at one step, with all its channels.

    ``activation``: what the QPU is given.  ``weights``: int8 (out, in), for the MPU behind it; no
    outputs where there is none.
    """

    layer: int
    step: int
    token_tile: int
    activation: Activation
    weights: npt.NDArray[np.int8]

    def jobs(self, cfg: Config) -> Iterator[Job]:
        """Tile products, k tile by k tile; one a k tile, without outputs, if there is no MPU."""
        tokens, k_tile, cols = len(self.activation.x), cfg.numeric.k_tile, cfg.array.cols
        for k, tile in enumerate(self.activation.tiles):
            weights = self.weights[:, k * k_tile : (k + 1) * k_tile]
            for c in range(max(1, -(-len(weights) // cols))):
                place = Place(self.layer, self.step, self.token_tile, k, c)
                yield Job(place, tile, weights[c * cols : (c + 1) * cols], tokens)


@dataclass(eq=False)
class QPURun:
    """Blocks that one simulator run takes, in order.

    ``with_mpu``: whether every quantized tile is also multiplied.
    """

    cfg: Config
    with_mpu: bool
    blocks: list[Block] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)

    def add(self, block: Block) -> None:
        """Append a block."""
        self.blocks.append(block)
        self.jobs.extend(block.jobs(self.cfg))

    @property
    def cycles(self) -> int:
        """About how many cycles the run takes."""
        vectors = sum(block.activation.x.shape[1] for block in self.blocks)
        beats = max(self.cfg.array.cols, self.cfg.numeric.k_tile)
        return max(vectors, len(self.jobs) * beats if self.with_mpu else 0)

    def stimulus(self) -> QPUStimulus:
        """The QPU's words, in and out."""
        return stimulus((block.activation for block in self.blocks), self.cfg)

    def mpu_inputs(self) -> dict[str, Words]:
        """Weights and commands of the MPU: a tile is released after its last product."""
        last = [
            following is None or following.place.col_tile == 0
            for following in (*self.jobs[1:], None)
        ]
        return {
            "weights": np.concatenate([pack_weights(job.weights, self.cfg) for job in self.jobs]),
            "command": pack_commands(np.array(last), np.ones(len(last), bool)),
        }


def blocks(layer: int, golden: GoldenStep, cfg: Config, *, with_mpu: bool) -> Iterator[Block]:
    """The blocks of one step of a layer."""
    rows, result = cfg.array.rows, golden.result
    weights = result.weight.q if with_mpu else result.weight.q[:0]
    for t, start in enumerate(range(0, len(golden.x), rows)):
        part = slice(start, start + rows)
        activation = Activation(
            x=golden.x[part],
            reference=None if golden.reference is None else golden.reference[part],
            table=result.table,
            cfg=cfg,
        )
        yield Block(layer, golden.step, t, activation, weights)


def qpu_runs(
    parts: Iterable[Block], *, cfg: Config, with_mpu: bool, cycles: int
) -> Iterator[QPURun]:
    """Join blocks into runs of about ``cycles`` cycles."""
    current = QPURun(cfg, with_mpu)
    for block in parts:
        current.add(block)
        if current.cycles >= cycles:
            yield current
            current = QPURun(cfg, with_mpu)
    if current.blocks:
        yield current
