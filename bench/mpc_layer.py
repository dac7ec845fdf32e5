"""Where the core's cycles go on one linear layer, simulated; ``--timeline`` draws its engines.

``python bench/mpc_layer.py [-p PRESET] [-s KEY=VALUE] [--shape T K N] [--chain] [--bytes B]
[--timeline FILE]`` runs a keyframe and a differential step of a random layer (with ``--chain``:
that layer, GELU, and a layer back to as many channels), compares every bit, and prints two tables
with a row a step.  The first: cycles from start to end, the share of every engine, and the memory's
bytes a cycle.  The second: the share of the cycles in which the array did what, all together
100 %: ``computes``, with all lanes (and ``lanes empty``: where exponents changed within a beat);
else the :class:`~dstar.verif.mpc.observed.ArrayState`, and ``begin`` and ``end`` before and after.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
from rich.console import Console
from rich.table import Table

from dstar.gen.config import PRESETS, load_config
from dstar.golden.mpc.layout import LayerShape
from dstar.golden.mpc.registers import ENGINES
from dstar.verif.mpc.machine import build_machine
from dstar.verif.mpc.measure import Measured, Span, measure
from dstar.verif.mpc.observed import ArrayState
from dstar.verif.mpc.session import Bus

_NAMES = [name.lower() for name in ENGINES]
_COLOURS = {"busy": "tab:blue", "stalled": "tab:orange"}


def print_table(measured: Measured, title: str) -> None:
    """Engines: a row a step."""
    table = Table(title=title)
    for name in ("step", "bits", "cycles", *_NAMES, "conflicts", "bytes/cycle"):
        table.add_column(name, justify="right")
    for step, (end, bits) in enumerate(zip(measured.ended, measured.bits, strict=True)):
        busy, stalled, cycles = end.engines("BUSY"), end.engines("STALLED"), end.cycles
        moved = end.wide("BYTES_READ") + end.wide("BYTES_WRITTEN")
        table.add_row(
            _step_name(step),
            f"{bits:.2f}",
            f"{cycles:,}",
            *(f"{busy[n] / cycles:.0%} ({stalled[n] / cycles:.0%})" for n in _NAMES),
            f"{end.conflicts:,}",
            f"{moved / cycles:.1f}",
        )
    Console(width=150).print(table)


def print_array(measured: Measured, lanes: int) -> None:
    """The array: a row a step, which adds up to 100 %."""
    table = Table(title="the array, % of the cycles")
    table.add_column("step", justify="right")
    states = [state.name.lower() for state in ArrayState if state > ArrayState.COMPUTE]
    names = ["computes", "lanes empty", *states, "begin", "end"]
    for name in names:
        table.add_column(name, justify="right")
    for step, (end, array) in enumerate(zip(measured.ended, measured.array, strict=True)):
        full = end.registers["SLOTS"] / lanes
        parts = {**array, "computes": full, "lanes empty": array["compute"] - full}
        shares = [100 * parts.get(name, 0) / end.cycles for name in names]
        if abs(sum(shares) - 100) > 0.5:
            raise RuntimeError(f"shares must add up to 100 %, got {sum(shares)}")
        table.add_row(_step_name(step), *(f"{share:.1f}" for share in shares))
    Console(width=150).print(table)


def _step_name(step: int) -> str:
    return "differential" if step else "keyframe"


def draw(spans: list[Span], title: str, path: Path) -> None:
    """A row an engine, from cycle 0 on."""
    figure, axes = plt.subplots(figsize=(10, 2.8), layout="constrained")
    for row, name in enumerate(_NAMES):
        for state, height in (("busy", 0.36), ("stalled", 0.3)):
            chosen = [s for s in spans if (s.engine, s.state) == (name, state)]
            bars = [(s.start, s.stop - s.start) for s in chosen]
            low = row - 0.38 if state == "busy" else row + 0.04
            axes.broken_barh(bars, (low, height), color=_COLOURS[state], linewidth=0)
    for state, text in (("busy", "a command under way"), ("stalled", "waiting for semaphores")):
        axes.broken_barh([], (0, 0), color=_COLOURS[state], label=text)
    axes.set_yticks(range(len(_NAMES)), _NAMES)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel("cycle")
    axes.set_title(title, loc="left", fontsize=10)
    axes.legend(loc="upper center", bbox_to_anchor=(0.8, 1.16), ncols=2, frameon=False, fontsize=9)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Build, run, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-p", "--preset", default="paper", choices=PRESETS)
    parser.add_argument("-s", "--set", action="append", default=[], help="key=value")
    parser.add_argument("--shape", type=int, nargs=3, default=(256, 512, 512), metavar="N",
                        help="tokens, input and output channels")  # fmt: skip
    parser.add_argument("--chain", action="store_true", help="GELU, and a layer back, after it")
    parser.add_argument("--bytes", type=float, nargs="+", default=[47.0, 0.0],
                        help="of the memory, a cycle; 0: all that the bus can do")  # fmt: skip
    parser.add_argument("--latency", type=int, default=40, help="of the memory, in cycles")
    parser.add_argument("--timeline", type=Path, help="draw the first memory's differential step")
    options = parser.parse_args()
    mpl.use("Agg")
    cfg = load_config(preset=options.preset, overrides=tuple(options.set))
    tokens, inner, out = options.shape
    shapes = [LayerShape(tokens=tokens, inner=inner, out=out)]
    size = f"{tokens} x {inner} x {out}"
    if options.chain:
        shapes.append(LayerShape(tokens=tokens, inner=out, out=inner))
        size += f" x {inner}"
    size += f" at {cfg.preset}{''.join(f', {change}' for change in options.set)}"
    with tempfile.TemporaryDirectory() as folder:
        machine = build_machine(cfg, Path(folder))
    for number, rate in enumerate(options.bytes):
        bus = Bus(latency=options.latency, bytes_per_cycle=rate)
        measured = measure(machine, shapes, bus=bus)
        limit = f"{rate:g} bytes a cycle" if rate else "memory as fast as the bus"
        print_table(measured, f"{size}, {limit}")
        print_array(measured, cfg.array.lanes)
        seconds, used, cycles = (
            sum(getattr(end, name) for end in measured.ended)
            for name in ("seconds", "cpu_seconds", "cycles")
        )
        print(f"bit-exact; {cycles:,} cycles in {seconds:.1f} s, {cycles / used:,.0f} a CPU second")
        if options.timeline is not None and not number:
            # The second program's spans, from its first on.
            start = max((s.stop for s in measured.spans), default=0) - measured.ended[-1].cycles
            spans = [Span(s.engine, s.state, s.start - start, s.stop - start)
                     for s in measured.spans if s.stop > start]  # fmt: skip
            draw(spans, f"{size}, {limit}, differential", options.timeline)


if __name__ == "__main__":
    main()
