"""Proof that a configuration's tables are good enough: every binary16 argument of every function.

``python -m dstar.golden.vpu.generate`` prints the figures.  A configuration that misses the bound
is refused, by this program and by the VPU's generator alike.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from dstar.gen.config import ConfigError, VectorConfig

from .float import from_half, to_half
from .tables import TABLES, build_table
from .unary import FUNCTIONS, Name, Unary

Float64 = npt.NDArray[np.float64]

#: Largest error in units in the last place of binary16.
BOUND = 1.0
_ALL = np.arange(2**16, dtype=np.uint16).view(np.float16)


def _logistic(x: float) -> float:
    """``1 / (1 + exp(-x))`` without loss in either tail."""
    return 1 / (1 + math.exp(-x)) if x > 0 else math.exp(max(x, -700)) / (1 + math.exp(x))


def _exact(name: Name, x: float) -> float:
    """The function of a finite number other than zero, to about binary64's accuracy."""
    if name == "exp":
        return math.exp(min(x, 700))
    if name == "reciprocal":
        return 1 / x
    if name == "rsqrt":
        return 1 / math.sqrt(x) if x > 0 else math.nan
    if name == "sigmoid":
        return _logistic(x)
    if name == "silu":
        return x * _logistic(x)
    if name == "gelu":
        return x * math.erfc(-x * math.sqrt(0.5)) / 2
    return x * _logistic(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


#: Results for -inf, -0, +0, +inf.
_LIMITS: dict[Name, tuple[float, float, float, float]] = {
    "exp": (0.0, 1.0, 1.0, math.inf),
    "reciprocal": (-0.0, -math.inf, math.inf, 0.0),
    "rsqrt": (math.nan, -math.inf, math.inf, 0.0),
    "sigmoid": (0.0, 0.5, 0.5, 1.0),
    "silu": (-0.0, -0.0, 0.0, math.inf),
    "gelu_tanh": (-0.0, -0.0, 0.0, math.inf),
    "gelu": (-0.0, -0.0, 0.0, math.inf),
}


@lru_cache
def reference(name: Name) -> Float64:
    """float64 values of a function at all binary16 patterns, specials by IEEE 754's conventions."""
    result = np.full(2**16, np.nan)
    for i, value in enumerate(_ALL.astype(np.float64).tolist()):
        if math.isfinite(value) and value:
            result[i] = _exact(name, value)
    for pattern, limit in zip((0xFC00, 0x8000, 0x0000, 0x7C00), _LIMITS[name], strict=True):
        result[pattern] = limit
    return result


def ulp(x: Float64) -> Float64:
    """Unit in the last place of binary16 at a value: ``2**-24`` for the smallest, 32 at most."""
    finite = np.where(np.isfinite(x), x, 1.0)
    exponent = np.clip(np.frexp(finite)[1] - 1, -14, 15)
    return np.ldexp(1.0, exponent - 10)


@dataclass(frozen=True, eq=False)
class Accuracy:
    """How good one function is.

    ``errors``: in units in the last place, float64 (65536,) by pattern; infinite where a special
    result (for an infinite argument, or an infinite, NaN or zero's sign) is wrong.  ``against``:
    neighbouring arguments at which the results step against the function's own direction.
    """

    name: Name
    errors: Float64
    against: int

    @property
    def worst(self) -> float:
        """Largest error."""
        return float(self.errors.max())

    @property
    def worst_at(self) -> float:
        """An argument with the largest error."""
        return float(_ALL[self.errors.argmax()])

    @property
    def passes(self) -> bool:
        """Within the bound everywhere, and monotonic where the function is."""
        return self.worst <= BOUND and self.against == 0


def measure(name: Name, cfg: VectorConfig) -> Accuracy:
    """Run a function on all binary16 arguments and compare with float64."""
    want = reference(name)
    half = to_half(Unary(cfg)(name, from_half(_ALL)))
    return compare(name, half.astype(np.float64), want)


def compare(name: Name, got: Float64, want: Float64) -> Accuracy:
    """Errors of results ``got`` at all patterns."""
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = want.astype(np.float16).astype(np.float64)
        special = ~np.isfinite(rounded) | ~np.isfinite(got) | np.isinf(_ALL)
        same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
        errors = np.where(special, np.where(same, 0.0, np.inf), np.abs(got - want) / ulp(want))
        # A result may be infinite one unit early: from 65504, the largest finite value, on.
        size = np.abs(want)
        early = np.isinf(got) & ~same & (got * want > 0) & (size >= 65504) & (size < 65520)
        errors = np.where(early, (65536 - size) / 32, errors)
        sign = (np.signbit(got) != np.signbit(want)) & ~np.isnan(got)
        errors = np.where(sign, np.inf, errors)
        order = np.argsort(_rank(), kind="stable")
        order = order[~np.isnan(want[order])]
        steps, own = np.diff(got[order]), np.diff(want[order])
        against = int(((steps * np.sign(own)) < 0).sum())
    return Accuracy(name, errors, against)


def _rank() -> npt.NDArray[np.int64]:
    """Order of all patterns by value, -0 before +0."""
    bits = _ALL.view(np.uint16).astype(np.int64)
    return np.where(bits >> 15 == 1, -(bits & 0x7FFF) - 1, bits)


@lru_cache
def generate(cfg: VectorConfig) -> tuple[Accuracy, ...]:
    """Fit all tables and measure all functions.

    Raises
    ------
    ConfigError
        If a coefficient does not fit, or a function misses the bound or is not monotonic; the
        message names it.
    """
    for table in TABLES:
        build_table(table, segments=cfg.segments, width=cfg.width)
    results = tuple(measure(name, cfg) for name in FUNCTIONS)
    for accuracy in results:
        if not accuracy.passes:
            raise ConfigError(
                f"vector.segments {cfg.segments}, vector.width {cfg.width}: {accuracy.name} must "
                f"be within {BOUND:g} unit in the last place and monotonic, got "
                f"{accuracy.worst:.3f} at {accuracy.worst_at:g} and {accuracy.against} steps "
                f"against its direction"
            )
    return results


def report(cfg: VectorConfig) -> str:
    """The figures of a configuration as text."""
    lines = [f"{cfg.segments} segments, {cfg.width} bits", "", "table        approximation error"]
    for name in TABLES:
        table = build_table(name, segments=cfg.segments, width=cfg.width)
        lines.append(f"{name:12} 2^{math.log2(table.error):.1f}")
    lines += ["", "function     largest error (ulp)  at            against"]
    lines += [
        f"{a.name:12} {a.worst:<20.3f} {a.worst_at:<13g} {a.against}"
        for a in (measure(name, cfg) for name in FUNCTIONS)
    ]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Print the figures; 1 if the configuration is refused."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    defaults = VectorConfig()
    for name in ("segments", "width"):
        parser.add_argument(f"--{name}", type=int, default=getattr(defaults, name))
    given = parser.parse_args(arguments)
    try:
        cfg = dataclasses.replace(defaults, segments=given.segments, width=given.width)
        print(report(cfg))
        generate(cfg)
    except ConfigError as error:
        print(f"refused: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
