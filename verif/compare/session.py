"""Runs a dump's linear layers through the golden model and the matrix unit, side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing

from dstar.gen.config import Config
from dstar.golden.dump import DumpReader
from dstar.golden.linear import LayerTables
from dstar.verif.compare.check import check, check_outputs
from dstar.verif.compare.plan import Stimulus, runs, tile_total
from dstar.verif.compare.pool import CheckedRun, Progress, Tell, count, in_threads
from dstar.verif.compare.report import CompareReport
from dstar.verif.compare.segments import segments
from dstar.verif.compare.select import GoldenStep, Selection, select
from dstar.verif.compare.simulate import Simulator

#: About how many cycles one run of the simulator takes, where there is enough to do.
RUN_CYCLES = 65_536
#: Fewest cycles worth a start of the simulator.
MIN_RUN_CYCLES = 4_096
#: Encoded slices, in bytes, of the steps of a layer that are planned together.
WINDOW_BYTES = 64 * 2**20


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
    """Compare the matrix unit with the golden model on every linear layer that matches, bit by bit.

    Every sum of every tile product, and every binary16 output, with last step's golden output fed
    in.
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
    chosen = select(dump, cfg, layers=layers, steps=steps)
    shapes = [dump.layer(name) for name in chosen.names]
    counts = [tile_total(s.tokens, s.in_features, s.out_features, cfg) for s in shapes]
    total = sum(counts) * len(chosen.steps)

    def parts() -> Iterator[Stimulus]:
        for index, name in enumerate(chosen.names):
            yield from _layer(chosen, index, tables[name])

    def simulate(stimulus: Stimulus, tell: Tell) -> CheckedRun:
        def poll(words: int) -> None:
            tell(min(words // cfg.array.cols, len(stimulus.jobs)))

        played = simulator(stimulus, poll)
        sums = check(stimulus.jobs, played.words, played.stamps, cfg)
        return CheckedRun(
            results=check_outputs(sums, played.outputs, cfg),
            seconds=played.seconds,
            counted=(played.beats, played.slots),
        )

    share = total * cfg.array.cols // (2 * max(jobs, 1))
    length = min(RUN_CYCLES, max(MIN_RUN_CYCLES, share))
    stimuli = runs(parts(), cfg=cfg, cycles=length)
    with closing(
        in_threads(stimuli, simulate, jobs=jobs, total=total, progress=progress)
    ) as finished:
        for done in finished:
            count(done, chosen.figures, cfg)
    return chosen.report(unit, tables)


def _layer(chosen: Selection, index: int, tables: LayerTables) -> Iterator[Stimulus]:
    """Golden run of one layer: its segments."""
    window: list[GoldenStep] = []
    size = 0
    for golden in chosen.golden(index, tables):
        window.append(golden)
        size += golden.result.slices * chosen.cfg.array.rows
        if size >= WINDOW_BYTES:
            yield from segments(index, window, chosen.cfg)
            window, size = [], 0
    if window:
        yield from segments(index, window, chosen.cfg)
