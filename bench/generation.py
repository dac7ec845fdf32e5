"""How long `dstar gen mpu` takes, how large its Verilog is, and what sharing modules saves.

The comparison converts the same PE array with every PE as a module of its own, as Amaranth does
by itself, at sizes where that is bearable.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from amaranth.back import verilog
from rich.console import Console
from rich.table import Table

from dstar.gen.config import Config, load_config
from dstar.gen.emit import emit
from dstar.gen.library import VerilogLibrary
from dstar.rtl.mpu.array import PEArray

SIZES = (8, 16, 32)


def square(size: int) -> Config:
    return load_config(preset="paper", overrides=(f"rows={size}", f"cols={size}"))


def timed(work: Any) -> tuple[float, str]:
    start = time.perf_counter()
    text = work()
    return time.perf_counter() - start, text


def main() -> None:
    """Print the figures."""
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        emit("mpu", load_config(preset="paper"), Path(folder))
        seconds = time.perf_counter() - start
        size = (Path(folder) / "mpu.v").stat().st_size
    console.print(f"dstar gen mpu --preset paper: {seconds:.1f} s, {size / 1000:.0f} kB")

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
