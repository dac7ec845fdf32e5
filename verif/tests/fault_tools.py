"""Faults in generated Verilog that one build holds all of, each switched on by a plusarg.

A build takes longer than a run; so every planted fault stands beside the right expression, and
``+fault=N`` chooses it at the start of the simulation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """One wrong expression: ``signal`` of ``module`` becomes ``wrong``, where ``{right}`` is what
    stands there."""

    module: str
    signal: str
    wrong: str


def plant(text: str, faults: Mapping[str, Fault]) -> str:
    """Verilog with every fault planted, and none switched on.

    Raises
    ------
    ValueError
        If a module, or an assignment of a fault's signal in it, is not there.
    """
    for number, fault in enumerate(faults.values(), 1):
        module = re.search(
            rf"^module \\?{re.escape(fault.module)} ?\(.*?\);\n(.*?)^endmodule", text, re.M | re.S
        )
        if module is None:
            raise ValueError(f"no module {fault.module}")
        switch = f"fault_{number}"
        body = module[1]
        hits = list(re.finditer(rf"^  assign \\?{re.escape(fault.signal)} = (.*);$", body, re.M))
        if len(hits) != 1:
            raise ValueError(f"{len(hits)} assignments of {fault.signal} in {fault.module}")
        right = f"({hits[0][1]})"
        wrong = fault.wrong.format(right=right)
        start, end = hits[0].span(1)
        body = f"{body[:start]}{switch} ? ({wrong}) : {right}{body[end:]}"
        declared = (
            f"  reg {switch};\n  integer chosen_{number} = 0;\n  initial begin\n"
            f'    void\'($value$plusargs("fault=%d", chosen_{number}));\n'
            f"    {switch} = chosen_{number} == {number};\n  end\n"
        )
        text = f"{text[: module.start(1)]}{declared}{body}{text[module.end(1) :]}"
    return text


def switch_on(faults: Mapping[str, Fault], name: str | None) -> list[str]:
    """The plusargs that switch a fault on, or none."""
    return [] if name is None else [f"+fault={list(faults).index(name) + 1}"]
