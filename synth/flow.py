"""One design through Yosys, ABC and timing analysis."""

from __future__ import annotations

import os
import re
import statistics
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from dstar.synth.errors import SynthError
from dstar.synth.liberty import Cell, read_bytes
from dstar.synth.memory import memory_area
from dstar.synth.netlist import FANOUT_LIMIT, Netlist
from dstar.synth.pdk import Found
from dstar.synth.result import ModuleResult, Result
from dstar.synth.script import Plan, abc_script, yosys_script
from dstar.synth.timing import Timing, abc_delays, sta_delay, sta_program
from dstar.verif.process import SimulationError, run_logged

#: Seconds after which Yosys is ended.
TIMEOUT_S = 1800.0
_PASS = re.compile(r"^\d+(?:\.\d+)*\. (?:Executing )?(\S+)", re.MULTILINE)
_NO_RESET = re.compile(r"type (\$_\w+)\) cannot be legalized: .*async")
_DELAY_CELL = re.compile(r"clk|dly|delay", re.IGNORECASE)

#: Called with what is being done, about five times a second.
Progress = Callable[[str], None]


def _smallest(cells: Mapping[str, Cell], found: Found, kind: str) -> Cell | None:
    usable = [c for c in cells.values() if c.kind == kind and c.area and not found.excluded(c.name)]
    return min(usable, key=lambda c: (c.area or 0.0, c.name), default=None)


def choose_buffer(cells: Mapping[str, Cell], found: Found) -> Cell:
    """The smallest buffer that drives :data:`FANOUT_LIMIT` average pins twice over.

    Raises:
        SynthError: the library has no buffer.
    """
    pins = [c.capacitance(p) for c in cells.values() if c.kind == "logic" for p in c.pins]
    load = 2 * FANOUT_LIMIT * statistics.median([pin for pin in pins if pin > 0] or [0.0])
    buffers = sorted(
        (c for c in cells.values() if c.buffer and c.area and not found.excluded(c.name)),
        key=lambda c: (bool(_DELAY_CELL.search(c.name)), c.area, c.name),
    )
    if not buffers:
        raise SynthError(f"library {found.pdk.name} has no buffer cell")

    def drives(cell: Cell) -> bool:
        (out,) = cell.outputs
        return float(cell.pins[out].get("max_capacitance") or load) >= load

    return next((c for c in buffers if drives(c)), buffers[0])


def _unpack(found: Found, folder: Path) -> list[str]:
    """Put plain copies of the Liberty files into the folder, for the tools; return their names."""
    names = []
    for library in found.libraries:
        name = re.sub(r"[^\w.-]", "_", library.path.name.removesuffix(".gz"))
        target = folder / name
        data = read_bytes(library.path)
        if not target.is_file() or target.read_bytes() != data:
            target.write_bytes(data)
        names.append(name)
    return names


def run_yosys(
    folder: Path, script: str, progress: Progress | None = None, *, libraries: str = "the library"
) -> str:
    """Run a script in a child process in ``folder``; return its log.

    ``libraries``: the files' names, for messages.

    Raises:
        SynthError: with Yosys' own error message, or that it crashed or took too long.
    """
    try:
        import pyosys  # noqa: F401
    except ImportError:
        raise SynthError("Yosys is not installed: pip install 'dstar-rtl[synth]'") from None
    (folder / "synth.ys").write_text(script)
    log = folder / "yosys.log"
    log.unlink(missing_ok=True)
    output = folder / "child.log"
    output.unlink(missing_ok=True)

    def poll() -> None:
        if progress is not None and log.is_file():
            with log.open("rb") as stream:
                stream.seek(max(0, log.stat().st_size - 4096))
                passes = _PASS.findall(stream.read().decode(errors="replace"))
            if passes:
                progress(f"Yosys: {passes[-1]}")

    command = [sys.executable, "-m", "dstar.synth.worker", "synth.ys", log.name]
    try:
        run_logged(
            command,
            cwd=folder,
            env=dict(os.environ),
            log=output,
            timeout_s=TIMEOUT_S,
            poll=poll,
        )
    except SimulationError as error:
        text = log.read_text(errors="replace") if log.is_file() else ""
        text += output.read_text(errors="replace")
        problems = re.findall(r"^.*ERROR: (.*)$", text, re.MULTILINE)
        refused = _NO_RESET.search(problems[-1]) if problems else None
        if refused:
            raise SynthError(
                f"{libraries} holds no flip-flop with asynchronous reset or set ({refused[1]}), "
                "which clock.reset = 'async_low' needs; use clock.reset = 'sync' or another library"
            ) from None
        reason = problems[-1] if problems else f"Yosys: {error}"
        raise SynthError(f"synthesis failed: {reason}; log: {log}") from None
    return log.read_text(errors="replace")


