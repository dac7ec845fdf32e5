"""Bits and PSNR of FMDQ over thresholds, for differences to what was multiplied in the step
before (`reconstructed`) and to the true activation (`previous`), on the evaluation images.

For every point of `previous` the last column gives the bits that it takes more than
`reconstructed` at equal PSNR, interpolated linearly between neighbouring thresholds.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from rich.console import Console

from dstar.golden.quality.command import run_quality
from dstar.golden.quality.summary import Row


def curve(rows: list[Row], name: str) -> list[Row]:
    """Points of one mode, in ascending order of PSNR."""
    points = [r for r in rows if r.method == name or r.method.startswith(f"{name}-x")]
    return sorted(points, key=lambda r: r.psnr_db.mean)


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=28)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--out", type=Path, default=Path("out/quality"))
    args = parser.parse_args()
    rows = run_quality(
        steps=args.steps,
        seeds=args.seeds,
        samples=args.samples,
        methods="w8a8,fmdq,fmdq-x*,fmdq-previous*",
        json_file=None,
        out=args.out,
        console=Console(),
    )
    good, plain = curve(rows, "fmdq"), curve(rows, "fmdq-previous")
    psnr = [r.psnr_db.mean for r in good]
    bits = [r.average_bits.mean for r in good]
    print(f"{'previous':24} {'bits':>5} {'PSNR dB':>8} {'reconstructed':>14} {'more':>6}")
    for row in sorted(plain, key=lambda r: r.average_bits.mean):
        own, at = row.average_bits.mean, row.psnr_db.mean
        text = f"{row.method:24} {own:5.2f} {at:8.1f}"
        if psnr[0] <= at <= psnr[-1]:
            equal = float(np.interp(at, psnr, bits))
            print(f"{text} {equal:14.2f} {own - equal:+6.2f}")
        else:
            print(f"{text} {'outside':>14}")


if __name__ == "__main__":
    main()
