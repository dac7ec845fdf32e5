"""Coefficient tables of the VPU's non-linear functions: a generator, not a list of numbers.

Each table approximates one function on equal segments by cubic polynomials.  A polynomial is
evaluated by Horner's rule in integers:  ``acc = c3``, then three times
``acc = (acc * t >> 16) + c``, where t is the position in the segment, 16 bits from 0 to just
below 1.  The fit is minimax (Remez exchange) and is repeated with each coefficient held at its
rounded value, so that the others make up for the rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from dstar.gen.config import ConfigError

Float64: TypeAlias = npt.NDArray[np.float64]
Int64: TypeAlias = npt.NDArray[np.int64]

DEGREE = 3
#: Bits of a position in a table's segment: the multiplier's unsigned operand.
POSITION_BITS = 16


def _logit(x: Float64) -> Float64:
    """``log2(P(x) / P(-x))`` of the normal distribution P: GELU(x) = x / (1 + 2**-logit)."""
    half = math.sqrt(0.5)
    return np.array(
        [math.log2(math.erfc(-v * half)) - math.log2(math.erfc(v * half)) for v in x.ravel()]
    ).reshape(x.shape)


def _tanh_form(x: Float64) -> Float64:
    """The same for GELU's tanh form: a cubic polynomial."""
    return (x + 0.044715 * x**3) * (2 * math.sqrt(2 / math.pi) * math.log2(math.e))


@dataclass(frozen=True)
class Shape:
    """A table's function over position s = 0..1 of its whole domain, and its binary point.

    ``integer_bits``: bits of its values above the binary point.  ``used``: up to where results
    depend on it, for the error that is reported; beyond, it only has to stay large.
    """

    function: Callable[[Float64], Float64]
    integer_bits: int
    used: float = 1.0


#: Range of the GELU tables' argument; beyond it GELU is x or zero in binary16.
GELU_RANGE = 8.0
#: Argument from which on GELU is x or zero in binary16 already.
_GELU_USED = 6.0 / GELU_RANGE
#: Largest value of ``-log2`` that the GELU tables need to hold.
_ENOUGH = 60.0
_SHAPES: dict[str, Shape] = {
    "exp2": Shape(np.exp2, 1),
    "reciprocal": Shape(lambda s: 1 / (1 + s), 1),
    "rsqrt": Shape(lambda s: np.where(s < 0.5, 1 + 2 * s, 4 * s) ** -0.5, 1),
    "logit": Shape(lambda s: _logit(s * GELU_RANGE), 6, _GELU_USED),
    "tanh_form": Shape(lambda s: np.minimum(_tanh_form(s * GELU_RANGE), _ENOUGH), 6, _GELU_USED),
}
TABLES = tuple(_SHAPES)


@dataclass(frozen=True, eq=False)
class Table:
    """Coefficients int64 (segments, 4), constant first, in units of ``2**-fraction``.

    ``error``: largest magnitude of approximation plus coefficient error, in the function's units.
    """

    name: str
    coefficients: Int64
    fraction: int
    error: float

    def evaluate(self, segment: Int64, position: Int64) -> Int64:
        """Horner's rule in integers, each product rounded down; units of ``2**-fraction``."""
        rows = self.coefficients[segment]
        acc = rows[..., DEGREE]
        for k in reversed(range(DEGREE)):
            acc = ((acc * position) >> POSITION_BITS) + rows[..., k]
        return acc


def _minimax(t: Float64, y: Float64, degree: int) -> Float64:
    """Coefficients, constant first, of the polynomial nearest to samples, by Remez exchange."""
    count = degree + 2
    nodes = np.round((1 - np.cos(np.linspace(0, np.pi, count))) / 2 * (len(t) - 1)).astype(int)
    powers = t[:, None] ** np.arange(degree + 1)
    best = np.zeros(degree + 1)
    for _ in range(30):
        system = np.hstack([powers[nodes], (-1.0) ** np.arange(count)[:, None]])
        best = np.linalg.solve(system, y[nodes])[:-1]
        error = y - powers @ best
        # One extreme of each run of equal sign: the new nodes.
        cuts = np.flatnonzero(np.diff(np.signbit(error))) + 1
        runs = np.split(np.arange(len(t)), cuts)
        peaks = np.array([run[np.argmax(np.abs(error[run]))] for run in runs])
        if len(peaks) < count:
            break
        while len(peaks) > count:
            peaks = peaks[1:] if abs(error[peaks[0]]) < abs(error[peaks[-1]]) else peaks[:-1]
        if np.array_equal(peaks, nodes):
            break
        nodes = peaks
    return best


def _fit(t: Float64, y: Float64, fraction: int) -> list[int]:
    """Integer coefficients, constant first; the highest is rounded first, then refitted."""
    fixed: list[int] = []
    rest = y.copy()
    for degree in reversed(range(DEGREE + 1)):
        value = round(float(_minimax(t, rest, degree)[degree]) * 2**fraction)
        rest = rest - value * 2.0**-fraction * t**degree
        fixed.insert(0, value)
    return fixed


@lru_cache
def build_table(name: str, *, segments: int, width: int) -> Table:
    """Fit one table.

    Parameters
    ----------
    segments:
        Segments of the domain, a power of two.
    width:
        Signed bits of a coefficient and of Horner's accumulator.

    Raises
    ------
    ConfigError
        If a coefficient does not fit into ``width`` bits.
    """
    shape = _SHAPES[name]
    fraction = width - 1 - shape.integer_bits
    t = np.linspace(0, 1, 1025)
    rows: list[list[int]] = []
    worst = 0.0
    for segment in range(segments):
        # The right end belongs to this segment: a function may jump there.
        s = np.minimum((segment + t) / segments, np.nextafter((segment + 1) / segments, 0))
        y = shape.function(s)
        # A product is rounded down and loses half a unit on average; later steps scale that by t.
        lost = 2.0**-fraction * (0.5 + 0.5 * t + 0.5 * t**2)
        row = _fit(t, y + lost, fraction)
        if segment < segments * shape.used:
            error = np.abs(t[:, None] ** np.arange(DEGREE + 1) @ row * 2.0**-fraction - y - lost)
            worst = max(worst, float(error.max()))
        rows.append(row)
    table = Table(name, np.array(rows, np.int64), fraction, worst)
    _check_range(table, width)
    return table


def _check_range(table: Table, width: int) -> None:
    """Refuse a table of which some coefficient or Horner sum leaves ``width`` bits."""
    limit = 2 ** (width - 1)
    position = np.arange(2**POSITION_BITS, dtype=np.int64)
    acc = np.repeat(table.coefficients[:, DEGREE, None], len(position), axis=1)
    largest = int(np.abs(table.coefficients).max())
    for k in reversed(range(DEGREE)):
        acc = ((acc * position) >> POSITION_BITS) + table.coefficients[:, k, None]
        largest = max(largest, int(np.abs(acc).max()))
    if largest >= limit:
        raise ConfigError(
            f"vector.segments {len(table.coefficients)}, vector.width {width}: coefficients and "
            f"sums of table {table.name} must be below {limit}, got {largest}"
        )
