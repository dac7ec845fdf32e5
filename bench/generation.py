"""How long `dstar gen` takes, how large its Verilog is, and what sharing modules saves.

The comparison converts the same PE array with every PE as a module of its own, as Amaranth does
by itself, at sizes where that is bearable.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from subprocess import run
from typing import Any

from amaranth.back import verilog
from rich.console import Console
from rich.table import Table

from dstar.gen.config import Config, load_config
from dstar.gen.library import VerilogLibrary
from dstar.rtl.mpu.array import PEArray

UNITS = ("mpu", "qpu", "vpu", "mpc")
SIZES = (8, 16, 32)


def square(size: int) -> Config:
    return load_config(preset="paper", overrides=(f"rows={size}", f"cols={size}"))


def timed(work: Any) -> tuple[float, str]:
    start = time.perf_counter()
    text = work()
    return time.perf_counter() - start, text


def generated(unit: str) -> tuple[float, float, int]:
    """Seconds and processor seconds of the command with all that it starts, bytes of Verilog."""
    command = [Path(sys.executable).with_name("dstar"), "gen", unit, "--preset", "paper", "-o"]
    with tempfile.TemporaryDirectory() as folder:
        start, before = time.perf_counter(), os.times()
        run([*command, folder], check=True, capture_output=True)
        seconds, after = time.perf_counter() - start, os.times()
        size = (Path(folder) / f"{unit}.v").stat().st_size
    parts = ("children_user", "children_system")
    return seconds, sum(getattr(after, p) - getattr(before, p) for p in parts), size


def main() -> None:
    """Print the figures."""
    console = Console()
    units = Table(title="dstar gen UNIT --preset paper")
    for heading in ("unit", "s", "processor s", "kB"):
        units.add_column(heading, justify="right")
    for unit in UNITS:
        seconds, used, size = generated(unit)
        units.add_row(unit, f"{seconds:.1f}", f"{used:.1f}", f"{size / 1000:,.0f}")
    console.print(units)

    table = Table(title="PE array: each distinct module once, against nested modules")
    for heading in ("array", "shared s", "nested s", "ratio", "shared kB", "nested kB"):
        table.add_column(heading, justify="right")
    for size in SIZES:
        cfg = square(size)
        shared, text = timed(lambda cfg=cfg: VerilogLibrary(cfg).emit("array", PEArray(cfg)))
        nested, flat = timed(
            lambda cfg=cfg: verilog.convert(PEArray(cfg), name="array", emit_src=False)
        )
        table.add_row(
            f"{size}x{size}",
            f"{shared:.2f}",
            f"{nested:.2f}",
            f"{nested / shared:.1f}",
            f"{len(text) / 1000:.0f}",
            f"{len(flat) / 1000:.0f}",
        )
    console.print(table)


if __name__ == "__main__":
    main()
