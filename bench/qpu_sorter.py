# amaranth: UnusedElaboratable=no
"""Compares ways to sort a tile's slices: cycles, gates, flip-flops, memory bits.

``python bench/qpu_sorter.py [--preset P]`` prints a table.  Gates are two-input gates and
multiplexers after Yosys's generic ``synth``; memories are counted in bits, not built.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from amaranth.lib import wiring

from dstar.gen.config import PRESETS, Config
from dstar.gen.library import VerilogLibrary
from dstar.rtl.qpu.bitonic import BitonicReorder
from dstar.rtl.qpu.reorder import BucketReorder
from dstar.rtl.sorter import IterativeSorter, PipelinedSorter
from dstar.rtl.sorter_network import SorterShape

_YOSYS = """
import sys
from pyosys import libyosys as yosys
design = yosys.Design()
for command in sys.argv[1].split(";"):
    yosys.run_pass(command, design)
"""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a component takes."""

    gates: int
    flip_flops: int
    memory_bits: int


def cost(component: wiring.Component, cfg: Config) -> Cost:
    """Synthesize a component to generic gates and count them."""
    with tempfile.TemporaryDirectory() as folder:
        source, report = Path(folder) / "unit.v", Path(folder) / "stat.json"
        source.write_text(VerilogLibrary(cfg).emit("unit", component))
        passes = (
            f"read_verilog {source};hierarchy -top unit;proc;flatten;opt;"
            "alumacc;opt;techmap;opt;abc -g AND,OR,XOR,MUX;opt_clean;"
            f"tee -q -o {report} stat -json"
        )
        subprocess.run(
            [sys.executable, "-c", _YOSYS, passes], check=True, stdout=subprocess.DEVNULL
        )
        cells = json.loads(report.read_text())["design"]
    kinds: dict[str, int] = cells["num_cells_by_type"]
    flip_flops = sum(count for kind, count in kinds.items() if "DFF" in kind)
    memories = sum(count for kind, count in kinds.items() if kind.startswith("$mem"))
    return Cost(
        gates=int(cells["num_cells"]) - flip_flops - memories,
        flip_flops=flip_flops,
        memory_bits=int(cells.get("num_memory_bits", 0)),
    )


def rows(cfg: Config) -> list[tuple[str, int, int, Callable[[], wiring.Component] | None]]:
    """Name, latency and interval in cycles, component (None: too large to synthesize)."""
    numeric = cfg.numeric
    places = SorterShape(
        size=numeric.max_tile_slices, key_bits=numeric.shift_bits + 1, payload_bits=1
    )
    small = {"size": min(32, places.size), "key_bits": places.key_bits, "payload_bits": 1}
    full = {"size": places.size, "key_bits": places.key_bits, "payload_bits": 1}
    table: list[tuple[str, int, int, Callable[[], wiring.Component] | None]] = []
    for sizes in (small, full):
        for kind in (PipelinedSorter, IterativeSorter):
            sorter = kind(**sizes)
            large = kind is PipelinedSorter and sizes["size"] > 32
            name = f"{'pipelined' if kind is PipelinedSorter else 'iterative'} {sizes['size']}"
            create = None if large else (lambda kind=kind, sizes=sizes: kind(**sizes))
            table.append((name, sorter.latency, sorter.interval, create))
    k_tile = numeric.k_tile
    table.append(
        ("reorder, bitonic", BitonicReorder.latency(cfg), k_tile, lambda: BitonicReorder(cfg))
    )
    table.append(
        ("reorder, buckets", BucketReorder.latency(cfg), k_tile, lambda: BucketReorder(cfg))
    )
    return table


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="paper", choices=PRESETS)
    cfg = PRESETS[parser.parse_args().preset]
    print(f"{'build':20}{'latency':>9}{'interval':>9}{'gates':>10}{'FFs':>9}{'memory bits':>13}")
    for name, latency, interval, create in rows(cfg):
        line = f"{name:20}{latency:9}{interval:9}"
        if create is not None:
            c = cost(create(), cfg)
            line += f"{c.gates:10,}{c.flip_flops:9,}{c.memory_bits:13,}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
