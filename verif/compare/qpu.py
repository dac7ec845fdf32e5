"""Comparisons of the QPU, alone or with an MPU behind it, on a dump's linear layers."""

from __future__ import annotations

import itertools
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dstar.gen.config import Config
from dstar.golden.dump import DumpReader
from dstar.golden.linear import FMDQLinear, LayerTables
from dstar.verif.compare.check import JobResult, check
from dstar.verif.compare.plan import job_schedule, tile_total
from dstar.verif.compare.qpu_check import check_tiles, qpu_results, with_tiles
from dstar.verif.compare.qpu_plan import Block, QPURun, blocks, qpu_runs
from dstar.verif.compare.report import CompareError, CompareReport, Figures
from dstar.verif.generated import generate
from dstar.verif.harness import Dut, build_harness
from dstar.verif.player import play
from dstar.verif.process import SimulationError
from dstar.verif.verilate import Build

#: Units by the name that ``dstar compare`` knows: the generated unit.
QPU_UNITS = {"qpu": "qpu", "qpu+mpu": "qpu_mpu"}
#: About how many cycles one run of the simulator takes, where there is enough to do.
RUN_CYCLES = 65_536
#: Seed of the simulator's own randomness: comparisons must not vary.
SEED = 1

#: Called with the tile products done and those in all, from any thread.
Progress = Callable[[int, int], None]


class _CancelledError(Exception):
    """Raised inside a simulation that is not wanted any more."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CheckedRun:
    """One finished run: its results, its simulation time, the MPU's cycle counters."""

    results: list[JobResult]
    seconds: float
    counted: tuple[int, int] | None


@dataclass(frozen=True, eq=False)
class QPUSimulator:
    """Plays runs through one build; call it from several threads at once."""

    cfg: Config
    unit: str
    build: Build
    dut: Dut
    folder: Path
    _number: Iterator[int] = field(default_factory=itertools.count)

    @property
    def with_mpu(self) -> bool:
        """Whether an MPU follows the QPU."""
        return self.unit == "qpu+mpu"

    def __call__(self, run: QPURun, poll: Callable[[], None]) -> CheckedRun:
        """Simulate a run and check every word.

        Raises
        ------
        SimulationError
            If the simulator fails, hangs, or the unit loses or invents a word.
        """
        want = run.stimulus()
        inputs, expect = dict(want.inputs), {k: len(v) for k, v in want.outputs.items()}
        timed = "slices"
        if self.with_mpu:
            inputs["quantize"] = inputs.pop("command")
            inputs |= run.mpu_inputs()
            del expect["slices"]
            timed = "output"
            expect[timed] = len(run.jobs) * self.cfg.array.cols
        folder = self.folder / f"run-{next(self._number)}"
        result = play(
            self.build,
            self.dut,
            inputs=inputs,
            expect=expect,
            seed=SEED,
            stamps=True,
            max_cycles=1_000 + 8 * sum(map(len, inputs.values())) + 8 * sum(expect.values()),
            folder=folder,
            progress=lambda _: poll(),
        )
        shutil.rmtree(folder, ignore_errors=True)
        wrong = check_tiles(run, want, result.outputs)
        counted = None
        if self.with_mpu:
            sums = check(run.jobs, result.outputs[timed], result.stamps[timed], self.cfg)
            results = with_tiles(sums, wrong)
            counted = (result.probes["perf__beats"], result.probes["perf__slots"])
        else:
            results = qpu_results(run, wrong, result.stamps[timed])
        return CheckedRun(results=results, seconds=result.wall_s, counted=counted)


