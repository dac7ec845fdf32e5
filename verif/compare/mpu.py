"""The generated MPU in Verilator, as a simulator for comparisons."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dstar.gen.config import Config
from dstar.verif.compare.plan import Stimulus, job_schedule
from dstar.verif.compare.simulate import Played, Poll
from dstar.verif.generated import generate
from dstar.verif.player import Dut, build_harness, play
from dstar.verif.process import SimulationError
from dstar.verif.verilate import Build

#: Seed of the simulator's own randomness: comparisons must not vary.
SEED = 1


@dataclass(frozen=True, eq=False)
class MPUSimulator:
    """Plays stimuli through one build of the MPU; call it from several threads at once.

    ``folder``: holds the folder of each run while it runs, and of those that failed.
    """

    cfg: Config
    build: Build
    dut: Dut
    folder: Path
    _number: Iterator[int] = field(default_factory=itertools.count)

    def __call__(self, stimulus: Stimulus, poll: Poll) -> Played:
        """Run the simulator; see :data:`dstar.verif.compare.simulate.Simulator`.

        Raises
        ------
        SimulationError
            If the simulator fails, hangs, or the unit loses or invents a word.
        """

        def progress(words: Mapping[str, int]) -> None:
            poll(words["output"])

        folder = self.folder / f"run-{next(self._number)}"
        result = play(
            self.build,
            self.dut,
            inputs=stimulus.streams(),
            expect={"output": len(stimulus.jobs) * self.cfg.array.cols},
            seed=SEED,
            stamps=True,
            max_cycles=self._patience(stimulus),
            folder=folder,
            progress=progress,
        )
        shutil.rmtree(folder, ignore_errors=True)
        return Played(
            words=result.outputs["output"],
            stamps=result.stamps["output"],
            seconds=result.wall_s,
            beats=result.probes["perf__beats"],
            slots=result.probes["perf__slots"],
        )

    def _patience(self, stimulus: Stimulus) -> int:
        """Cycles after which a unit that has not finished never will."""
        beats = sum(job_schedule(job, self.cfg).beats for job in stimulus.jobs)
        array = self.cfg.array
        per_job = 2 * (array.cols + array.rows) + 64
        return 1_000 + 2 * (beats + stimulus.load + per_job * len(stimulus.jobs))


@contextmanager
def mpu_simulator(cfg: Config) -> Iterator[MPUSimulator]:
    """Generate and compile the MPU (or find it in the cache), ready to simulate.

    Everything but the cached build is removed at the end; after a failed simulation its folder
    stays, since the error names the log in it.

    Raises
    ------
    ToolError, SimulationError
        If there is no usable Verilator or compiler, or the build fails.
    """
    folder = Path(tempfile.mkdtemp(prefix="dstar-compare-"))
    keep = False
    try:
        dut = generate("mpu", cfg, folder / "verilog")
        yield MPUSimulator(cfg, build_harness(dut), dut, folder)
    except SimulationError:
        keep = True
        raise
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
