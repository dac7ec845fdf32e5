"""The generated VPU in Verilator against its golden model, on a dump's values."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dstar.gen.config import Config
from dstar.golden.dump import DumpReader
from dstar.verif.compare.check import Mismatch
from dstar.verif.compare.plan import Place
from dstar.verif.compare.report import CompareReport, Figures
from dstar.verif.compare.vpu_plan import Work, layer_work
from dstar.verif.generated import generate
from dstar.verif.harness import Dut, build_harness
from dstar.verif.verilate import Build
from dstar.verif.vpu_run import run_programs

#: Seed of the simulator's own randomness: comparisons must not vary.
SEED = 1
#: Called with the operations done and those in all.
Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class VPUSimulator:
    """One build of the VPU."""

    cfg: Config
    build: Build
    dut: Dut


@contextmanager
def vpu_simulator(cfg: Config) -> Iterator[VPUSimulator]:
    """Generate and compile the VPU (or find it in the cache).

    Raises
    ------
    ToolError, SimulationError
        If there is no usable Verilator or compiler, or the build fails.
    """
    with tempfile.TemporaryDirectory(prefix="dstar-compare-") as folder:
        dut = generate("vpu", cfg, Path(folder))
        yield VPUSimulator(cfg, build_harness(dut), dut)


def compare_vpu(
    dump: DumpReader,
    simulator: VPUSimulator,
    *,
    layers: str = "*",
    steps: range | None = None,
    progress: Progress | None = None,
) -> CompareReport:
    """Run every operation of :func:`dstar.verif.compare.vpu_plan.layer_work`, bit by bit.

    In the report a tile is one operation on one token tile; ``sqnr_db`` compares the golden
    model with the exact function of the same binary16 operands.

    Raises
    ------
    DumpError
        If no layer matches or a tensor is refused.
    SimulationError
        If the simulator fails, or the unit loses or invents a vector.
    """
    start = time.monotonic()
    names = dump.match(layers)
    chosen = dump.steps if steps is None else steps
    cfg = simulator.cfg
    figures = tuple(Figures(lanes=cfg.array.lanes) for _ in names)
    done, total = 0, len(names) * len(chosen)
    for layer, name in enumerate(names):
        for step in chosen:
            for work in layer_work(dump, name, step, cfg):
                _play(simulator, work, figures[layer], layer, step)
            done += 1
            if progress is not None:
                progress(done, total)
    return CompareReport(
        unit="vpu",
        preset=cfg.preset,
        config_hash=cfg.hash,
        dump=dump.path.name,
        lanes=cfg.array.lanes,
        steps=chosen,
        names=names,
        layers=figures,
        seconds=time.monotonic() - start,
    )


def _play(simulator: VPUSimulator, work: Work, figures: Figures, layer: int, step: int) -> None:
    """Run an operation, tile after tile, and note what it did."""
    count, tiles, rows = work.golden.shape
    by_tile = np.ascontiguousarray(work.vectors.transpose(1, 0, 2)).reshape(-1, rows)
    got, result = run_programs(
        simulator.build, simulator.dut, work.programs * tiles, by_tile, seed=SEED
    )
    bits = got.view(np.uint16).reshape(tiles, count, rows)
    want = np.ascontiguousarray(work.golden.transpose(1, 0, 2)).view(np.uint16)
    real = np.arange(tiles * rows).reshape(tiles, 1, rows) < work.tokens
    wrong = (bits != want) & real
    if wrong.any():
        tile, vector, row = (int(i) for i in np.argwhere(wrong)[0])
        first = Mismatch(
            Place(layer, step, tile, 0, 0),
            vector,
            row,
            work.what,
            int(want[tile, vector, row]),
            int(bits[tile, vector, row]),
        )
        figures.first = min(figures.first or first, first)
    figures.tiles += tiles
    figures.mismatches += int(wrong.sum())
    figures.cycles += result.cycles
    figures.seconds += result.wall_s
    exact = work.exact.reshape(len(work.exact), -1)[:, : work.tokens]
    golden = work.golden[work.result :].astype(np.float64).reshape(len(exact), -1)
    figures.signal += float(np.square(exact).sum())
    figures.noise += float(np.square(golden[:, : work.tokens] - exact).sum())
