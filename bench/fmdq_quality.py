"""Quality of FMDQ on the shipped DiT: final images of 28 steps against the float model.

The linear layers inside the blocks (adaln, qkv, proj, fc1, fc2) run quantized, everything else
in float32; W8A8 quantizes the same layers, with dynamic per-token INT8 activations.  PSNR is
over all pixels of all images, peak 2 (images are in [-1, 1]).  Bits are averaged over the
activation values of those layers and all steps: keyframe counted, skipped sub-channels as 0.

``--profile`` measures the error of every layer instead and prints the exponents for
``golden/shipped.py``.
"""

from __future__ import annotations

import os

# One thread a process: the samples run in parallel.  Read when NumPy loads.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import numpy.typing as npt

from dstar.gen.config import PRESETS
from dstar.golden import shipped
from dstar.golden.allocate import allocate
from dstar.golden.bins import BinTable
from dstar.golden.dit.forward import plain_linear
from dstar.golden.dit.sampler import sample
from dstar.golden.dit.spec import DIGITS
from dstar.golden.dit.weights import load_weights
from dstar.golden.linear import FMDQLinear, LayerTables, Mode
from dstar.golden.profile import LayerProfile, profile_layer
from dstar.golden.schedule import Schedule, schedule_layer
from dstar.golden.weights import QuantizedWeight, quantize_weight

Floats = npt.NDArray[np.float32]
Hook = Callable[[str, Floats, Floats, Floats], Floats]

STEPS, CHUNK = 28, 8
CALIBRATION_SEED, SEED = 1, 1000
CFG = PRESETS["paper"]


@cache
def model() -> tuple[dict[str, Floats], dict[str, QuantizedWeight]]:
    """The shipped tensors, and the quantized weights of the layers inside the blocks."""
    tensors = load_weights()
    layers = [name for name in DIGITS.linears if name.startswith("blocks.")]
    return tensors, {n: quantize_weight(tensors[f"{n}.weight"]) for n in layers}


def generate(linear: Hook | None, seed: int, count: int = CHUNK) -> Floats:
    """Images (count, 1, side, side) of different classes."""
    classes = [(seed * CHUNK + i) % 10 for i in range(count)]
    return sample(model()[0], classes=classes, steps=STEPS, seed=seed, linear=linear)


@dataclass(frozen=True, kw_only=True)
class Setup:
    """One row of the table: which layers run FMDQ, and what the others do."""

    label: str
    activations: str = "float"  # or "int8"
    weights: str = "int8"  # or "float"
    tables: Mapping[str, LayerTables] = field(default_factory=dict)
    mode: Mode = "reconstructed"


