"""The units that ``dstar compare`` runs, by name."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack

from dstar.gen.config import Config
from dstar.golden.dump import DumpReader
from dstar.golden.profile import dump_tables
from dstar.verif.compare.mpc import compare_core, core_simulator
from dstar.verif.compare.mpu import k_tiles_of, mpu_simulator
from dstar.verif.compare.pool import Progress
from dstar.verif.compare.qpu import QPU_UNITS, compare_qpu, qpu_simulator
from dstar.verif.compare.report import CompareError, CompareReport
from dstar.verif.compare.session import compare
from dstar.verif.compare.vpu import compare_vpu, vpu_simulator

UNITS = ("mpu", *QPU_UNITS, "vpu", "mpc")


def check_unit(unit: str) -> None:
    """Refuse a name that is no unit.

    Raises
    ------
    CompareError
        If it is unknown; the message lists the units.
    """
    if unit not in UNITS:
        raise CompareError(f"unknown unit {unit!r}; units that compare are {', '.join(UNITS)}")


def run_unit(
    unit: str,
    dump: DumpReader,
    cfg: Config,
    *,
    layers: str,
    steps: range,
    jobs: int,
    building: Callable[[], AbstractContextManager[object]],
    progress: Progress,
) -> CompareReport:
    """Build the unit's simulator and compare it on the dump.

    Parameters
    ----------
    building:
        Entered while the simulator is generated and compiled, to tell the user.
    """
    check_unit(unit)
    with ExitStack() as stack:
        if unit == "vpu":
            with building():
                vpu = stack.enter_context(vpu_simulator(cfg))
            return compare_vpu(dump, vpu, layers=layers, steps=steps, progress=progress)
        tables = dump_tables(dump, dump.match(layers), cfg)
        if unit == "mpc":
            with building():
                core = stack.enter_context(core_simulator(cfg))
            return compare_core(
                dump, core, tables=tables, layers=layers, steps=steps, jobs=jobs, progress=progress
            )
        if unit == "mpu":
            with building():
                k_tiles = k_tiles_of(dump, layers, cfg)
                mpu = stack.enter_context(mpu_simulator(cfg, k_tiles=k_tiles))
            return compare(
                dump,
                cfg,
                mpu,
                tables=tables,
                layers=layers,
                steps=steps,
                jobs=jobs,
                progress=progress,
            )
        with building():
            qpu = stack.enter_context(qpu_simulator(cfg, unit))
        return compare_qpu(
            dump,
            cfg,
            qpu,
            tables=tables,
            layers=layers,
            steps=steps,
            jobs=jobs,
            progress=progress,
        )
