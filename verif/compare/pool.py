"""Simulations side by side, and what a finished one adds to the figures."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TypeVar

from dstar.gen.config import Config
from dstar.verif.compare.check import JobResult
from dstar.verif.compare.plan import job_schedule
from dstar.verif.compare.report import CompareError, Figures

#: Called with the tile products done and those in all, from any thread.
Progress = Callable[[int, int], None]
#: Called with the tile products that a run has finished so far; it may raise to end the run.
Tell = Callable[[int], None]

T = TypeVar("T")


class _CancelledError(Exception):
    """Raised inside a simulation that is not wanted any more."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CheckedRun:
    """One finished run of a simulator.

    ``seconds``: simulation time.  ``counted``: the unit's counters of compute cycles and of lane
    slots used in them, where it multiplies.
    """

    results: list[JobResult]
    seconds: float
    counted: tuple[int, int] | None


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


def in_threads(
    runs: Iterable[T],
    simulate: Callable[[T, Tell], CheckedRun],
    *,
    jobs: int,
    total: int,
    progress: Progress | None = None,
) -> Generator[CheckedRun]:
    """Simulate and check runs in ``jobs`` threads, with one more planned ahead.

    Whatever ends it early (an error, Ctrl-C) ends the simulations that are running.

    Parameters
    ----------
    total:
        Tile products of all runs.

    Raises
    ------
    CompareError
        If ``jobs`` is not positive.
    """
    if jobs < 1:
        raise CompareError(f"jobs must be at least 1, got {jobs}")
    cancelled = threading.Event()
    meter = _Meter(total, progress)

    def work(number: int, run: T) -> CheckedRun:
        def tell(tiles: int) -> None:
            if cancelled.is_set():
                raise _CancelledError
            meter.update(number, tiles)

        tell(0)
        done = simulate(run, tell)
        meter.update(number, len(done.results))
        return done

    pending: set[Future[CheckedRun]] = set()
    with ThreadPoolExecutor(jobs, thread_name_prefix="compare") as pool:
        try:
            for number, run in enumerate(runs):
                while len(pending) > jobs:
                    finished, pending = wait(pending, return_when=FIRST_COMPLETED)
                    yield from (future.result() for future in finished)
                pending.add(pool.submit(work, number, run))
            while pending:
                finished, pending = wait(pending, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in finished)
        finally:
            cancelled.set()
            pool.shutdown(cancel_futures=True)


def count(run: CheckedRun, figures: tuple[Figures, ...], cfg: Config) -> None:
    """Add a run to the layers' figures.

    Raises
    ------
    CompareError
        If the unit's counters contradict the schedule while its results are right.
    """
    multiplies = run.counted is not None
    cycles = sum(result.cycles for result in run.results)
    beats = slots = 0
    for result in run.results:
        schedule = job_schedule(result.job, cfg)
        beats += schedule.beats
        slots += schedule.slices
        figures[result.job.place.layer].add_job(
            result,
            beats=schedule.beats if multiplies else 0,
            seconds=run.seconds * result.cycles / cycles if cycles else 0.0,
        )
    right = not any(result.mismatches for result in run.results)
    if run.counted is not None and right and run.counted != (beats, slots):
        raise CompareError(
            f"the unit's counters contradict the schedule over {len(run.results)} tile products: "
            f"{beats} compute cycles and {slots} lane slots expected, it counted "
            f"{run.counted[0]} and {run.counted[1]}"
        )
