"""Netlists, memories and the paper's figures, without running any tool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dstar.gen.config import load_config
from dstar.synth.errors import SynthError
from dstar.synth.flow import choose_buffer
from dstar.synth.liberty import Cell
from dstar.synth.memory import memory_area
from dstar.synth.netlist import MEMORY, MemoryShape, Netlist
from dstar.synth.paper import against_paper
from dstar.synth.pdk import CUSTOM, find_pdk
from dstar.verif.tests.synth_tools import toy


def test_wide_nets_get_trees_of_buffers(tmp_path: Path) -> None:
    """No more than the limit on any flip-flop or buffer, and the same function as before."""
    found = find_pdk(CUSTOM, liberty=toy(tmp_path))
    cells: dict[str, Any] = {"ff": {"type": "DFF", "connections": {"CK": [2], "D": [3], "Q": [4]}}}
    for index in range(100):
        pins = {"A": [4], "Y": [10 + index]}
        cells[f"g{index}"] = {"type": "INV", "connections": pins}
    ports = {"clk": {"direction": "input", "bits": [2]}}
    netlist = Netlist({"t": {"cells": cells, "ports": ports, "attributes": {}}}, "t")
    kinds = found.cells
    added = netlist.buffer_wide_nets(kinds, choose_buffer(kinds, found), limit=5)
    assert added == 20 + 4
    driver = {c["connections"]["Y"][0]: c for c in cells.values() if c["type"] == "BUF"}
    loads: dict[int, int] = {}
    for cell in cells.values():
        net = cell["connections"].get("A", [0])[0]
        loads[net] = loads.get(net, 0) + 1
    assert max(loads.values()) <= 5
    for index in range(100):
        net = cells[f"g{index}"]["connections"]["A"][0]
        while net in driver:
            net = driver[net]["connections"]["A"][0]
        assert net == 4
    assert netlist.depth("t", kinds) == 1


def _memory(*, read: list[int], write: list[int]) -> dict[str, Any]:
    """A memory cell of 8 words of 4 bits."""
    sizes = {"SIZE": "0" * 28 + "1000", "WIDTH": 4, "RD_PORTS": 1, "WR_PORTS": 1}
    return {
        "type": MEMORY,
        "connections": {"RD_ADDR": read, "WR_ADDR": write},
        "parameters": sizes,
    }


@pytest.mark.parametrize(("write", "single"), [([2, 3, 4], True), ([2, 3, 5], False)])
def test_ports_with_one_address_are_one_port(write: list[int], single: bool) -> None:
    cells = {"m": _memory(read=[2, 3, 4], write=write)}
    (shape,) = Netlist({"t": {"cells": cells, "ports": {}, "attributes": {}}}, "t").memories("t")
    assert shape.single_port is single
    area = Cell("x", area=1, kind="memory", address_width=3, word_width=4, addresses={"0"})
    flop = Cell("DFF", area=20.0, kind="ff")
    assert memory_area(shape, {"x": area}, flop, 10).macro is single


def test_instances_multiply_down_the_hierarchy() -> None:
    """Two rows of three blocks are six."""

    def module(*types: str, memory: bool = False) -> dict[str, Any]:
        cells: dict[str, Any] = {
            f"u{i}": {"type": t, "connections": {}} for i, t in enumerate(types)
        }
        if memory:
            cells["m"] = _memory(read=[2, 3, 4], write=[5, 6, 7])
        return {"cells": cells, "ports": {}, "attributes": {}}

    modules = {
        "top": module("row", "row", "INV"),
        "row": module("pe", "pe", "pe", memory=True),
        "pe": module("INV", "BUF"),
    }
    netlist = Netlist(modules, "top")
    assert netlist.instances() == {"top": 1, "row": 2, "pe": 6}
    assert netlist.counts("top") == {"INV": 1}
    assert netlist.memories("row") == [MemoryShape(depth=8, width=4, read_ports=1, write_ports=1)]


def test_memories_take_the_smallest_macros() -> None:
    """Enough ports, tiled in width and depth, a copy a read port; else flip-flops."""

    def macro(name: str, area: float, address: int, word: int, ports: int) -> Cell:
        return Cell(
            name, area=area, kind="memory", address_width=address, word_width=word,
            addresses={str(i) for i in range(ports)},
        )  # fmt: skip

    macros = {
        m.name: m
        for m in (macro("single", 1, 8, 32, 1), macro("dual", 500, 8, 32, 2),
                  macro("wide", 950, 8, 64, 2))
    }  # fmt: skip
    flop = Cell("DFF", area=20.0, kind="ff")
    shape = MemoryShape(depth=256, width=64, read_ports=1, write_ports=1)
    assert memory_area(shape, macros, flop, 10).made_of == "1 x wide"
    two = MemoryShape(depth=300, width=20, read_ports=2, write_ports=1)
    assert memory_area(two, macros, flop, 10).made_of == "4 x dual"
    assert memory_area(two, macros, flop, 10).area == 2000
    none = memory_area(MemoryShape(depth=4, width=2, read_ports=1, write_ports=1), {}, flop, 10)
    assert not none.macro
    assert none.area == 8 * 30 + 3 * 2 * 10


def test_paper_comparison_is_labelled(tmp_path: Path) -> None:
    """Scaled figures say so and state the factor; other arrays are not compared."""
    found = find_pdk(CUSTOM, liberty=toy(tmp_path))
    paper = against_paper("mpu", load_config(preset="paper"), 4e6, found)
    assert paper is not None
    assert paper["how"].startswith("scaled, not measured")
    assert paper["ours_mm2"] == pytest.approx(4 * 0.798 / 4)
    assert against_paper("mpu", load_config(preset="tiny"), 4e6, found) is None
    assert against_paper("pe", load_config(preset="paper"), 4e6, found) is None


def test_cell_of_unknown_area(tmp_path: Path) -> None:
    """A cell that none of the files holds is an error, not nothing."""
    module = {"cells": {"u": {"type": "NAND9", "connections": {}}}, "ports": {}, "attributes": {}}
    netlist = Netlist({"t": module}, "t")
    with pytest.raises(SynthError, match=r"cell NAND9 \(module t\) .* none of a\.lib, b\.lib"):
        netlist.check({}, "a.lib, b.lib")