@dataclass
class Counts:
    """Sums over layers and steps of a run."""

    values: float = 0.0
    bits: float = 0.0
    macs: float = 0.0
    mac_bits: float = 0.0
    issue: Schedule = field(default_factory=lambda: Schedule(0, 0, CFG.array.lanes))

    def merge(self, other: Counts) -> None:
        """Add another run's sums."""
        for name in ("values", "bits", "macs", "mac_bits", "issue"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


def run(task: tuple[Setup, int, int]) -> tuple[Floats, Counts]:
    """Generate one chunk of images."""
    setup, seed, count = task
    quantized, counts = model()[1], Counts()
    dequantized = {n: w.dequantize() for n, w in quantized.items()}
    layers = {
        n: FMDQLinear(quantized[n], model()[0][f"{n}.bias"], tables=t, mode=setup.mode, cfg=CFG)
        for n, t in setup.tables.items()
    }

    def linear(name: str, x: Floats, w: Floats, b: Floats) -> Floats:
        if name in layers:
            step = layers[name].step(x.reshape(count, -1, x.shape[-1]))
            counts.values += x.size
            counts.bits += step.average_bits * x.size
            counts.macs += x.size * len(w)
            counts.mac_bits += step.average_bits * x.size * len(w)
            if not step.keyframe:
                tile = {"k_tile": CFG.numeric.k_tile, "lanes": CFG.array.lanes}
                counts.issue += schedule_layer(step.precision, step.exponent, **tile)
            return step.y_carrier.reshape(len(x), -1)
        if name in quantized and setup.weights == "int8":
            w = dequantized[name]
            if setup.activations == "int8":
                scale = np.maximum(np.abs(x).max(axis=1, keepdims=True) / 127, 1e-30)
                x = (np.rint(x / scale) * scale).astype(np.float32)
        return plain_linear(name, x, w, b)

    return generate(linear, seed, count), counts


def calibrate() -> tuple[dict[str, list[npt.NDArray[np.float16]]], dict[str, LayerProfile]]:
    """Activations of four samples of the float model, and their profiles."""
    seen: dict[str, list[npt.NDArray[np.float16]]] = {n: [] for n in model()[1]}

    def linear(name: str, x: Floats, w: Floats, b: Floats) -> Floats:
        if name in seen:
            seen[name].append(x.reshape(4, -1, x.shape[-1]).astype(np.float16))
        return plain_linear(name, x, w, b)

    generate(linear, CALIBRATION_SEED, 4)
    return seen, {n: profile_layer(xs, CFG) for n, xs in seen.items()}


def measured(profiles: Mapping[str, LayerProfile], shift: int = 0) -> dict[str, LayerTables]:
    """Default tables, every T multiplied by ``2**-shift``."""
    result = {}
    for name, profile in profiles.items():
        b = shipped.exponent(name, model()[0][f"{name}.weight"])
        if b is None:
            raise SystemExit(f"golden/shipped.py does not fit the weights of {name}: --profile")
        result[name] = profile.tables(b + shift)
    return result


def paper(tables: Mapping[str, LayerTables]) -> dict[str, LayerTables]:
    """The same thresholds T with the paper's table."""
    span = CFG.numeric.exponent_span
    return {
        n: replace(t, delta=BinTable.paper(t.delta.finest, span=span)) for n, t in tables.items()
    }


def psnr(error: float) -> float:
    """PSNR in dB at peak 2."""
    return float(10 * np.log10(4 / error))


def compare(
    rows: list[tuple[Setup, int]], pool: ProcessPoolExecutor
) -> dict[str, tuple[float, Counts]]:
    """Run setups on as many samples as given and print a row each; PSNR and sums by label."""

    def start(setup: Setup, samples: int) -> Iterable[tuple[Floats, Counts]]:
        seeds = range(SEED, SEED + samples // CHUNK)
        return pool.map(run, [(setup, seed, CHUNK) for seed in seeds])

    reference = start(Setup(label="float", weights="float"), max(n for _, n in rows))
    pending = [(setup, samples, start(setup, samples)) for setup, samples in rows]
    want = [images for images, _ in reference]
    print(f"{'':44}{'samples':>8}{'bits':>7}{'per MAC':>9}{'utilization':>13}{'PSNR dB':>9}")
    results = {}
    for setup, samples, parts in pending:
        total, error = Counts(), 0.0
        for (images, counts), truth in zip(parts, want, strict=False):
            error += float(np.square(images.astype(np.float64) - truth).mean())
            total.merge(counts)
        ratio, figures = psnr(error / (samples // CHUNK)), " " * 29
        if setup.tables:
            bits, per_mac = total.bits / total.values, total.mac_bits / total.macs
            figures = f"{bits:7.3f}{per_mac:9.3f}{total.issue.utilization:13.4f}"
        print(f"{setup.label:44}{samples:8}{figures}{ratio:9.2f}", flush=True)
        results[setup.label] = ratio, total
    return results


def profile(pool: ProcessPoolExecutor) -> None:
    """Measure errors layer by layer; print the exponents that match W8A8's activation error."""
    activations, profiles = calibrate()

    def images(*setups: Setup) -> list[npt.NDArray[np.float64]]:
        tasks = [(setup, SEED - 1, CHUNK) for setup in setups]
        return [result.astype(np.float64) for result, _ in pool.map(run, tasks)]

    base, int8 = images(Setup(label="W8"), Setup(label="W8A8", activations="int8"))

    def measure(exponents: Mapping[str, int]) -> dict[str, float]:
        setups = [Setup(label=n, tables={n: profiles[n].tables(b)}) for n, b in exponents.items()]
        errors = [float(np.square(image - base).mean()) for image in images(*setups)]
        found = dict(zip(exponents, errors, strict=True))
        print("".join(f"# {n:20} {b:3} {found[n]:.3g}\n" for n, b in exponents.items()), flush=True)
        return found

    target = float(np.square(int8 - base).mean())
    print(f"# layer, b, mean squared error of the images; target {target:.3g}")
    chosen = allocate(measure, profiles, activations, target, CFG)
    print("EXPONENTS: dict[str, tuple[int, str]] = {")
    for name, b in chosen.items():
        print(f'    "{name}": ({b}, "{shipped.digest(model()[0][f"{name}.weight"])}"),')
    print("}")


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=64, help="images of the main rows")
    parser.add_argument("--few", type=int, default=16, help="images of the other rows")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--profile", action="store_true", help="measure thresholds")
    args = parser.parse_args()
    if args.samples % CHUNK or args.few % CHUNK or not 0 < args.few <= args.samples:
        parser.error(f"both counts must be multiples of {CHUNK}, --few at most --samples")
    with ProcessPoolExecutor(args.jobs) as pool:
        if args.profile:
            profile(pool)
            return
        _, profiles = calibrate()
        default = measured(profiles)
        main_rows = [
            Setup(label="W8A8, dynamic INT8 per token", activations="int8"),
            Setup(label="FMDQ reconstructed, default thresholds", tables=default),
            Setup(label="FMDQ previous, default thresholds", tables=default, mode="previous"),
        ]
        finer = ((1, "T / 2"), (0, "default T"), (-1, "2 T"), (-2, "4 T"))
        tables = {f"uniform table, {text}": measured(profiles, shift) for shift, text in finer}
        tables |= {f"paper table, {text}": paper(measured(profiles, s)) for s, text in finer[1:]}
        by_rule = {n: p.tables() for n, p in profiles.items()}
        tables["uniform table, T = INT8 step of the layer"] = by_rule
        others = [Setup(label="W8, float activations"), Setup(label="W8A8", activations="int8")]
        others += [Setup(label=label, tables=t) for label, t in tables.items()]
        rows = [(s, args.samples) for s in main_rows] + [(s, args.few) for s in others]
        results = compare(rows, pool)
    (int8, _), (new, counts), (old, _) = (results[s.label] for s in main_rows)
    print(f"reconstructed - W8A8: {new - int8:+.2f} dB (at least -1)")
    print(f"reconstructed - previous: {new - old:+.2f} dB (at least +10)")
    print(f"average bits: {counts.bits / counts.values:.2f} (at most 3.6)")
    print(f"issue_utilization: {counts.issue.utilization:.3f} (at least 0.95)")


if __name__ == "__main__":
    main()
