# amaranth: UnusedElaboratable=no
"""Where the QPU's area goes: its modules, synthesized once each and counted by instance.

``python bench/synth_qpu_area.py [--preset P] [--pdk NAME]`` prints a table in Markdown, with the
floor that its adders alone make: two correctly rounded binary16 additions a token and cycle.
Areas are standard cells through the flow of ``dstar synth``; memories stand apart.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from dstar.gen.config import PRESETS
from dstar.rtl.qpu.qpu import QPU
from dstar.synth.errors import SynthError
from dstar.synth.flow import synthesize
from dstar.synth.pdk import find_pdk
from dstar.synth.script import Plan
from dstar.synth.units import verilog

#: Parts by prefix of their modules' names.
PARTS = {
    "fp16_add": "binary16 adders",
    "quantize_row": "stage 3: shift, round, clip",
    "reconstruct_row": "q to binary16, saturation",
    "store": "read registers of the memories",
    "qpu.intake": "commands, counters",
    "qpu.tree": "stage 1: comparator tree",
    "qpu.bins": "stage 2: bin table",
    "qpu.reorder": "stage 4: buckets",
    "qpu.encode": "stage 5: encoder",
    "qpu": "registers of vectors on their way",
}


def main() -> None:
    """Synthesize, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="paper", choices=PRESETS)
    parser.add_argument("--pdk", default="sky130hd")
    arguments = parser.parse_args()
    cfg, found = PRESETS[arguments.preset], find_pdk(arguments.pdk)
    keep = tuple(f"*{name.removeprefix('qpu.')}*" for name in PARTS if name != "qpu")
    plan = Plan(top="qpu", clock_ps=found.pdk.clock_ps, keep=keep)
    with tempfile.TemporaryDirectory() as folder:
        result = synthesize(verilog("qpu", QPU(cfg), cfg), plan, found, Path(folder))
    count: dict[str, int] = defaultdict(int)
    area: dict[str, float] = defaultdict(float)
    flip_flops: dict[str, float] = defaultdict(float)
    for name, module in result.modules.items():
        part = next(text for prefix, text in PARTS.items() if name.startswith(prefix))
        count[part] += module.instances
        area[part] += module.instances * module.area
        flip_flops[part] += module.instances * module.sequential
    print("| part | instances | area µm² | of it flip-flops | share |\n|---|---|---|---|---|")
    for part in sorted(area, key=lambda part: -area[part]):
        share = area[part] / result.area
        print(
            f"| {part} | {count[part]} | {area[part]:,.0f} | {flip_flops[part] / area[part]:.0%} "
            f"| {share:.1%} |"
        )
    print(f"| all | | {result.area:,.0f} | {result.sequential_area / result.area:.0%} | |")
    adders = PARTS["fp16_add"]
    print(
        f"\nFloor: the adders without their registers, {area[adders] - flip_flops[adders]:,.0f} "
        f"µm²; a token: {result.area / cfg.array.rows:,.0f} µm² in all.  Delay "
        f"{result.timing.delay_ps:,.0f} ps ({result.timing.timer})."
    )


if __name__ == "__main__":
    try:
        main()
    except SynthError as error:
        sys.exit(str(error))
