"""Keeps the compiled parts of Verilator's run time, which are the same for every design.

Compiling them takes longer than a small design does.  An object is identified by the exact
command that makes it, the compiler's version and the processor.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@functools.lru_cache
def cpu_identity() -> str:
    """What ``-march=native`` depends on, so that a cache carried elsewhere is not reused."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    lines = re.findall(r"^(?:model name|flags|Features|CPU part)\s*:.*$", text, re.MULTILINE)
    return "\n".join(sorted(set(lines)))


@dataclass(frozen=True, kw_only=True)
class _Wanted:
    """One object: its file name in the build and its path in the store."""

    name: str
    path: Path


class ObjectStore:
    """A folder of compiled objects; safe to use from several processes."""

    def __init__(self, folder: Path, *, identity: str, root: Path | None) -> None:
        """``identity``: all that matters but the command; ``root``: a path in it that does not."""
        self._folder = folder
        self._identity = identity
        self._root = str(root) if root else None

    def fetch(
        self, make: Sequence[str], names: Sequence[str], *, env: Mapping[str, str], folder: Path
    ) -> list[_Wanted]:
        """Copy the objects of ``names`` that are known into a build folder; return the others.

        ``make`` is the build's own command; run dry, it prints the compile command of each
        object.  An object put there is newer than its source, so make leaves it alone.
        """
        targets = [f"{name}.o" for name in dict.fromkeys(names)]
        dry = subprocess.run(
            [*make, "--dry-run", *targets],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        missing = []
        for name, line in re.findall(
            r"^(?=.* -c .*-o (verilated\w*\.o) )(.*)$", dry.stdout, re.MULTILINE
        ):
            command = line.replace(self._root, "ROOT") if self._root else line
            digest = hashlib.sha256(f"{self._identity}\n{command}".encode()).hexdigest()[:20]
            wanted = _Wanted(name=name, path=self._folder / f"{digest}-{name}")
            try:
                shutil.copyfile(wanted.path, folder / name)
            except FileNotFoundError:
                missing.append(wanted)
        return missing

    def keep(self, missing: Sequence[_Wanted], *, folder: Path) -> None:
        """Take the objects that a finished build had to compile into the store."""
        for wanted in missing:
            fresh = wanted.path.with_name(f"{wanted.path.name}.{os.getpid()}")
            shutil.copyfile(folder / wanted.name, fresh)
            fresh.replace(wanted.path)
