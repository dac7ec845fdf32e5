"""The folder that keeps compiled simulators, and paths that GNU Make can work with."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from pathlib import Path

from dstar.verif.toolchain import ToolError

#: Environment variable that names the cache folder.
CACHE_VARIABLE = "DSTAR_CACHE"
#: A build not used for this many seconds is removed when a new one is made.
KEEP_S = 14 * 24 * 3600


def _has_space(path: Path) -> bool:
    return any(character.isspace() for character in str(path))


def cache_folder() -> Path:
    """The cache: ``$DSTAR_CACHE``, else ``~/.cache/dstar``; created when missing.

    GNU Make cannot build in a folder whose path has a space.  When the home folder's has one, a
    private folder under the system's temporary folder is used instead.

    Raises:
        ToolError: the chosen folder has a space in its path or cannot be written.
    """
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        folder = Path(named).expanduser().absolute()
    else:
        folder = Path.home() / ".cache" / "dstar"
        if _has_space(folder):
            folder = Path(tempfile.gettempdir()) / f"dstar-cache-{os.getuid()}"
    if _has_space(folder):
        raise ToolError(
            f"{CACHE_VARIABLE} must be a folder whose path has no space "
            f"(GNU Make cannot build there), got {str(folder)!r}"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name in ("builds", "links", "locks", "objects", "work"):
            (folder / name).mkdir(exist_ok=True)
        usable = os.access(folder, os.W_OK) and folder.stat().st_uid == os.getuid()
    except OSError as error:
        raise ToolError(f"cannot use the cache folder {folder}: {error.strerror}") from None
    if not usable:
        raise ToolError(f"the cache folder {folder} must be owned and writable by you")
    return folder


def without_space(path: Path, cache: Path) -> Path:
    """``path``, or, when it has a space, a link to it inside the cache."""
    if not _has_space(path):
        return path
    name = hashlib.sha256(str(path).encode()).hexdigest()[:16]
    link = cache / "links" / name
    if not (link.is_symlink() and link.readlink() == path):
        fresh = link.with_name(f"{name}.{os.getpid()}")
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(path)
        fresh.replace(link)
    return link


def copy_without_space(path: Path, cache: Path, *, version: str) -> Path:
    """The folder ``path``, or, when its path has a space, a copy of it inside the cache.

    For a program that looks up where it really lies, which a link would not change.
    """
    if not _has_space(path):
        return path
    name = hashlib.sha256(f"{path} {version}".encode()).hexdigest()[:16]
    copy = cache / "links" / name
    if not copy.is_dir():
        fresh = copy.with_name(f"{name}.{os.getpid()}")
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.copytree(path, fresh)
        try:
            fresh.rename(copy)
        except OSError:
            # Another process was faster; its copy is the same.
            shutil.rmtree(fresh)
    return copy


def prune(cache: Path) -> None:
    """Remove builds that nobody used for :data:`KEEP_S` and leftovers of builds cut short."""
    now = time.time()
    for folder, keep in ((cache / "builds", KEEP_S), (cache / "work", 24 * 3600)):
        for entry in folder.iterdir():
            try:
                stale = now - entry.stat().st_mtime > keep
            except FileNotFoundError:
                continue
            if stale:
                shutil.rmtree(entry, ignore_errors=True)
