"""Memories: macros where the library has them, else an estimate in flip-flops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dstar.synth.liberty import Cell
from dstar.synth.netlist import MemoryShape


@dataclass(frozen=True, kw_only=True)
class MemoryArea:
    """Area of one memory in µm², and what it is made of."""

    area: float
    made_of: str
    macro: bool


def _tiles(shape: MemoryShape, macro: Cell) -> int:
    """Macros that a memory takes: side by side for width, above each other for depth."""
    across = -(-shape.width // macro.word_width)
    return across * -(-shape.depth // (1 << macro.address_width))


def memory_area(
    shape: MemoryShape, macros: Mapping[str, Cell], flip_flop: Cell, multiplexer: float
) -> MemoryArea:
    """The smallest tiling by one kind of macro with enough ports, or flip-flops.

    One write and one read port in the same cycle need two addresses, unless the memory is a
    single-port one; further read ports are further copies.  Without a macro, or where one would be
    larger, every bit is estimated as a flip-flop with a hold multiplexer and ``depth - 1`` two-way
    multiplexers a read port.
    """
    needed = 1 if shape.single_port else min(2, shape.read_ports + shape.write_ports)
    copies = max(1, shape.read_ports)
    assert flip_flop.area is not None
    bits = shape.depth * shape.width
    read = max(1, shape.read_ports) * (shape.depth - 1) * shape.width * multiplexer
    best = MemoryArea(
        area=bits * (flip_flop.area + multiplexer) + read,
        made_of=f"{bits} x {flip_flop.name} (estimate)",
        macro=False,
    )
    for name, macro in macros.items():
        if macro.ports < needed or not macro.word_width or macro.area is None:
            continue
        count = _tiles(shape, macro) * copies
        if count * macro.area < best.area:
            best = MemoryArea(area=count * macro.area, made_of=f"{count} x {name}", macro=True)
    return best
