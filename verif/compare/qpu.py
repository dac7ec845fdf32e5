"""Comparisons of the QPU, alone or with an MPU behind it, on a dump's linear layers."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dstar.gen.config import Config
from dstar.golden.dump import DumpReader
from dstar.golden.linear import LayerTables
from dstar.verif.compare.check import check
from dstar.verif.compare.plan import tile_total
from dstar.verif.compare.pool import CheckedRun, Progress, Tell, count, in_threads
from dstar.verif.compare.qpu_check import check_tiles, qpu_results, with_tiles
from dstar.verif.compare.qpu_plan import Block, QPURun, blocks, qpu_runs
from dstar.verif.compare.report import CompareError, CompareReport
from dstar.verif.compare.select import select
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

    def __call__(self, run: QPURun, tell: Tell) -> CheckedRun:
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

        def progress(words: Mapping[str, int]) -> None:
            tell(words["output"] // self.cfg.array.cols if self.with_mpu else words["header"])

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
            progress=progress,
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
    chosen = select(dump, cfg, layers=layers, steps=steps)
    shapes = [dump.layer(name) for name in chosen.names]
    outs = [s.out_features if simulator.with_mpu else 1 for s in shapes]
    total = len(chosen.steps) * sum(
        tile_total(s.tokens, s.in_features, out, cfg) for s, out in zip(shapes, outs, strict=True)
    )

    def parts() -> Iterator[Block]:
        for index, name in enumerate(chosen.names):
            for golden in chosen.golden(index, tables[name]):
                yield from blocks(index, golden, cfg, with_mpu=simulator.with_mpu)

    planned = qpu_runs(parts(), cfg=cfg, with_mpu=simulator.with_mpu, cycles=RUN_CYCLES)
    with closing(
        in_threads(planned, simulator, jobs=jobs, total=total, progress=progress)
    ) as finished:
        for run in finished:
            count(run, chosen.figures, cfg)
    return chosen.report(simulator.unit, tables)
