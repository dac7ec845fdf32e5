"""Compare our PE with a hand-made Booth INT8 PE, harder than what Yosys makes of a product.

Prints area and delay a PE, averaged over the block that shares operand registers.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from dstar.gen.config import load_config
from dstar.rtl.mpu.tile import PETile
from dstar.synth.flow import synthesize
from dstar.synth.pdk import find_pdk
from dstar.synth.reference import BoothPE, Int8Tile
from dstar.synth.script import Plan
from dstar.synth.units import verilog

OUTPUT = Path("out") / "synth" / "booth"


def main() -> None:
    """Both designs on each library."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="paper")
    parser.add_argument("--pdks", nargs="+", default=["sky130hd", "asap7"])
    arguments = parser.parse_args()
    cfg = load_config(preset=arguments.preset)
    cluster = cfg.array.cluster
    designs = {
        "ours": PETile(cfg, rows=cluster),
        "booth": Int8Tile(cfg, rows=cluster, pe=BoothPE),
    }
    console = Console(highlight=False)
    for pdk in arguments.pdks:
        found = find_pdk(pdk)
        plan = Plan(top="t", clock_ps=found.pdk.clock_ps)
        results = {
            name: synthesize(verilog("t", component, cfg), plan, found, OUTPUT / pdk / name)
            for name, component in designs.items()
        }
        ours, booth = results["ours"], results["booth"]
        for name, result in results.items():
            console.print(
                f"{pdk} {name}: {result.area / cluster**2:,.1f} µm², "
                f"{result.timing.delay_ps:,.0f} ps ({result.timing.timer})"
            )
        console.print(
            f"{pdk} ratios: area {ours.area / booth.area:.3f}, "
            f"delay {ours.timing.delay_ps / booth.timing.delay_ps:.3f}"
        )


if __name__ == "__main__":
    main()
