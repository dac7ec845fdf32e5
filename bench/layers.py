"""All linear layers of all blocks of the shipped DiT, 28 steps, through the 64x64 RTL.

Prints the whole comparison, and the issue utilization of the differential steps alone.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from dstar.gen.config import load_config
from dstar.golden.capture import capture_builtin
from dstar.golden.dump import DumpReader
from dstar.golden.profile import dump_tables
from dstar.verif.compare import compare
from dstar.verif.compare.mpu import mpu_simulator

STEPS = 28


def main() -> None:
    """Capture, compare twice (keyframe, differential steps), print."""
    cfg = load_config(preset="paper")
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "dit.safetensors"
        capture_builtin(path, steps=STEPS)
        start = time.perf_counter()
        exact = True
        with DumpReader(path) as dump, mpu_simulator(cfg) as simulator:
            tables = dump_tables(dump, dump.match("blocks.*"), cfg)
            for steps in (range(1), range(1, STEPS)):
                report = compare(
                    dump, cfg, simulator, tables=tables, layers="blocks.*", steps=steps
                )
                report.print(console)
                exact &= report.bit_exact
        minutes = (time.perf_counter() - start) / 60
        console.print(f"{STEPS} steps, bit-exact: {exact}, {minutes:.1f} minutes, build included")
    sys.exit(not exact)


if __name__ == "__main__":
    main()
