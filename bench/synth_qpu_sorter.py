# amaranth: UnusedElaboratable=no
"""Compares ways to sort a tile's slices: cycles, area, flip-flops, memory bits.

``python bench/synth_qpu_sorter.py [--preset P] [--pdk NAME]`` prints a table in Markdown.  Areas
are standard cells through the flow of ``dstar synth``; memories stand apart, in bits and as macros
of the library, or as an estimate in flip-flops where none fits.  The pipelined network is
synthesized flat at the sizes of ``--flat``, and everywhere as one comparator with its two
registers, times their number.  Interval: cycles from one tile to the next, at its most slices.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amaranth.hdl import Const, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from dstar.gen.config import PRESETS, Config
from dstar.rtl.qpu.bitonic import BitonicReorder
from dstar.rtl.qpu.reorder import BucketReorder
from dstar.rtl.sorter import IterativeSorter, PipelinedSorter
from dstar.rtl.sorter_network import SorterShape, exchange
from dstar.synth.errors import SynthError
from dstar.synth.flow import synthesize
from dstar.synth.netlist import Netlist
from dstar.synth.pdk import Found, find_pdk
from dstar.synth.script import Plan
from dstar.synth.units import verilog


class Node(wiring.Component):
    """A comparator of the pipelined network and the registers behind it."""

    def __init__(self, shape: SorterShape) -> None:
        self.shape = shape
        width = shape.payload_bits + shape.levels + shape.key_bits
        ports = {"a": In(width), "b": In(width), "enable": In(1)}
        super().__init__({**ports, "first": Out(width), "second": Out(width)})

    def elaborate(self, platform: Any) -> Module:
        """Order two words; keep them."""
        m = Module()
        ordered = exchange(m, "node", self.shape, self.a, self.b, Const(0, 1))
        for port, word in zip((self.first, self.second), ordered, strict=True):
            kept = Signal(len(word), name=f"{port.name}_kept", reset_less=True)
            with m.If(self.enable):
                m.d.sync += kept.eq(word)
            m.d.comb += port.eq(kept)
        return m


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a component takes: µm² of standard cells, flip-flops, bits and µm² of memories."""

    area: float
    flip_flops: int
    memory_bits: int = 0
    memory_area: float = 0.0

    def __mul__(self, times: int) -> Cost:
        """That many of a component without memories."""
        return Cost(area=self.area * times, flip_flops=self.flip_flops * times)


def cost(component: wiring.Component, cfg: Config, found: Found) -> Cost:
    """Synthesize a component."""
    plan = Plan(top="unit", clock_ps=found.pdk.clock_ps, keep=("store_*",))
    with tempfile.TemporaryDirectory() as folder:
        result = synthesize(verilog("unit", component, cfg), plan, found, Path(folder))
        netlist = Netlist.read(result.folder / "netlist.json", plan.top)
        bits = sum(
            instances * sum(memory.depth * memory.width for memory in netlist.memories(name))
            for name, instances in netlist.instances().items()
        )
    cells = found.cells
    return Cost(
        area=result.area,
        flip_flops=sum(n for name, n in result.cells.items() if cells[name].sequential),
        memory_bits=bits,
        memory_area=result.memory_area,
    )


def line(name: str, latency: int, interval: int, c: Cost) -> str:
    """A row of the table."""
    areas = f"{c.area:,.0f}", f"{c.flip_flops:,}", f"{c.memory_bits:,}", f"{c.memory_area:,.0f}"
    cells = (name, latency, interval, *areas)
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="paper", choices=PRESETS)
    parser.add_argument("--pdk", default="sky130hd")
    parser.add_argument("--flat", type=int, nargs="*", default=[32, 64])
    arguments = parser.parse_args()
    cfg, found = PRESETS[arguments.preset], find_pdk(arguments.pdk)
    numeric = cfg.numeric
    print("| build | latency | interval | area µm² | flip-flops | memory bits | memories µm² |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for size in (*arguments.flat, numeric.max_tile_slices):
        shape = {"size": size, "key_bits": numeric.shift_bits + 1, "payload_bits": 1}
        sorter = PipelinedSorter(**shape)
        if size in arguments.flat:
            name = f"pipelined, {size} places, flat"
            print(line(name, sorter.latency, 1, cost(sorter, cfg, found)), flush=True)
        nodes = sorter.shape.columns * sorter.shape.comparators
        name = f"pipelined, {size} places, {nodes:,} x one comparator"
        one = cost(Node(sorter.shape), cfg, found)
        print(line(name, sorter.latency, 1, one * nodes), flush=True)
        iterative = IterativeSorter(**shape)
        name = f"iterative, {size} places"
        cycles = iterative.latency, iterative.interval
        print(line(name, *cycles, cost(iterative, cfg, found)), flush=True)
    # A network's result stays where it is until its last word has left.
    words = -(-numeric.max_tile_slices // cfg.array.lanes)
    for name, reorder, interval in (
        ("whole stage 4, iterative network", BitonicReorder, iterative.latency + words - 1),
        ("whole stage 4, buckets (default)", BucketReorder, words),
    ):
        c = cost(reorder(cfg), cfg, found)
        print(line(name, reorder.latency(cfg), interval, c), flush=True)


if __name__ == "__main__":
    try:
        main()
    except SynthError as error:
        sys.exit(str(error))
