"""Runs a dump's linear layers through the golden model and a simulated unit, side by side."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from dstar.gen.config import Config, ConfigError
from dstar.golden.dump import DumpReader
from dstar.golden.linear import FMDQLinear, LayerTables, LinearStep
from dstar.golden.schedule import Schedule
from dstar.verif.compare.check import JobResult, check
from dstar.verif.compare.plan import Stimulus, job_schedule, runs, segments, tile_total
from dstar.verif.compare.report import CompareError, CompareReport, Figures
from dstar.verif.compare.simulate import Simulator

#: About how many cycles one run of the simulator takes, where there is enough to do.
RUN_CYCLES = 65_536
#: Fewest cycles worth a start of the simulator.
MIN_RUN_CYCLES = 4_096
#: Encoded slices, in bytes, of the steps of a layer that are planned together.
WINDOW_BYTES = 64 * 2**20

#: Called with the tile products done and those in all, from any thread.
Progress = Callable[[int, int], None]


class _CancelledError(Exception):
    """Raised inside a simulation that is not wanted any more."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Finished:
    """One checked run."""

    results: list[JobResult]
    schedules: list[Schedule]
    seconds: float
    counted: tuple[int, int]


class _Meter:
    """Adds up the progress of runs in several threads."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._total = total
        self._progress = progress
        self._done: dict[int, int] = {}
        self._lock = threading.Lock()

    def update(self, run: int, tiles: int) -> None:
        """Note how many tile products a run has finished."""
        with self._lock:
            self._done[run] = tiles
            if self._progress is not None:
                self._progress(sum(self._done.values()), self._total)


def _check_steps(steps: range | None, total: int, given: object) -> None:
    if steps is None or steps.step != 1 or not 0 <= steps.start < steps.stop <= total:
        raise CompareError(f"steps must be A:B with 0 <= A < B <= {total}, got {given!r}")


def parse_steps(text: str, total: int) -> range:
    """The steps that ``A:B``, ``A:``, ``:B`` or ``A`` means in a dump of `total` steps.

    Raises
    ------
    CompareError
        If it means none.
    """
    steps = None
    if match := re.fullmatch(r"([0-9]*)(:?)([0-9]*)", text):
        first, colon, last = match.groups()
        if colon:
            steps = range(int(first or 0), int(last or total))
        elif first:
            steps = range(int(first), int(first) + 1)
    _check_steps(steps, total, text)
    assert steps is not None
    return steps


def compare(
    dump: DumpReader,
    cfg: Config,
    simulator: Simulator,
    *,
    tables: Mapping[str, LayerTables],
    layers: str = "*",
    steps: range | None = None,
    jobs: int = 2,
    progress: Progress | None = None,
    unit: str = "mpu",
) -> CompareReport:
    """Compare a unit with the golden model on every linear layer that matches, bit by bit.

    The golden model runs from step 0 in every case, so that compared steps have their history.

    Parameters
    ----------
    simulator:
        Runs the unit; see :func:`dstar.verif.compare.mpu.mpu_simulator`.
    tables:
        Bin tables by layer.
    layers:
        Glob over layer names.
    steps:
        Denoising steps to compare; all by default.
    jobs:
        Simulators at once.

    Raises
    ------
    DumpError
        If no layer matches or a tensor is refused.
    CompareError
        If the steps or jobs are out of range, or the unit's cycle counters contradict the
        schedule while its results are right.
    """
    start = time.monotonic()
    names = dump.match(layers)
    chosen = dump.steps if steps is None else steps
    _check_steps(chosen, len(dump.steps), chosen)
    if jobs < 1:
        raise CompareError(f"jobs must be at least 1, got {jobs}")
    shapes = [dump.layer(name) for name in names]
    counts = [tile_total(s.tokens, s.in_features, s.out_features, cfg) for s in shapes]
    total = sum(counts) * len(chosen)
    figures = tuple(Figures(lanes=cfg.array.lanes) for _ in names)

    def parts() -> Iterator[Stimulus]:
        for i, name in enumerate(names):
            yield from _layer(dump, i, name, cfg, tables[name], chosen, figures[i])

    share = total * cfg.array.cols // (2 * jobs)
    length = min(RUN_CYCLES, max(MIN_RUN_CYCLES, share))
    meter = _Meter(total, progress)
    stimuli = runs(parts(), cfg=cfg, cycles=length)
    with closing(_simulate(stimuli, simulator, cfg, jobs, meter)) as finished:
        for done in finished:
            _count(done, figures)
    return CompareReport(
        unit=unit,
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
    cfg: Config,
    tables: LayerTables,
    steps: range,
    figures: Figures,
) -> Iterator[Stimulus]:
    """Golden run of one layer: its segments, with bits and errors noted in `figures`."""
    try:
        layer = FMDQLinear(dump.w(name), dump.b(name), tables=tables, cfg=cfg)
    except ConfigError:
        raise
    except ValueError as error:
        raise CompareError(f"{dump.path}: {name}: {error}") from None
    window: list[tuple[int, LinearStep]] = []
    size = 0
    for step in range(steps.stop):
        result = layer.step(dump.x(name, step))
        if step not in steps:
            continue
        y = dump.y(name, step).astype(np.float64)
        figures.values += result.q.size
        figures.bits += result.average_bits * result.q.size
        figures.signal += float(np.square(y).sum())
        figures.noise += float(np.square(result.y_carrier - y).sum())
        figures.clipped += dump.saturated.get(dump.layer(name).steps["x"][step].key, 0)
        figures.saturated += result.saturated
        window.append((step, result))
        size += result.slices * cfg.array.rows
        if size >= WINDOW_BYTES:
            yield from segments(index, window, cfg)
            window, size = [], 0
    if window:
        yield from segments(index, window, cfg)


def _simulate(
    stimuli: Iterator[Stimulus], simulator: Simulator, cfg: Config, jobs: int, meter: _Meter
) -> Generator[_Finished]:
    """Run and check stimuli in `jobs` threads, with one more planned ahead.

    Whatever ends it early (an error, Ctrl-C) ends the simulations that are running.
    """
    cancelled = threading.Event()

    def run(number: int, stimulus: Stimulus) -> _Finished:
        def poll(words: int) -> None:
            if cancelled.is_set():
                raise _CancelledError
            meter.update(number, min(words // cfg.array.cols, len(stimulus.jobs)))

        poll(0)
        played = simulator(stimulus, poll)
        results = check(stimulus.jobs, played.words, played.stamps, cfg)
        meter.update(number, len(stimulus.jobs))
        return _Finished(
            results=results,
            schedules=[job_schedule(job, cfg) for job in stimulus.jobs],
            seconds=played.seconds,
            counted=(played.beats, played.slots),
        )

    pending: set[Future[_Finished]] = set()
    with ThreadPoolExecutor(jobs, thread_name_prefix="compare") as pool:
        try:
            for number, stimulus in enumerate(stimuli):
                while len(pending) > jobs:
                    finished, pending = wait(pending, return_when=FIRST_COMPLETED)
                    yield from (future.result() for future in finished)
                pending.add(pool.submit(run, number, stimulus))
            while pending:
                finished, pending = wait(pending, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in finished)
        finally:
            cancelled.set()
            pool.shutdown(cancel_futures=True)


def _count(done: _Finished, figures: tuple[Figures, ...]) -> None:
    """Add a run to the layers' figures; its counters must be what the schedule says."""
    beats = sum(schedule.beats for schedule in done.schedules)
    slots = sum(schedule.slices for schedule in done.schedules)
    cycles = sum(result.cycles for result in done.results)
    for result, schedule in zip(done.results, done.schedules, strict=True):
        figures[result.job.place.layer].add_job(
            result,
            beats=schedule.beats,
            seconds=done.seconds * result.cycles / cycles if cycles else 0.0,
        )
    right = not any(result.mismatches for result in done.results)
    if right and done.counted != (beats, slots):
        raise CompareError(
            f"the unit's counters contradict the schedule over {len(done.results)} tile products: "
            f"{beats} compute cycles and {slots} lane slots expected, it counted "
            f"{done.counted[0]} and {done.counted[1]}"
        )