@contextmanager
def qpu_simulator(cfg: Config, unit: str = "qpu") -> Iterator[QPUSimulator]:
    """Generate and compile the unit (or find it in the cache), ready to simulate.

    Everything but the cached build is removed at the end; after a failed simulation its folder
    stays, since the error names the log in it.

    Raises
    ------
    CompareError
        If the unit is unknown.
    ToolError, SimulationError
        If there is no usable Verilator or compiler, or the build fails.
    """
    if unit not in QPU_UNITS:
        raise CompareError(f"unit must be one of {', '.join(QPU_UNITS)}, got {unit!r}")
    folder = Path(tempfile.mkdtemp(prefix="dstar-compare-"))
    keep = False
    try:
        dut = generate(QPU_UNITS[unit], cfg, folder / "verilog")
        yield QPUSimulator(cfg, unit, build_harness(dut), dut, folder)
    except SimulationError:
        keep = True
        raise
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def compare_qpu(
    dump: DumpReader,
    cfg: Config,
    simulator: QPUSimulator,
    *,
    tables: Mapping[str, LayerTables],
    layers: str = "*",
    steps: range | None = None,
    jobs: int = 2,
    progress: Progress | None = None,
) -> CompareReport:
    """Compare on every linear layer that matches, bit by bit, as :func:`~..session.compare`.

    Every difference, bin, code, order, header and reference of the QPU, and, with the MPU, every
    sum of every tile product.  The golden model runs from step 0 in every case.

    Raises
    ------
    DumpError
        If no layer matches or a tensor is refused.
    CompareError
        If the steps or jobs are out of range, or the MPU's cycle counters contradict the
        schedule while its results are right.
    """
    start = time.monotonic()
    names = dump.match(layers)
    chosen = dump.steps if steps is None else steps
    if chosen.step != 1 or not 0 <= chosen.start < chosen.stop <= len(dump.steps):
        raise CompareError(
            f"steps must be A:B with 0 <= A < B <= {len(dump.steps)}, "
            f"got {chosen.start}:{chosen.stop}"
        )
    if jobs < 1:
        raise CompareError(f"jobs must be at least 1, got {jobs}")
    figures = tuple(Figures(lanes=cfg.array.lanes) for _ in names)
    shapes = [dump.layer(name) for name in names]
    outs = [s.out_features if simulator.with_mpu else 1 for s in shapes]
    total = len(chosen) * sum(
        tile_total(s.tokens, s.in_features, out, cfg) for s, out in zip(shapes, outs, strict=True)
    )

    def parts() -> Iterator[Block]:
        for i, name in enumerate(names):
            yield from _layer(dump, i, name, simulator, tables[name], chosen, figures[i])

    done = 0
    planned = qpu_runs(parts(), cfg=cfg, with_mpu=simulator.with_mpu, cycles=RUN_CYCLES)
    for run in _simulate(planned, simulator, jobs):
        _count(run, figures, cfg)
        done += len(run.results)
        if progress is not None:
            progress(done, total)
    return CompareReport(
        unit=simulator.unit,
        preset=cfg.preset,
        config_hash=cfg.hash,
        dump=dump.path.name,
        lanes=cfg.array.lanes,
        steps=chosen,
        names=names,
        layers=figures,
        tables=tuple(tables[name].delta.name for name in names),
        seconds=time.monotonic() - start,
    )


def _layer(
    dump: DumpReader,
    index: int,
    name: str,
    simulator: QPUSimulator,
    tables: LayerTables,
    steps: range,
    figures: Figures,
) -> Iterator[Block]:
    """Golden run of one layer: its blocks, with bits and errors noted in ``figures``."""
    cfg = simulator.cfg
    layer = FMDQLinear(dump.w(name), dump.b(name), tables=tables, cfg=cfg)
    for step in range(steps.stop):
        clipped = sum(dump.saturated.values())
        reference, x = layer.reference, dump.x(name, step)
        result = layer.step(x)
        if step not in steps:
            continue
        y = dump.y(name, step).astype(np.float64)
        figures.values += result.q.size
        figures.bits += result.average_bits * result.q.size
        figures.signal += float(np.square(y).sum())
        figures.noise += float(np.square(result.y_carrier - y).sum())
        figures.clipped += sum(dump.saturated.values()) - clipped
        figures.saturated += result.saturated
        reference = None if result.keyframe else reference
        yield from blocks(index, step, x, reference, result, cfg, with_mpu=simulator.with_mpu)


def _simulate(
    planned: Iterator[QPURun], simulator: QPUSimulator, jobs: int
) -> Iterator[CheckedRun]:
    """Run in ``jobs`` threads, with one more planned ahead; an early end stops them all."""
    cancelled = threading.Event()

    def poll() -> None:
        if cancelled.is_set():
            raise _CancelledError

    pending: set[Future[CheckedRun]] = set()
    with ThreadPoolExecutor(jobs, thread_name_prefix="compare") as pool:
        try:
            for run in planned:
                while len(pending) > jobs:
                    finished, pending = wait(pending, return_when=FIRST_COMPLETED)
                    yield from (future.result() for future in finished)
                pending.add(pool.submit(simulator, run, poll))
            while pending:
                finished, pending = wait(pending, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in finished)
        finally:
            cancelled.set()
            pool.shutdown(cancel_futures=True)


def _count(run: CheckedRun, figures: tuple[Figures, ...], cfg: Config) -> None:
    """Add a run to the layers' figures; the MPU's counters must be what the schedule says."""
    cycles = sum(result.cycles for result in run.results)
    beats = slots = 0
    for result in run.results:
        schedule = job_schedule(result.job, cfg)
        if run.counted is not None:
            beats += schedule.beats
            slots += schedule.slices
        figures[result.job.place.layer].add_job(
            result,
            beats=schedule.beats if run.counted is not None else 0,
            seconds=run.seconds * result.cycles / cycles if cycles else 0.0,
        )
    right = not any(result.mismatches for result in run.results)
    if run.counted is not None and right and run.counted != (beats, slots):
        raise CompareError(
            f"the unit's counters contradict the schedule over {len(run.results)} tile products: "
            f"{beats} compute cycles and {slots} lane slots expected, it counted "
            f"{run.counted[0]} and {run.counted[1]}"
        )
