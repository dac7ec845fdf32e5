"""Where the core's cycles go on one linear layer, simulated; ``--timeline`` draws its engines.

``python bench/mpc_layer.py [-p PRESET] [--shape T K N] [--bytes B] [--timeline FILE]`` runs a
keyframe and a differential step of a random layer, compares every bit, and prints a row a step:
cycles from start to end, the share in which the array computed (``array``) and in which its lanes
held slices (``lanes``), the share of every engine, and the memory's bytes a cycle.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
from rich.console import Console
from rich.table import Table

from dstar.gen.config import PRESETS
from dstar.golden.mpc.layout import LayerShape
from dstar.golden.mpc.registers import ENGINES
from dstar.verif.mpc.machine import build_machine
from dstar.verif.mpc.measure import Measured, Span, measure
from dstar.verif.mpc.session import Bus

_NAMES = [name.lower() for name in ENGINES]
_COLOURS = {"busy": "tab:blue", "stalled": "tab:orange"}


def print_table(measured: Measured, lanes: int, title: str) -> None:
    """A row a step."""
    table = Table(title=title)
    for name in ("step", "bits", "cycles", "array", "lanes", *_NAMES, "conflicts", "bytes/cycle"):
        table.add_column(name, justify="right")
    for step, (end, bits) in enumerate(zip(measured.ended, measured.bits, strict=True)):
        busy, stalled, cycles = end.engines("BUSY"), end.engines("STALLED"), end.cycles
        moved = end.wide("BYTES_READ") + end.wide("BYTES_WRITTEN")
        table.add_row(
            "differential" if step else "keyframe",
            f"{bits:.2f}",
            f"{cycles:,}",
            f"{end.registers['BEATS'] / cycles:.0%}",
            f"{end.registers['SLOTS'] / (lanes * cycles):.0%}",
            *(f"{busy[n] / cycles:.0%} ({stalled[n] / cycles:.0%})" for n in _NAMES),
            f"{end.conflicts:,}",
            f"{moved / cycles:.1f}",
        )
    Console(width=150).print(table)
    seconds = sum(end.seconds for end in measured.ended)
    used = sum(end.cpu_seconds for end in measured.ended)
    cycles = sum(end.cycles for end in measured.ended)
    print(f"bit-exact; {cycles:,} cycles in {seconds:.1f} s, {cycles / used:,.0f} a CPU second")


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
    parser.add_argument("--shape", type=int, nargs=3, default=(256, 512, 512), metavar="N",
                        help="tokens, input and output channels")  # fmt: skip
    parser.add_argument("--bytes", type=float, nargs="+", default=[47.0, 0.0],
                        help="of the memory, a cycle; 0: all that the bus can do")  # fmt: skip
    parser.add_argument("--latency", type=int, default=40, help="of the memory, in cycles")
    parser.add_argument("--timeline", type=Path, help="draw the first memory's differential step")
    options = parser.parse_args()
    mpl.use("Agg")
    cfg = PRESETS[options.preset]
    shape = LayerShape(tokens=options.shape[0], inner=options.shape[1], out=options.shape[2])
    size = f"{shape.tokens} x {shape.inner} x {shape.out}"
    with tempfile.TemporaryDirectory() as folder:
        machine = build_machine(cfg, Path(folder))
    for number, rate in enumerate(options.bytes):
        bus = Bus(latency=options.latency, bytes_per_cycle=rate)
        measured = measure(machine, shape, bus=bus)
        limit = f"{rate:g} bytes a cycle" if rate else "memory as fast as the bus"
        print_table(measured, cfg.array.lanes, f"{size} at {cfg.preset}, {limit}")
        if options.timeline is not None and not number:
            # The second program's spans, from its first on.
            start = max((s.stop for s in measured.spans), default=0) - measured.ended[-1].cycles
            spans = [Span(s.engine, s.state, s.start - start, s.stop - start)
                     for s in measured.spans if s.stop > start]  # fmt: skip
            draw(spans, f"{size} at {cfg.preset}, {limit}, differential", options.timeline)


if __name__ == "__main__":
    main()
