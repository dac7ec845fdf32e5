"""Finds a standard-cell library: files given, or a search through the usual places."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dstar.synth.errors import SynthError
from dstar.synth.known import PDKS, Pdk
from dstar.synth.liberty import Cell, Library, merged_cells, read_liberty

#: The technology-independent mode: no library, areas in NAND2 equivalents.
GENERIC = "generic"
#: Name for files given with ``--liberty`` that belong to none of :data:`PDKS`.
CUSTOM = "custom"
#: Environment variables and folders that are searched, in this order, after ``--liberty``.
VARIABLES = ("DSTAR_PDK", "PDK_ROOT")
_REPOSITORY = Path(__file__).resolve().parents[1]


_CUSTOM = Pdk(name=CUSTOM, process="files given", files=(), clock_ps=5000, install="")


@dataclass(frozen=True, kw_only=True)
class Found:
    """A library that was found and read.

    ``libraries``: its Liberty files.  ``exclude``: patterns of excluded cells.  ``sram``: memory
    macros by name.  ``searched``: every place tried before, with the reason it was passed over.
    """

    pdk: Pdk
    libraries: tuple[Library, ...]
    exclude: tuple[str, ...]
    sram: Mapping[str, Cell] = field(default_factory=dict)
    searched: tuple[str, ...] = ()

    @property
    def cells(self) -> dict[str, Cell]:
        """All cells by name."""
        return merged_cells(self.libraries)

    def excluded(self, name: str) -> bool:
        """Whether synthesis must not use the cell."""
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.exclude)


def _roots(env: Mapping[str, str]) -> list[tuple[str, Path]]:
    """What is searched: where it comes from, and the folder."""
    roots = []
    for variable in VARIABLES:
        if env.get(variable):
            roots.append((f"${variable}", Path(os.path.expandvars(env[variable])).expanduser()))
    home = Path(env.get("HOME") or Path.home())
    roots += [("ciel", home / ".ciel"), ("volare", home / ".volare")]
    roots += [("Debian's qflow", Path("/usr/share/qflow/tech"))]
    shared = [base.parent / "shared" / "pdk" for base in (Path.cwd(), _REPOSITORY)]
    return roots + [("shared", path) for path in dict.fromkeys(shared)]


def _folders(pdk: Pdk, origin: str, root: Path) -> list[Path]:
    """Folders under a root that may hold the library; the root may be the inner folder itself."""
    if origin == "Debian's qflow":
        return [root / pdk.qflow] if pdk.qflow else []
    folders = [root / pdk.name, root]
    if pdk.layout:
        layout = Path(pdk.layout)
        folders = [root / layout, root / Path(*layout.parts[1:]), *folders]
    return folders


def _match(folder: Path, pdk: Pdk) -> tuple[list[Path], list[str]]:
    """Files found in a folder, one a pattern, and the patterns without one."""
    found, missing = [], []
    for pattern in pdk.files:
        hits = sorted(p for suffix in ("", ".gz") for p in folder.glob(pattern + suffix))
        if hits:
            found.append(hits[0])
        else:
            missing.append(pattern)
    return found, missing


def _reason(root: Path) -> str:
    if root.is_symlink() and not root.exists():
        return f"a link to {root.readlink()}, which does not exist"
    if "$" in str(root):
        return "names a variable that is not set"
    return "no such folder" if not root.is_dir() else "no library file in it"


def _check_flip_flops(libraries: Sequence[Library]) -> None:
    if not any(cell.kind == "ff" for library in libraries for cell in library.cells.values()):
        names = ", ".join(library.path.name for library in libraries)
        raise SynthError(
            f"no flip-flop cell in {names}: give the file that holds the sequential cells too "
            "(asap7 keeps them in its SEQ file)"
        )


def _excluded_from(root: Path, pdk: Pdk) -> tuple[str, ...]:
    """Cells that the PDK's own list excludes."""
    if not pdk.exclude_file:
        return ()
    path = Path(pdk.exclude_file)
    for candidate in (root / path, root / Path(*path.parts[1:])):
        if candidate.is_file():
            lines = (line.partition("#")[0].strip() for line in candidate.read_text().splitlines())
            return tuple(line for line in lines if line)
    return ()


def _macros(folders: Sequence[Path]) -> dict[str, Cell]:
    """Memory macros of the first folder that has any."""
    for folder in folders:
        files = sorted(p for p in folder.glob("*.lib*") if p.name.endswith((".lib", ".lib.gz")))
        corners = ("_fast", "_slow")
        typical = [p for p in files if not any(corner in p.name for corner in corners)]
        cells = merged_cells(read_liberty(path) for path in typical)
        if cells:
            return {n: c for n, c in cells.items() if c.kind == "memory" and c.area}
    return {}


def find_pdk(
    name: str, *, liberty: Sequence[Path] = (), env: Mapping[str, str] | None = None
) -> Found:
    """Find and read a library: the given files, else the first complete set of a search.

    The search goes through ``$DSTAR_PDK`` and ``$PDK_ROOT`` (a PDK root, a folder of folders by
    library name, or the library's own folder), ``~/.ciel``, ``~/.volare``, Debian's qflow folder
    and ``../shared/pdk``.

    ``name`` is one of :data:`PDKS`, or :data:`CUSTOM` with ``liberty``.

    Raises:
        SynthError: an unknown name, nothing found (with every place tried and how to install it),
            or a file that cannot be used.
    """
    known = {**PDKS, CUSTOM: _CUSTOM} if liberty else PDKS
    if name not in known:
        raise SynthError(f"unknown PDK {name!r}; PDKs are {', '.join([GENERIC, *PDKS])}")
    pdk = known[name]
    if liberty:
        libraries = tuple(read_liberty(path) for path in liberty)
        _check_flip_flops(libraries)
        return Found(pdk=pdk, libraries=libraries, exclude=pdk.exclude)
    tried: list[str] = []
    environment = os.environ if env is None else env
    for origin, root in _roots(environment):
        partial = ""
        for folder in _folders(pdk, origin, root):
            files, missing = _match(folder, pdk)
            if missing:
                if files:
                    partial = f"{folder} lacks {', '.join(missing)}"
                continue
            libraries = tuple(read_liberty(path) for path in files)
            _check_flip_flops(libraries)
            sram = [root / pdk.sram, root / Path(*Path(pdk.sram).parts[1:])] if pdk.sram else []
            return Found(
                pdk=pdk,
                libraries=libraries,
                exclude=(*pdk.exclude, *_excluded_from(root, pdk)),
                sram=_macros([*sram, folder / "sram"]),
                searched=tuple(tried),
            )
        if not _folders(pdk, origin, root):
            continue
        tried.append(f"{origin}: {root}: {partial or _reason(root)}")
    unset = [f"${variable}: not set" for variable in VARIABLES if not environment.get(variable)]
    places = "\n  ".join([*unset, *tried])
    raise SynthError(
        f"library {name} not found; searched\n  {places}\n"
        f"install it with: {pdk.install}\nor give its files with --liberty, "
        f"or use --pdk {GENERIC}, which needs no library"
    )
