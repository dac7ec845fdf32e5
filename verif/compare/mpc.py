"""Comparisons of the whole core: programs in a memory, started and awaited like software does."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from itertools import zip_longest
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dstar.gen.config import Config
from dstar.golden.dump import DumpReader
from dstar.golden.linear import LayerTables
from dstar.golden.mpc.fields import Status
from dstar.golden.mpc.layout import Half
from dstar.verif.compare.check import Mismatch
from dstar.verif.compare.mpc_plan import Part, StepOfAll, label, layers_and_chains, parts, returned
from dstar.verif.compare.mpc_report import CoreReport, EngineFigures
from dstar.verif.compare.plan import Place, tile_total
from dstar.verif.compare.pool import Progress
from dstar.verif.compare.report import CompareError, Figures
from dstar.verif.compare.select import Selection, select
from dstar.verif.mpc.machine import Machine, build_machine
from dstar.verif.mpc.session import Bus, Ended, Session

Wrong = npt.NDArray[np.bool_]

#: Seed of the simulator's own randomness: comparisons must not vary.
SEED = 1
#: Latency of the memory in cycles, and its share of the bus's bytes: 1.5 TB/s over 32 cores at
#: 1 GHz, 47 of 64 bytes (paper, section 5).
LATENCY = 40
SHARE = 47 / 64


@contextmanager
def core_simulator(cfg: Config) -> Iterator[Machine]:
    """Generate and compile the core (or find it in the cache).

    Raises
    ------
    ToolError, SimulationError
        If there is no usable Verilator or compiler, or the build fails.
    """
    with tempfile.TemporaryDirectory(prefix="dstar-compare-") as folder:
        yield build_machine(cfg, Path(folder))


def core_bus(cfg: Config) -> Bus:
    """The memory that comparisons and figures take."""
    return Bus(latency=LATENCY, bytes_per_cycle=SHARE * cfg.core.axi_bytes)


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What a run found: wrong values, the first of them, how its programs ended."""

    part: Part
    mismatches: int
    first: Mismatch | None
    ended: Sequence[Ended]


def compare_core(
    dump: DumpReader,
    machine: Machine,
    *,
    tables: Mapping[str, LayerTables],
    layers: str = "*",
    steps: range | None = None,
    jobs: int = 2,
    progress: Progress | None = None,
) -> CoreReport:
    """Run every linear layer that matches, and every chain fc1, GELU, fc2 of two that do.

    Each step is a program; outputs and references stay in the core's memory from step to step.
    All of y, of the references, and of a chain's activated outputs are compared, bit by bit.
    Where a program would be too long, the tokens are cut into several runs.

    Raises
    ------
    DumpError
        If no layer matches or a tensor is refused.
    CompareError
        If the steps or jobs are out of range, the core stops with an error, or its counter of
        lane slots contradicts the schedule while its results are right.
    CompileError
        If a layer does not fit the core.
    SimulationError
        If the simulator fails, or the core does not end.
    """
    if jobs < 1:
        raise CompareError(f"jobs must be at least 1, got {jobs}")
    cfg = machine.cfg
    found = select(dump, cfg, layers=layers, steps=steps)
    works = layers_and_chains(found.names)
    names = tuple(label(work) for work in works)
    lanes = cfg.array.lanes
    chosen = replace(found, names=names, figures=tuple(Figures(lanes=lanes) for _ in works))
    engines = tuple(EngineFigures() for _ in works)
    shapes = {name: dump.layer(name) for name in found.names}
    total = len(chosen.steps) * sum(
        tile_total(s.tokens, s.in_features, s.out_features, cfg)
        for work in works
        for s in map(shapes.__getitem__, work)
    )
    session = Session(machine=machine, bus=core_bus(cfg), seed=SEED)

    def simulate(part: Part) -> Checked:
        return check(part, session.run(part.memory, part.programs), names[part.index])

    def planned() -> Iterator[Part]:
        for index, work in enumerate(works):
            yield from parts(chosen, index, work, tables)

    done = 0
    with ThreadPoolExecutor(jobs, thread_name_prefix="compare") as pool:
        for batch in zip_longest(*[planned()] * jobs):
            for checked in pool.map(simulate, [part for part in batch if part is not None]):
                _count(checked, chosen, engines)
                done += checked.part.products * len(checked.ended)
                if progress is not None:
                    progress(done, total)
    report = chosen.report("mpc")
    given = {item.name: getattr(report, item.name) for item in fields(report) if item.init}
    return CoreReport(**given, engines=engines)


