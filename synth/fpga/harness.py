"""A wrapper with four pins around a unit of hundreds, for place and route."""

from __future__ import annotations

import re

from amaranth.lib import wiring

from dstar.gen.library import flat_ports

#: Name of the wrapper's module.
TOP = "harness"


def harness(top: str, component: wiring.Component, verilog: str) -> str:
    """Verilog of a module that feeds every input of ``top`` and observes every output.

    A shift register from ``serial_i`` drives the inputs; the outputs are folded into a signature
    register (one exclusive-or a bit) that leaves by ``serial_o``.  So every path of the unit begins
    and ends at a register, nothing can be optimised away, and no wire goes to all of them but the
    clock.  Costs a flip-flop a pin of the unit, and a lookup table an output.

    ``verilog``: text with the module ``top``, which says whether it has a reset.
    """
    inputs: list[tuple[str, int]] = []
    outputs: list[tuple[str, int]] = []
    for name, flow, value in flat_ports(component):
        (inputs if flow == wiring.In else outputs).append((name, len(value)))
    header = re.search(rf"^module {top}\s*\(([^;]*)\);", verilog, re.MULTILINE)
    assert header is not None
    reset = re.search(r"\brst(_n)?\b", header[1])
    driven, seen = (max(1, sum(width for _, width in ports)) for ports in (inputs, outputs))
    connections = [".clk(clk)"]
    if reset:
        connections.append(f".{reset[0]}({reset[0]})")
    for ports, register in ((inputs, "drive"), (outputs, "result")):
        low = 0
        for name, width in ports:
            connections.append(f".{name}({register}[{low + width - 1}:{low}])")
            low += width
    join = ",\n    "
    return (
        f"module {TOP}(input clk, input {reset[0] if reset else 'rst'}, input serial_i, "
        "output serial_o);\n"
        f"  reg [{driven - 1}:0] drive;\n  reg [{seen - 1}:0] seen;\n"
        f"  wire [{seen - 1}:0] result;\n"
        "  always @(posedge clk) begin\n"
        "    drive <= {drive, serial_i};\n    seen <= (seen << 1) ^ result;\n  end\n"
        f"  assign serial_o = seen[{seen - 1}];\n"
        f"  {top} unit(\n    {join.join(connections)}\n  );\nendmodule\n"
    )
