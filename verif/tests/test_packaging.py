"""What pip installs: every package and every data file of the sources."""

from __future__ import annotations

import fnmatch
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
#: Folders of the sources that are not installed.
LEFT_OUT = {"__pycache__", "tests"}


def setuptools() -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return table["tool"]["setuptools"]


def folders() -> dict[str, Path]:
    """Each installed folder by its package's name."""
    found = {}
    for name, top in setuptools()["package-dir"].items():
        for path in [ROOT / top, *(ROOT / top).rglob("*")]:
            inside = path.relative_to(ROOT / top)
            if path.is_dir() and not LEFT_OUT & set(inside.parts):
                found[".".join([name, *inside.parts])] = path
    return found


def test_every_folder_is_a_package() -> None:
    assert sorted(setuptools()["packages"]) == sorted(folders())


def test_every_data_file_is_installed() -> None:
    patterns = setuptools()["package-data"]
    left = [
        str(path.relative_to(ROOT))
        for name, folder in folders().items()
        for path in folder.iterdir()
        if path.is_file() and path.suffix != ".py"
        if not any(fnmatch.fnmatch(path.name, pattern) for pattern in patterns.get(name, ()))
    ]
    assert not left
