"""Speed of the wrapped model against the plain one, on the CPU, in one run.

The shipped DiT draws the same batch with each set-up in turn; the ratio is of medians of
interleaved repetitions.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from dstar.golden.dit.model import load_model, sample
from dstar.golden.dit.weights import load_weights
from dstar.golden.model.apply import apply
from dstar.golden.model.fmdq import FMDQ
from dstar.golden.model.sar import SAR

LIMIT = 3.0


def main() -> None:
    """Measure and print one row each, with the ratio to the plain model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    classes = [i % 10 for i in range(args.batch)]
    weights = load_weights()
    plain = "plain"
    models: dict[str, Callable[..., object]] = {
        plain: load_model(weights),
        "FMDQ": apply(load_model(weights), FMDQ()),
        "FMDQ, previous": apply(load_model(weights), FMDQ(mode="previous")),
        "SAR, interval 2": apply(load_model(weights), None, SAR()),
        "FMDQ and SAR, interval 2": apply(load_model(weights), FMDQ(), SAR()),
        "the same, mixed scores": apply(load_model(weights), FMDQ(), SAR(score_bits="mixed")),
    }
    times: dict[str, list[float]] = {name: [] for name in models}
    for repeat in range(args.repeats + 1):
        for name, model in models.items():
            begin = time.perf_counter()
            sample(model, classes=classes, steps=args.steps)  # type: ignore[arg-type]
            if repeat:  # the first round warms up
                times[name].append(time.perf_counter() - begin)
    print(f"batch {args.batch}, {args.steps} steps, {args.threads} thread(s)")
    base = statistics.median(times[plain])
    for name, values in times.items():
        median = statistics.median(values)
        print(f"{name:28}{median / args.steps * 1e3:9.1f} ms a step{median / base:7.2f} x")
    print(f"at most {LIMIT:.0f} x")


if __name__ == "__main__":
    main()
