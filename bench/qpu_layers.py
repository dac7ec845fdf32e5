"""All linear layers of the shipped DiT, 28 steps, through QPU and MPU in one 64x64 simulation.

``python bench/qpu_layers.py [--steps A:B] [--jobs N]`` goes from binary16 activations to integer
sums and prints the comparison; its exit code is 0 only when every value is right.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from dstar.gen.config import PRESETS
from dstar.golden.capture import capture_builtin
from dstar.golden.dump import DumpReader
from dstar.golden.profile import dump_tables
from dstar.verif.compare import parse_steps
from dstar.verif.compare.qpu import compare_qpu, qpu_simulator

STEPS = 28


def main() -> None:
    """Capture, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", default=f"0:{STEPS}")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    cfg = PRESETS["paper"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "dit.safetensors"
        capture_builtin(path, steps=STEPS)
        with DumpReader(path) as dump, qpu_simulator(cfg, "qpu+mpu") as simulator:
            report = compare_qpu(
                dump,
                cfg,
                simulator,
                tables=dump_tables(dump, dump.match("*"), cfg),
                steps=parse_steps(arguments.steps, STEPS),
                jobs=arguments.jobs,
            )
    report.print(Console())
    sys.exit(not report.bit_exact)


if __name__ == "__main__":
    main()
