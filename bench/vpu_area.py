"""Where a lane's area goes, by configuration, and what a function unit shared by lanes would cost.

``python bench/vpu_area.py`` synthesizes the lane on sky130hd (about two minutes) and prints both
tables.  A shared unit is an estimate: its area divided by the lanes, without the multiplexers in
front of it, and its steps taken by one lane after the other.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from dstar.gen.config import PRESETS
from dstar.gen.library import VerilogLibrary
from dstar.golden.vpu.isa import Op, Program
from dstar.golden.vpu.programs import normalize, softmax, unary
from dstar.golden.vpu.steps import Horner, Magnitude, Place, Step, program_cycles, steps
from dstar.rtl.vpu.lane import VPULane
from dstar.synth.flow import synthesize
from dstar.synth.paper import against_paper
from dstar.synth.pdk import find_pdk
from dstar.synth.script import Plan

PAPER = PRESETS["paper"]
LANES, COLS = PAPER.array.rows, PAPER.array.cols
KEEP = ("vpu_function", "vpu_accumulator")
#: Name, changes of the ``vector`` section, and whether Yosys makes Booth multipliers.
VARIANTS: tuple[tuple[str, dict[str, int], bool], ...] = (
    ("default", {}, False),
    ("default, Booth multiplier", {}, True),
    ("segments 16, width 24", {"vector.segments": 16, "vector.width": 24}, False),
    ("acc_width 50", {"vector.acc_width": 50}, False),
)


def lane_area(changes: dict[str, int], booth: bool) -> dict[str, float]:
    """Area in um2 of a lane's modules, without their submodules."""
    cfg = PAPER.replace(changes)
    found = find_pdk("sky130hd")
    plan = Plan(top="vpu_lane", clock_ps=found.pdk.clock_ps, keep=KEEP, booth=booth)
    text = VerilogLibrary(cfg).emit("vpu_lane", VPULane(cfg.vector))
    with tempfile.TemporaryDirectory() as folder:
        result = synthesize(text, plan, found, Path(folder))
    return {name: module.area for name, module in result.modules.items()}


def shared_steps(op: Op) -> int:
    """Steps of an operation that use the function unit."""
    ends = (Magnitude.PRODUCT, Magnitude.MANTISSA, Magnitude.SCALED)

    def uses(step: Step) -> bool:
        return step.horner != Horner.NONE or step.place != Place.NONE or step.magnitude in ends

    return sum(map(uses, steps(op, LANES)))


def tile_cycles(programs: list[Program], lanes: int) -> int:
    """Cycles of programs when ``lanes`` lanes take turns at one function unit."""
    waits = sum(p.count * sum(shared_steps(i.op) for i in p.instructions) for p in programs)
    return sum(program_cycles(p, LANES) for p in programs) + (lanes - 1) * waits


def main() -> None:
    """Print both tables."""
    print("lane on sky130hd, um2       function  accumulator    rest      sum")
    areas = []
    for name, changes, booth in VARIANTS:
        parts = lane_area(changes, booth)
        function, accumulator, rest = (parts[part] for part in (*KEEP, "vpu_lane"))
        areas.append((function, accumulator + rest))
        whole = sum(areas[-1])
        print(f"{name:26} {function:9,.0f}  {accumulator:11,.0f}  {rest:6,.0f}  {whole:7,.0f}")
    function, rest = areas[0]
    scaled = against_paper("vpu", PAPER, LANES * (function + rest), find_pdk("sky130hd"))
    assert scaled is not None
    print(
        f"\n{LANES} lanes: {LANES * (function + rest) * 1e-6:.2f} mm2; scaled to 45 nm by NAND2 "
        f"areas {scaled['ours_mm2']:.2f} mm2, the paper's VPU {scaled['paper_mm2']} mm2"
    )
    print("\nlanes a function unit   a lane, um2   GELU tile   softmax tile")
    for lanes in (1, 2, 4, 8):
        gelu = tile_cycles(unary(Op.GELU, COLS), lanes)
        soft = tile_cycles([*softmax(COLS), *normalize(COLS)], lanes)
        print(f"{lanes:21}   {rest + function / lanes:11,.0f}   {gelu:9,}   {soft:12,}")


if __name__ == "__main__":
    main()
