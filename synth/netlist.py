"""A mapped netlist (Yosys' JSON): counting, buffering wide nets, writing it as Verilog."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dstar.synth.errors import SynthError
from dstar.synth.liberty import Cell

#: Yosys' memory cell, left unmapped: memories are counted apart.
MEMORY = "$mem_v2"
#: Sinks that one flip-flop, port or buffer may drive.
FANOUT_LIMIT = 12


@dataclass(frozen=True, kw_only=True)
class MemoryShape:
    """A memory of the design: words, bits a word, ports.

    ``single_port``: its write and its read port have one address, so that each cycle is for one.
    """

    depth: int
    width: int
    read_ports: int
    write_ports: int
    single_port: bool = False


def _number(value: str | int) -> int:
    return int(value, 2) if isinstance(value, str) else value


class Netlist:
    """Modules of a netlist whose leaves are library cells, submodules and memories."""

    def __init__(self, modules: dict[str, Any], top: str) -> None:
        self.modules = modules
        self.top = top

    @classmethod
    def read(cls, path: Path, top: str) -> Netlist:
        """Read what Yosys' ``write_json`` wrote, without its blackboxes."""
        modules = json.loads(path.read_text())["modules"]
        return cls({n: m for n, m in modules.items() if "blackbox" not in m["attributes"]}, top)

    def instances(self) -> Counter[str]:
        """How often each module occurs under the top, itself included."""
        total: Counter[str] = Counter()

        def visit(name: str, times: int) -> None:
            total[name] += times
            below = Counter(c["type"] for c in self.modules[name]["cells"].values())
            for child, count in below.items():
                if child in self.modules:
                    visit(child, times * count)

        visit(self.top, 1)
        return total

    def counts(self, module: str) -> Counter[str]:
        """Library cells of one module, without those of its submodules, by type."""
        types = Counter(c["type"] for c in self.modules[module]["cells"].values())
        return Counter({t: n for t, n in types.items() if t != MEMORY and t not in self.modules})

    def memories(self, module: str) -> list[MemoryShape]:
        """Memories of one module."""
        return [
            MemoryShape(
                depth=_number(cell["parameters"]["SIZE"]),
                width=_number(cell["parameters"]["WIDTH"]),
                read_ports=_number(cell["parameters"]["RD_PORTS"]),
                write_ports=_number(cell["parameters"]["WR_PORTS"]),
                single_port=cell["connections"]["RD_ADDR"] == cell["connections"]["WR_ADDR"],
            )
            for cell in self.modules[module]["cells"].values()
            if cell["type"] == MEMORY
        ]

    def check(self, cells: Mapping[str, Cell], files: str) -> None:
        """Every leaf must be a cell of known area.

        Raises:
            SynthError: naming the cell and where it is missing.
        """
        for module in self.instances():
            for name in self.counts(module):
                if name.startswith("$"):
                    raise SynthError(f"no cell for {name} (module {module}): {_hint(name)} {files}")
                if name not in cells or cells[name].area is None:
                    raise SynthError(
                        f"area of cell {name} (module {module}) is not known: it is in none of "
                        f"{files}; give the library's other files too"
                    )

    def buffer_wide_nets(
        self,
        cells: Mapping[str, Cell],
        buffer: Cell,
        *,
        limit: int = FANOUT_LIMIT,
    ) -> int:
        """Put a balanced tree of buffers on every flip-flop, port and memory output that drives
        more than ``limit`` sinks; return how many buffers that took.

        ABC sizes and buffers logic only: to it a register's output is an ideal source, and in
        timing analysis a bare flip-flop would then drive hundreds of gates.
        """
        return sum(self._buffer(self.modules[name], cells, buffer, limit) for name in self.modules)

    def _buffer(
        self, module: dict[str, Any], cells: Mapping[str, Cell], buffer: Cell, limit: int
    ) -> int:
        assert buffer.buffer is not None
        pin_in, pin_out = buffer.buffer
        sinks, sources, clocks, fresh = self._nets(module, cells)
        added = 0
        for bit in sorted(sources - clocks):
            waiting = sinks.get(bit, [])
            while len(waiting) > limit:
                groups = -(-len(waiting) // limit)
                size = -(-len(waiting) // groups)
                above = []
                for start in range(0, len(waiting), size):
                    name, fresh, added = f"fanout_{added}", fresh + 1, added + 1
                    connections = {pin_in: [bit], pin_out: [fresh]}
                    module["cells"][name] = {"type": buffer.name, "connections": connections}
                    for connection, index in waiting[start : start + size]:
                        connection[index] = fresh
                    above.append((connections[pin_in], 0))
                waiting = above
        return added

    def _nets(
        self, module: dict[str, Any], cells: Mapping[str, Cell]
    ) -> tuple[dict[int, list[tuple[list[Any], int]]], set[int], set[int], int]:
        """Sinks of every net, nets that ABC takes for ideal sources, clock nets, highest net."""
        sinks: dict[int, list[tuple[list[Any], int]]] = {}
        sources: set[int] = set()
        clocks: set[int] = set()
        highest = 1
        for port in module["ports"].values():
            highest = max([highest, *(b for b in port["bits"] if isinstance(b, int))])
            if port["direction"] == "input":
                sources.update(b for b in port["bits"] if isinstance(b, int))
        for cell in module["cells"].values():
            outputs = self.outputs(cell, cells)
            kind = cells.get(cell["type"])
            for pin, bits in cell["connections"].items():
                nets = [b for b in bits if isinstance(b, int)]
                highest = max([highest, *nets])
                if pin in outputs:
                    if kind is None or kind.sequential:
                        sources.update(nets)
                    continue
                if (kind is not None and pin in kind.clocks) or pin in ("clk", "RD_CLK", "WR_CLK"):
                    clocks.update(nets)
                for index, bit in enumerate(bits):
                    if isinstance(bit, int):
                        sinks.setdefault(bit, []).append((bits, index))
        return sinks, sources, clocks, highest

    def outputs(self, cell: Mapping[str, Any], cells: Mapping[str, Cell]) -> frozenset[str]:
        """Output pins of a cell instance."""
        kind = cell["type"]
        if kind in self.modules:
            ports = self.modules[kind]["ports"].items()
            return frozenset(n for n, port in ports if port["direction"] == "output")
        return frozenset({"RD_DATA"}) if kind == MEMORY else cells[kind].outputs

    def depth(self, module: str, cells: Mapping[str, Cell]) -> int:
        """Most gates, buffers apart, between two registers, ports or memories of a module."""
        drivers: dict[int, tuple[list[int], int]] = {}
        for cell in self.modules[module]["cells"].values():
            kind = cells.get(cell["type"])
            if kind is None or kind.sequential:
                continue
            pins = cell["connections"].items()
            inputs = [b for p, bits in pins if p not in kind.outputs for b in bits]
            nets = [b for b in inputs if isinstance(b, int)]
            for pin in kind.outputs & set(cell["connections"]):
                for bit in cell["connections"][pin]:
                    drivers[bit] = (nets, 0 if kind.buffer else 1)
        return _longest(drivers)

    def write_verilog(self, module: str, path: Path, cells: Mapping[str, Cell]) -> None:
        """Write one module's library cells, without submodules and memories, as Verilog."""
        body = self.modules[module]
        names: dict[int, str] = {}
        lines, ports = [], []
        for name, port in body["ports"].items():
            width = len(port["bits"])
            ports.append(name)
            span = f" [{width - 1}:0]" if width > 1 else ""
            lines.append(f"  {port['direction']}{span} {name};")
            for index, bit in enumerate(port["bits"]):
                wire = f"{name}[{index}]" if width > 1 else name
                if port["direction"] == "input":
                    names[bit] = wire
                elif bit in names or not isinstance(bit, int):
                    lines.append(f"  assign {wire} = {names[bit] if bit in names else _tie(bit)};")
                else:
                    names[bit] = wire

        def net(bit: int | str) -> str:
            return names.get(bit, f"n{bit}") if isinstance(bit, int) else _tie(bit)

        for index, cell in enumerate(body["cells"].values()):
            if cell["type"] in cells:
                pins = cell["connections"].items()
                pairs = ", ".join(f".{pin}({net(bits[0])})" for pin, bits in pins if bits)
                lines.append(f"  {cell['type']} u{index} ({pairs});")
        text = "\n".join(lines)
        path.write_text(f"module {module} ({', '.join(ports)});\n{text}\nendmodule\n")


def _tie(bit: str | int) -> str:
    return "1'b1" if bit == "1" else "1'b0"


def _hint(name: str) -> str:
    if "DFF" in name and not name.startswith(("$_DFF_P_", "$_DFF_N_")):
        return "the library has no flip-flop with that (asynchronous) reset or set;"
    if "DFF" in name or "LATCH" in name:
        return "the library has no such flip-flop or latch;"
    return "the library lacks a gate that could make it;"


def _longest(drivers: Mapping[int, tuple[list[int], int]]) -> int:
    """Longest path through a graph of nets, each with its predecessors and its own weight."""
    depth: dict[int, int] = {}
    for start in drivers:
        stack = [start]
        while stack:
            net = stack[-1]
            before, weight = drivers[net]
            waiting = [b for b in before if b in drivers and b not in depth]
            if waiting and net not in depth:
                stack += waiting
                continue
            depth[net] = weight + max((depth.get(b, 0) for b in before), default=0)
            stack.pop()
    return max(depth.values(), default=0)
