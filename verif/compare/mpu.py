"""The matrix unit (MPU and output path) in Verilator, as a simulator for comparisons."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dstar.gen.config import Config
from dstar.gen.emit import UNITS
from dstar.golden.dump import DumpReader
from dstar.golden.quantize import tile_count
from dstar.verif.compare.observed import ObservedMatrixUnit
from dstar.verif.compare.plan import Stimulus, job_schedule
from dstar.verif.compare.report import CompareError
from dstar.verif.compare.segments import kept_columns
from dstar.verif.compare.simulate import Played, Poll
from dstar.verif.generated import generate_component
from dstar.verif.player import Dut, build_harness, play
from dstar.verif.process import SimulationError
from dstar.verif.verilate import Build

#: Seed of the simulator's own randomness: comparisons must not vary.
SEED = 1
#: Least k tiles that the unit is built for, so that most dumps share one build.
K_TILES = 64


@dataclass(frozen=True, eq=False)
class MPUSimulator:
    """Plays stimuli through one build of the matrix unit; call it from several threads at once.

    ``k_tiles``: most k tiles of a layer.  ``folder``: holds the folder of each run while it runs,
    and of those that failed.
    """

    cfg: Config
    build: Build
    dut: Dut
    folder: Path
    k_tiles: int = K_TILES
    _number: Iterator[int] = field(default_factory=itertools.count)

    def __call__(self, stimulus: Stimulus, poll: Poll) -> Played:
        """Run the simulator; see :data:`dstar.verif.compare.simulate.Simulator`.

        Raises
        ------
        CompareError
            If a layer has more k tiles than the unit takes.
        SimulationError
            If the simulator fails, hangs, or the unit loses or invents a word.
        """
        deepest = 1 + max(job.place.k_tile for job in stimulus.jobs)
        if deepest > self.k_tiles:
            raise CompareError(f"k tiles must be at most {self.k_tiles}, got {deepest}")

        def progress(words: Mapping[str, int]) -> None:
            poll(words["sums"])

        folder = self.folder / f"run-{next(self._number)}"
        cols = self.cfg.array.cols
        result = play(
            self.build,
            self.dut,
            inputs=stimulus.streams(),
            expect={"sums": len(stimulus.jobs) * cols, "output": stimulus.outputs * cols},
            seed=SEED,
            stamps=True,
            max_cycles=self._patience(stimulus),
            folder=folder,
            progress=progress,
        )
        shutil.rmtree(folder, ignore_errors=True)
        return Played(
            words=result.outputs["sums"],
            outputs=result.outputs["output"],
            stamps=result.stamps["sums"],
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


def generate_observed(cfg: Config, directory: Path, *, k_tiles: int = K_TILES) -> Dut:
    """Write the Verilog of the matrix unit under comparison into ``directory``."""
    unit = ObservedMatrixUnit(cfg, columns=kept_columns(cfg), k_tiles=k_tiles)
    blocks = UNITS["matrix"].blocks(cfg)
    return generate_component("observed_matrix", unit, cfg, directory, blocks=blocks)


def k_tiles_of(dump: DumpReader, layers: str, cfg: Config) -> int:
    """k tiles that a unit must take for the layers that match: a power of two.

    Raises
    ------
    DumpError
        If no layer matches.
    """
    inner = [dump.layer(name).in_features for name in dump.match(layers)]
    most = max(tile_count(i, cfg.numeric.k_tile) for i in inner)
    return max(K_TILES, 1 << (most - 1).bit_length())


@contextmanager
def mpu_simulator(cfg: Config, *, k_tiles: int = K_TILES) -> Iterator[MPUSimulator]:
    """Generate and compile the matrix unit (or find it in the cache), ready to simulate.

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
        dut = generate_observed(cfg, folder / "verilog", k_tiles=k_tiles)
        yield MPUSimulator(cfg, build_harness(dut), dut, folder, k_tiles)
    except SimulationError:
        keep = True
        raise
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
