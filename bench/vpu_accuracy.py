"""Accuracy of the VPU's programs in the golden model, to which the RTL is bit-exact."""

from __future__ import annotations

import numpy as np

from dstar.gen.config import VectorConfig
from dstar.golden.vpu.generate import measure, ulp
from dstar.golden.vpu.programs import layer_norm, normalize, softmax
from dstar.golden.vpu.unary import Name
from dstar.golden.vpu.vpu import VPU

KEYS, CHANNELS, LANES = 4608, 1152, 64
#: Spread and mean of the channels that LayerNorm is tried on.
SPREADS = ((1.0, 0.0), (1.0, 5.0), (30.0, -3.0), (0.01, 0.2), (300.0, 1000.0))


def main() -> None:
    """Print the table."""
    rng = np.random.default_rng(0)
    for spread in (0.1, 1.0, 4.0):
        x = (rng.standard_normal((KEYS, LANES)) * spread).astype(np.float16)
        unit = VPU(LANES)
        exponentials = unit.run(softmax(KEYS), np.concatenate([x, x]))
        got = unit.run(normalize(KEYS), exponentials).astype(np.float64)
        want = np.exp(x.astype(np.float64) - x.max(axis=0).astype(np.float64))
        want /= want.sum(axis=0)
        error, total = np.abs(got - want).max(), np.abs(got.sum(axis=0) - 1).max()
        print(f"softmax, {KEYS} keys, spread {spread}: error {error:.1e}, sum {total:.1e} from 1")
    for spread, mean in SPREADS:
        x = (rng.standard_normal((CHANNELS, LANES)) * spread + mean).astype(np.float16)
        got = VPU(LANES).run(layer_norm(CHANNELS), np.concatenate([x] * 3)).astype(np.float64)
        centred = x.astype(np.longdouble) - x.astype(np.longdouble).mean(axis=0)
        exact = centred / np.sqrt((centred**2).mean(axis=0) + np.longdouble(1e-6))
        want = exact.astype(np.float64)
        error = (np.abs(got - want) / ulp(want)).max()
        rounded = (np.abs(got - want.astype(np.float16).astype(np.float64)) / ulp(want)).max()
        print(
            f"LayerNorm, {CHANNELS} channels, spread {spread}, mean {mean}: {error:.2f} units from "
            f"exact, {rounded:.0f} from the correctly rounded result"
        )
    names: tuple[Name, ...] = ("gelu_tanh", "gelu")
    for name in names:
        worst = measure(name, VectorConfig()).worst
        print(f"{name}, every argument: {worst:.2f} units from exact")


if __name__ == "__main__":
    main()
