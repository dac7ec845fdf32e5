"""Our PE against a hand-made Booth INT8 PE, harder than what Yosys makes of a product.

Area and delay a PE, averaged over the block that shares operand registers; a table of
``docs/area.md``.
"""

from __future__ import annotations

import argparse

from rich.console import Console
from synth_points import OUTPUT, markdown, write_block

from dstar.gen.config import load_config
from dstar.rtl.mpu.tile import PETile
from dstar.synth.flow import synthesize
from dstar.synth.pdk import find_pdk
from dstar.synth.reference import BoothPE, Int8Tile
from dstar.synth.script import Plan
from dstar.synth.units import verilog


def main() -> None:
    """Both designs on each library."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="paper")
    parser.add_argument("--pdks", nargs="+", default=["sky130hd", "asap7", "ihp-sg13g2"])
    arguments = parser.parse_args()
    cfg = load_config(preset=arguments.preset)
    cluster = cfg.array.cluster
    designs = {
        "ours": PETile(cfg, rows=cluster),
        "booth": Int8Tile(cfg, rows=cluster, pe=BoothPE),
    }
    console = Console(highlight=False, soft_wrap=True)
    rows = []
    for pdk in arguments.pdks:
        found = find_pdk(pdk)
        plan = Plan(top="t", clock_ps=found.pdk.clock_ps)
        figures = []
        for name, component in designs.items():
            folder = OUTPUT / "booth" / pdk / name
            result = synthesize(verilog("t", component, cfg), plan, found, folder)
            figures.append((result.area / cluster**2, result.timing.delay_ps))
        cells = [f"{a:,.{0 if a > 1000 else 1}f}, {d:,.0f}" for a, d in figures]
        ratios = [f"{ours / booth:.3f}" for ours, booth in zip(*figures, strict=True)]
        rows.append([pdk, *cells, *ratios])
    head = ("library", "ours µm², ps", "hand-made INT8 µm², ps", "area", "delay")
    write_block("synth_reference.py", markdown(head, rows), console)


if __name__ == "__main__":
    main()
