"""How small the QPU and the VPU could be: their binary16 arithmetic alone, beside the MPU.

One module each, without any register, for the smallest area at whatever delay; a table of
``docs/area.md``.  A token of the QPU takes two additions a cycle (difference, reconstruction), a
lane of the VPU an addition and a multiplication.
"""

from __future__ import annotations

import argparse
from typing import Any

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from rich.console import Console
from synth_points import OUTPUT, markdown, point, write_block

from dstar.gen.config import Config, load_config
from dstar.rtl.fp16.add import FP16Add
from dstar.rtl.fp16.mul import FP16Mul
from dstar.synth.flow import synthesize
from dstar.synth.paper import TABLE_3
from dstar.synth.pdk import Found, find_pdk
from dstar.synth.script import Plan
from dstar.synth.units import verilog

#: A clock period that no path needs, in ps: gates stay as small as they are.
UNHURRIED = 1_000_000
#: Bits of a binary16 number's significand.
SIGNIFICAND = 11


class Significands(wiring.Component):
    """The product inside a binary16 multiplication: nothing shifted, nothing rounded."""

    def __init__(self) -> None:
        ports = {"a": In(SIGNIFICAND), "b": In(SIGNIFICAND)}
        super().__init__({**ports, "product": Out(2 * SIGNIFICAND)})

    def elaborate(self, platform: Any) -> Module:
        """Multiply."""
        m = Module()
        m.d.comb += self.product.eq(self.a * self.b)
        return m


def smallest(name: str, component: wiring.Component, cfg: Config, found: Found) -> float:
    """Area in µm² by recipe ``small``, the smaller of Booth and array multipliers."""
    text = verilog(name, component, cfg)
    areas = []
    for booth in (False, True):
        plan = Plan(top=name, clock_ps=UNHURRIED, booth=booth, recipe="small")
        folder = OUTPUT / "floor" / found.pdk.name / f"{name}-{'booth' if booth else 'array'}"
        areas.append(synthesize(text, plan, found, folder).area)
    return min(areas)


def main() -> None:
    """The three parts on each library, and what a row of each needs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="paper")
    parser.add_argument("--pdks", nargs="+", default=["sky130hd", "asap7"])
    arguments = parser.parse_args()
    cfg = load_config(preset=arguments.preset)
    console = Console(highlight=False, soft_wrap=True)
    rows = []
    for pdk in arguments.pdks:
        found = find_pdk(pdk)
        mpu = point("mpu", cfg, pdk, console)
        assert mpu is not None
        add = smallest("adder", FP16Add(stages=0), cfg, found)
        multiply = smallest("multiplier", FP16Mul(), cfg, found)
        product = smallest("product", Significands(), cfg, found)
        row = cfg.array.rows / mpu["area_um2"]
        qpu, vpu, least = (row * area for area in (2 * add, add + multiply, add + product))
        shares = (qpu, vpu, qpu + vpu, qpu + least, row * product)
        rows.append(
            [pdk]
            + [f"{area:,.{0 if area > 1000 else 1}f}" for area in (add, multiply, product)]
            + [f"{share:.1%}" for share in shares]
        )
    mpu_mm2, qpu_mm2, vpu_mm2 = (TABLE_3[unit] for unit in ("mpu", "qpu", "vpu"))
    paper = [f"{part / mpu_mm2:.1%}" for part in (qpu_mm2, vpu_mm2, qpu_mm2 + vpu_mm2)]
    rows.append(["the paper, whole units", "-", "-", "-", *paper, "-", "-"])
    parts = ("adder µm²", "multiplier µm²", "11 x 11 bits alone µm²")
    units = ("QPU's adders / MPU", "VPU's adders, multipliers / MPU", "both")
    head = ("library", *parts, *units, "both, 11 x 11 bits alone", "11 x 11 bits a lane / MPU")
    write_block("synth_floor.py", markdown(head, rows), console)


if __name__ == "__main__":
    main()
