"""When the QPU and the MPU behind it work on which tile, measured in the simulator."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dstar.gen.config import Config
from dstar.gen.emit import emit
from dstar.golden.bins import BinTable
from dstar.golden.schedule import schedule
from dstar.verif.compare.check import check
from dstar.verif.compare.plan import Job, Place
from dstar.verif.generated import dut_from_manifest, generate
from dstar.verif.harness import build_harness
from dstar.verif.packing import pack_commands, pack_weights
from dstar.verif.player import play
from dstar.verif.qpu.stimulus import Activation, QPUStimulus, stimulus

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Timeline:
    """Cycles, counted from the start of the simulation.

    ``arrives``: first and last token vector of each tile, as it enters the QPU (tiles, 2).
    ``leaves``: first and last encoded word of each tile, as it enters the MPU (tiles, 2).
    ``drains``: first and last output column of each tile product (products, 2).  ``beats``:
    compute cycles of each product.  ``alone``: last output column of each product in an MPU that
    is given the same tiles, encoded before.  ``bits``: average precision of the tiles.
    """

    arrives: Int64
    leaves: Int64
    drains: Int64
    beats: Int64
    alone: Int64
    bits: float

    @property
    def products(self) -> int:
        """Column tiles of each tile."""
        return len(self.beats) // len(self.arrives)

    @property
    def waits(self) -> Int64:
        """Cycles by which each product is later, against the first, than in an MPU alone.

        The lone MPU finds every encoded tile ready, so this is what the QPU costs it.
        """
        lag = self.drains[:, 1] - self.alone
        return np.maximum(lag - lag[0], 0)


def measure(
    cfg: Config, folder: Path, *, tiles: int, products: int, table: BinTable, scale: float
) -> Timeline:
    """Quantize tiles of normally distributed differences; multiply each by column tiles.

    Parameters
    ----------
    products:
        Column tiles that use a tile.
    scale:
        Standard deviation of the differences, which vary by channel around it.

    Raises
    ------
    SimulationError
        If the simulation fails.
    RuntimeError
        If a sum is wrong.
    """
    rng = np.random.default_rng(1)
    rows, k_tile, cols = cfg.array.rows, cfg.numeric.k_tile, cfg.array.cols
    shape = (rows, tiles * k_tile)
    reference = rng.normal(size=shape).astype(np.float16)
    spread = scale * 2.0 ** rng.normal(size=(1, shape[1]))
    x = (reference + spread * rng.normal(size=shape)).astype(np.float16)
    activation = Activation(x=x, reference=reference, table=table, cfg=cfg)
    jobs = [
        Job(
            Place(0, 0, 0, k, c),
            tile,
            rng.integers(-127, 128, (cols, k_tile)).astype(np.int8),
            rows,
        )
        for k, tile in enumerate(activation.tiles)
        for c in range(products)
    ]
    want = stimulus([activation], cfg)
    last = np.arange(len(jobs)) % products == products - 1
    inputs: dict[str, Any] = {
        "quantize": want.inputs["command"],
        "x": want.inputs["x"],
        "reference": want.inputs["reference"],
        "weights": np.concatenate([pack_weights(job.weights, cfg) for job in jobs]),
        "command": pack_commands(last, np.ones(len(jobs), bool)),
    }
    manifest = emit("qpu_mpu", cfg, folder / "qpu_mpu")
    dut = dut_from_manifest(folder / "qpu_mpu", manifest)
    result = play(
        build_harness(dut),
        dut,
        inputs=inputs,
        expect={
            "header": tiles,
            "next_reference": tiles * k_tile,
            "output": len(jobs) * cols,
        },
        stamps=True,
        max_cycles=1_000 + 20 * k_tile * len(jobs),
    )
    stamps = {name: values.astype(np.int64) for name, values in result.stamps.items()}
    results = check(jobs, result.outputs["output"], result.stamps["output"], cfg)
    if any(r.mismatches for r in results):
        raise RuntimeError("a sum of the timeline's tile products is wrong")
    latency = manifest["latency"]["next_reference"]
    vectors = stamps["next_reference"].reshape(tiles, k_tile) - latency
    # A tile's words begin when its last vector has passed, and leave one a cycle.
    words = np.array([max(1, -(-t.slices // cfg.array.lanes)) for t in activation.tiles])
    ends = stamps["header"]
    return Timeline(
        arrives=vectors[:, [0, -1]],
        leaves=np.stack([ends - words + 1, ends], axis=1),
        drains=stamps["output"].reshape(len(jobs), cols)[:, [0, -1]],
        beats=np.array([schedule(job.tile, cfg.array.lanes).beats for job in jobs]),
        alone=_alone(cfg, folder / "mpu", want, inputs, len(jobs)),
        bits=activation.quantized.average_bits,
    )


def _alone(
    cfg: Config, folder: Path, want: QPUStimulus, inputs: dict[str, Any], products: int
) -> Int64:
    """Cycle of the last output column of each product in an MPU without a QPU."""
    dut = generate("mpu", cfg, folder)
    result = play(
        build_harness(dut),
        dut,
        inputs={
            "slices": want.outputs["slices"],
            "weights": inputs["weights"],
            "command": inputs["command"],
        },
        expect={"output": products * cfg.array.cols},
        stamps=True,
    )
    return result.stamps["output"].astype(np.int64)[cfg.array.cols - 1 :: cfg.array.cols]
