"""Speed of FMDQ in PyTorch against PyTorch's own fake quantization, in one run.

Both take one float16 tensor of 4096 tokens by 4608 channels; FMDQ also takes the reference it
forms the difference to.  Medians of interleaved repetitions.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from dstar.golden.bins import BinTable
from dstar.golden.fmdq_torch import fake_quantize, quantize

LIMIT = 3.0


def main() -> None:
    """Measure and print one row each, with the ratio to PyTorch's fake quantization."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--channels", type=int, default=4608)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=9)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    shape = args.tokens, args.channels
    x = torch.randn(shape).half()
    reference = (x.float() + 0.1 * torch.randn(shape)).half()
    scale = (x.abs().amax(0) / 127).float()
    zero = torch.zeros(args.channels, dtype=torch.int32)
    table, start = BinTable.uniform(5), BinTable.keyframe(float(x.abs().max()))
    base = "torch.fake_quantize_per_channel_affine"
    runs: dict[str, Callable[[], object]] = {
        base: lambda: torch.fake_quantize_per_channel_affine(x, scale, zero, 1, -127, 127),
        "FMDQ, difference and reconstruction": lambda: fake_quantize(x, table, reference=reference),
        "FMDQ, and q, precision, exponent": lambda: quantize(x, table, reference=reference),
        "FMDQ, keyframe": lambda: fake_quantize(x, start),
    }
    times: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(args.repeats + 1):
        for name, call in runs.items():
            begin = time.perf_counter()
            call()
            if repeat:  # the first round warms up
                times[name].append(time.perf_counter() - begin)
    print(
        f"{args.tokens} x {args.channels} float16, {args.threads} threads, median of {args.repeats}"
    )
    reference_time = statistics.median(times[base])
    for name, values in times.items():
        median = statistics.median(values)
        print(f"{name:42}{median * 1e3:9.1f} ms{median / reference_time:7.2f} x")
    print(f"at most {LIMIT:.0f} x")


if __name__ == "__main__":
    main()
