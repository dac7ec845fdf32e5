"""The command line: what it prints, how it refuses, what it leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MAIN = "import sys; from dstar.gen.cli import main; sys.argv[0] = 'dstar'; main()"


def dstar(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", MAIN, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "COLUMNS": "120", "NO_COLOR": "1"},
        check=False,
    )


def test_gen_writes_and_names_its_files(tmp_path: Path) -> None:
    result = dstar("gen", "pe", "--preset", "tiny", "--set", "lanes=2", "-o", tmp_path / "pe")
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    written = {path.name for path in (tmp_path / "pe").iterdir()}
    assert {"pe.v", "pe.f", "manifest.json", "pe.sdc", "config.json"} <= written
    assert {Path(line.split()[0]).name for line in result.stdout.splitlines()} == written


REFUSED = [
    (("gen", "npu", "-o", "OUT"), "unknown unit 'npu'; units are pe"),
    (("gen", "pe", "-p", "huge", "-o", "OUT"), "unknown preset 'huge'"),
    (("gen", "pe", "-s", "lanes=3", "-o", "OUT"), "array.lanes must be 1, 2, 4 or 8, got 3"),
    (("gen", "pe", "-s", "lines=4", "-o", "OUT"), "unknown key 'lines'; keys are"),
    (("gen", "pe", "-c", "none.toml", "-o", "OUT"), "cannot read none.toml"),
    (("gen", "pe", "-p", "tiny", "-o", "FILE/sub"), "cannot write to"),
    (("gen",), "Missing argument"),
    (("generate",), "No such command 'generate'"),
    (("capture", "-o", "OUT"), "capture needs a model: --builtin runs the shipped DiT"),
    (("capture", "--builtin", "--steps", "3", "-o", "OUT"), "greater than or equal to 4"),
    (("capture", "--builtin", "--layers", "nope*", "-o", "OUT"), "no layer matches 'nope*'"),
    (("compare", "none.safetensors"), "none.safetensors"),
    (("compare", "FILE"), "FILE"),
    (("compare", "FILE", "--unit", "gpu"), "unknown unit 'gpu'"),
    (("compare", "FILE", "--json", "none/report.json"), "no such folder"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED, ids=lambda value: str(value)[:60])
def test_refused(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    """One message of one or two lines, exit code 2, no traceback, nothing left behind."""
    (tmp_path / "FILE").write_text("not a folder, not a dump")
    places = {"OUT": tmp_path / "out", "FILE": tmp_path / "FILE", "FILE/sub": tmp_path / "FILE/s"}
    result = dstar(*(places.get(argument, argument) for argument in arguments))
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    assert result.stderr.startswith("dstar: ")
    assert message in result.stderr
    assert len(result.stderr.splitlines()) <= 2
    assert [path.name for path in tmp_path.iterdir()] == ["FILE"]


def test_help_is_quick_and_complete() -> None:
    result = dstar("--help")
    assert result.returncode == 0
    for command in ("doctor", "gen", "capture", "compare"):
        assert command in result.stdout
    code = "import sys, dstar.gen.cli; sys.exit(any(m in sys.modules for m in ('numpy', 'torch')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