def check(part: Part, ended: Sequence[Ended], name: str) -> Checked:
    """Compare what was read back, step by step.

    Raises
    ------
    CompareError
        If the core stopped with an error.
    """
    mismatches, first = 0, None
    for end, step in zip(ended, part.steps, strict=True):
        if end.status != Status.OK:
            status, pc, address = end.error
            raise CompareError(
                f"{name}, step {step.layers[0].step}, tokens from {part.tokens.start}: the core "
                f"stopped with {status.name} at instruction {pc}, address {address:#x}"
            )
        for (number, what, image, _), data in zip(part.tensors(), end.reads, strict=True):
            got = returned(image, what, data)
            want = _expected(part, step, number, what)
            wrong = got.view(np.uint16) != want.view(np.uint16)
            count = int(np.count_nonzero(wrong))
            if count and first is None:
                first = _mismatch(part, step, what, got, want, wrong)
            mismatches += count
    return Checked(part=part, mismatches=mismatches, first=first, ended=ended)


def _expected(part: Part, step: StepOfAll, number: int, what: str) -> Half:
    """The golden tensor of the part's tokens."""
    golden = step.layers[number]
    whole = {"y": golden.result.y, "reference": golden.after, "gelu": step.gelu}[what]
    assert whole is not None
    return np.ascontiguousarray(whole[part.tokens])


def _mismatch(
    part: Part, step: StepOfAll, what: str, got: Half, want: Half, wrong: Wrong
) -> Mismatch:
    """The first wrong value: in the order of token tiles, then channels."""
    cfg = part.images[0].plan.tiling.geometry.cfg
    rows = cfg.array.rows
    tile = int(np.argwhere(wrong)[0][0]) // rows
    column, row = (int(i) for i in np.argwhere(wrong[tile * rows : (tile + 1) * rows].T)[0])
    token = tile * rows + row
    size = cfg.numeric.k_tile if what == "reference" else cfg.array.cols
    number, within = divmod(column, size)
    k_tile, col_tile = (number, 0) if what == "reference" else (0, number)
    place = Place(
        part.index, step.layers[0].step, part.tokens.start // rows + tile, k_tile, col_tile
    )
    expected, value = (int(a.view(np.uint16)[token, column]) for a in (want, got))
    return Mismatch(place, within, row, what, expected, value)


def _count(checked: Checked, chosen: Selection, engines: Sequence[EngineFigures]) -> None:
    """Add a run to the figures."""
    part = checked.part
    figures = chosen.figures[part.index]
    figures.tiles += part.products * len(checked.ended)
    figures.mismatches += checked.mismatches
    if checked.first is not None:
        figures.first = min(figures.first or checked.first, checked.first)
    for end, step in zip(checked.ended, part.steps, strict=True):
        slots, expected = end.registers["SLOTS"], part.slots(step)
        if not checked.mismatches and expected is not None and slots != expected:
            raise CompareError(
                f"{chosen.names[part.index]}, step {step.layers[0].step}: the core counted {slots} "
                f"lane slots, {expected} expected"
            )
        figures.cycles += end.cycles
        figures.beats += end.registers["BEATS"]
        figures.slices += end.registers["SLOTS"]
        figures.seconds += end.seconds
        engines[part.index].add(end)
