"""Runs cocotb tests on a simulator made by :func:`dstar.verif.verilate.build`."""

from __future__ import annotations

import os
import random
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import cocotb_tools.runner
from cocotb_tools.check_results import get_results

from dstar.verif.process import SimulationError, run_logged
from dstar.verif.verilate import Build, build, waves_folder

__all__ = ["Build", "Run", "SimulationError", "build", "default_seed", "run", "run_folder"]

#: Environment variable of the pytest option ``--seed``.
SEED_VARIABLE = "DSTAR_SEED"


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a simulation left.

    ``folder``: its files; gone unless the caller named the folder.  ``seed``: as used.  ``log``:
    the simulator's output.  ``seconds``: wall-clock time, start-up included.  ``waveform``: the
    VCD file, for a build with waves.
    """

    folder: Path
    seed: int
    log: str
    seconds: float
    waveform: Path | None


def default_seed() -> int:
    """The seed of this session: ``$DSTAR_SEED``, else drawn once and put there (32 bits)."""
    text = os.environ.setdefault(SEED_VARIABLE, str(random.SystemRandom().getrandbits(32)))
    try:
        return int(text, 0) % 2**32
    except ValueError:
        raise SimulationError(f"{SEED_VARIABLE} must be an integer, got {text!r}") from None


@contextmanager
def run_folder(folder: Path | None = None) -> Iterator[Path]:
    """A folder for one run: ``folder``, kept, or a fresh one, kept only after an exception."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
        return
    fresh = Path(tempfile.mkdtemp(prefix="dstar-run-"))
    yield fresh
    shutil.rmtree(fresh, ignore_errors=True)


def _waveform(build: Build, run_folder: Path) -> Path:
    """The waveform's path: in ``$DSTAR_WAVES``, named after the test, else in the run's folder."""
    folder = waves_folder()
    if folder is None:
        return run_folder / f"{build.top}.vcd"
    folder.mkdir(parents=True, exist_ok=True)
    test = os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0].rpartition("/")[2]
    name = re.sub(r"[^\w.-]+", "-", f"{test}-{build.top}").strip("-")
    number = 1
    while (path := folder / f"{name}-{number}.vcd").exists():
        number += 1
    path.touch()
    return path


class _Runner(cocotb_tools.runner.Verilator):
    """cocotb's Verilator runner, with its environment but our command, log and time limit."""

    def __init__(
        self, executable: Path, *, trace: Path | None, timeout_s: float, log: Path
    ) -> None:
        super().__init__()
        self._executable = executable
        self._trace = ["--trace", "--trace-file", str(trace)] if trace else []
        self._timeout_s = timeout_s
        self._log = log
        self.poll: Callable[[], None] | None = None

    def _test_command(self) -> list[list[str]]:
        return [[str(self._executable), *self._trace, *self.test_args, *self.plusargs]]

    def _execute_cmds(
        self, cmds: Sequence[list[str]], cwd: Any, stdout: TextIO | None = None
    ) -> None:
        for command in cmds:
            run_logged(
                command,
                cwd=Path(cwd),
                env=self.env,
                log=self._log,
                timeout_s=self._timeout_s,
                poll=self.poll,
            )


def run(
    build: Build,
    test_module: str,
    *,
    testcase: str | Sequence[str] | None = None,
    plusargs: Sequence[str] = (),
    seed: int | None = None,
    env: Mapping[str, str] | None = None,
    folder: Path | None = None,
    timeout_s: float = 600.0,
    poll: Callable[[], None] | None = None,
) -> Run:
    """Run the cocotb tests of a Python module on a simulator.

    Args:
        build: the simulator.
        test_module: importable name of the module that holds the tests.
        testcase: only these tests of the module.
        plusargs: arguments for the simulation, such as ``+name=value``.
        seed: for cocotb's and Verilator's random numbers (default: :func:`default_seed`).
        env: further environment variables for the tests.
        folder: where the simulation runs and leaves its files; by default a temporary folder,
            removed unless the run fails.
        timeout_s: seconds after which the simulation is ended.
        poll: called about five times a second while the simulation runs.

    Raises:
        SimulationError: a test failed, none was found, or the simulator crashed or hung.
    """
    seed = default_seed() if seed is None else seed
    start = time.monotonic()
    with run_folder(folder) as where:
        log, results = where / "simulation.log", where / "results.xml"
        trace = _waveform(build, where) if build.waves else None
        runner = _Runner(build.executable, trace=trace, timeout_s=timeout_s, log=log)
        runner.poll = poll
        what = f"simulating {build.top} with {test_module} (seed {seed})"
        try:
            # Under pytest, cocotb exits when a test failed; the results file tells.
            with suppress(SystemExit):
                runner.test(
                    test_module,
                    build.top,
                    hdl_toplevel_lang="verilog",
                    testcase=testcase,
                    seed=seed,
                    plusargs=[*plusargs, f"+verilator+seed+{seed % (2**31 - 1) + 1}"],
                    extra_env={"COCOTB_ANSI_OUTPUT": "0", **(env or {})},
                    test_dir=where,
                    results_xml=str(results),
                )
            total, failed = get_results(results)
            if failed or not total:
                raise SimulationError(f"{failed} of {total} tests failed")
        except SimulationError as error:
            raise error.with_log(what, log) from None
        except RuntimeError as error:
            raise SimulationError(str(error)).with_log(what, log) from None
        return Run(
            folder=where,
            seed=seed,
            log=log.read_text(errors="replace"),
            seconds=time.monotonic() - start,
            waveform=trace,
        )