def synthesize(
    verilog: str,
    plan: Plan,
    found: Found,
    folder: Path,
    *,
    clock: str = "clk",
    progress: Progress | None = None,
) -> Result:
    """Map a design onto a library; scripts, logs and netlists stay in ``folder``.

    Raises:
        SynthError: Yosys or OpenSTA failed, or a cell is unmapped or of unknown area.
    """
    folder.mkdir(parents=True, exist_ok=True)
    cells = found.cells
    libraries = _unpack(found, folder)
    buffer = choose_buffer(cells, found)
    flip_flop = _smallest(cells, found, "ff")
    assert flip_flop is not None  # find_pdk refuses a library without one
    data = [p for p in flip_flop.pins if p not in flip_flop.outputs | flip_flop.clocks]
    load = flip_flop.capacitance(data[0]) * found.libraries[0].load_ff if data else 1.0
    (folder / "design.v").write_text(verilog)
    (folder / "abc.script").write_text(abc_script(plan))
    (folder / "abc.constr").write_text(f"set_load {load:.3f}\n")
    files = ", ".join(library.path.name for library in found.libraries)
    script = yosys_script(plan, libraries, found.exclude)
    log = run_yosys(folder, script, progress, libraries=files)

    netlist = Netlist.read(folder / "netlist.json", plan.top)
    netlist.check(cells, files)
    # Before buffers part the nets that two ports of a memory share.
    shapes = {name: netlist.memories(name) for name in netlist.instances()}
    buffers = netlist.buffer_wide_nets(cells, buffer)
    multiplexer = _multiplexer(cells, found)
    modules = {}
    for name, instances in netlist.instances().items():
        counts = netlist.counts(name)
        kinds = {True: 0.0, False: 0.0}
        for cell, count in counts.items():
            kinds[cells[cell].sequential] += count * (cells[cell].area or 0.0)
        memories = [
            memory_area(shape, found.sram, flip_flop, multiplexer) for shape in shapes[name]
        ]
        modules[name] = ModuleResult(
            instances=instances,
            area=kinds[True] + kinds[False],
            sequential=kinds[True],
            cells=counts,
            memories=tuple(memories),
            depth=netlist.depth(name, cells),
        )
    delays = _timing(netlist, plan, found, folder, libraries, clock, log, progress)
    return Result(modules=modules, delays=delays, buffers=buffers, folder=folder)


def _timing(
    netlist: Netlist,
    plan: Plan,
    found: Found,
    folder: Path,
    libraries: list[str],
    clock: str,
    log: str,
    progress: Progress | None,
) -> dict[str, Timing]:
    """Shortest period of every module that has registers, each on its own."""
    estimates = abc_delays(log)
    cells = found.cells
    if not sta_program():
        return estimates
    delays = {}
    for name in netlist.instances():
        if not any(cells[cell].sequential for cell in netlist.counts(name)):
            continue
        if progress is not None:
            progress(f"OpenSTA: {name}")
        netlist.write_verilog(name, folder / f"{name}.mapped.v", cells)
        ports = netlist.modules[name]["ports"].items()
        delay = sta_delay(
            folder,
            module=name,
            netlist=f"{name}.mapped.v",
            libraries=libraries,
            clock=clock,
            inputs=[n for n, port in ports if port["direction"] == "input" and n != clock],
            clock_ps=plan.clock_ps,
            time_ps=found.libraries[0].time_ps,
        )
        if delay is not None:
            delays[name] = delay
    return delays


def _multiplexer(cells: Mapping[str, Cell], found: Found) -> float:
    """Area of the smallest two-way multiplexer, for the estimate of memories."""
    usable = [(n, c) for n, c in cells.items() if c.area and not found.excluded(n)]
    areas = [c.area or 0.0 for n, c in usable if re.search(r"mux(i|2|x2|_2)", n, re.IGNORECASE)]
    nand = min((c.area or 0.0 for _, c in usable if len(c.pins) >= 3), default=0.0)
    return min(areas, default=3 * nand)
