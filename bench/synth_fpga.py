"""Units on an ECP5 through place and route: a table of ``docs/area.md``."""

from __future__ import annotations

import argparse

from rich.console import Console
from synth_points import markdown, write_block

from dstar.gen.config import load_config
from dstar.synth.fpga import fpga_unit
from dstar.synth.fpga.command import OUTPUT


def main() -> None:
    """Place, route, write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--units", nargs="+", default=["mpu"])
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    arguments = parser.parse_args()
    console = Console(highlight=False, soft_wrap=True)
    cfg = load_config(preset=arguments.preset)
    rows = []
    for unit in arguments.units:
        reports = []
        for seed in arguments.seeds:
            with console.status(f"{unit}, seed {seed}"):
                reports.append(fpga_unit(unit, cfg, folder=OUTPUT, seed=seed))
        first = reports[0]
        resources = ("luts", "flip_flops", "block_rams", "dsps")
        achieved = ", ".join(f"{report['achieved_mhz']:.1f}" for report in reports)
        took = max(report["resources"]["cpu_s"] for report in reports)
        rows.append([unit, *(f"{first[what]:,}" for what in resources), achieved, f"{took:.0f}"])
    head = ("unit", "lookup tables", "flip-flops", "block RAMs", "multipliers")
    seeds = ", ".join(map(str, arguments.seeds))
    table = markdown([*head, f"MHz (seeds {seeds})", "processor time, s"], rows)
    write_block("synth_fpga.py", table, console)


if __name__ == "__main__":
    main()
