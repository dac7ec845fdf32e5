"""The configuration's sections: one frozen, checked dataclass per concern."""

from __future__ import annotations

import math
from dataclasses import dataclass

#: Width of one activation slice in bits; fixed by the format (numerics.md, "Slices").
SLICE_BITS = 2
#: Widest activation precision in bits, hence at most four slices a sub-channel.
MAX_PRECISION = 8
#: Slices of a sub-channel at :data:`MAX_PRECISION`.
MAX_SLICES = MAX_PRECISION // SLICE_BITS
#: Largest quantized magnitude at :data:`MAX_PRECISION` (symmetric clipping).
MAX_Q = 2 ** (MAX_PRECISION - 1) - 1
#: Width of a signed scale exponent.
EXPONENT_BITS = 6
#: Fraction bits of the VPU's registers (:mod:`dstar.golden.vpu.float`).
PRIVATE_FRACTION_BITS = 13


class ConfigError(ValueError):
    """An illegal configuration; the message names the field, the rule and the value."""


def _check(ok: bool, name: str, rule: str, value: object) -> None:
    if not ok:
        raise ConfigError(f"{name} must be {rule}, got {value!r}")


def _check_int(name: str, value: object, low: int, high: int) -> None:
    ok = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
    _check(ok, name, f"an integer from {low} to {high}", value)


@dataclass(frozen=True, kw_only=True)
class ArrayConfig:
    """Shape of the systolic array.

    ``rows``: tokens of a tile (R), one per PE row.  ``cols``: output channels of a tile.
    ``lanes``: slice x weight products a PE sums each cycle.  ``cluster``: edge of the square
    blocks of PEs that share operand registers; divides ``rows`` and ``cols``.
    """

    rows: int = 64
    cols: int = 64
    lanes: int = 4
    cluster: int = 4

    def __post_init__(self) -> None:
        _check_int("array.rows", self.rows, 1, 256)
        _check_int("array.cols", self.cols, 2, 256)
        _check(self.lanes in (1, 2, 4, 8), "array.lanes", "1, 2, 4 or 8", self.lanes)
        _check_int("array.cluster", self.cluster, 1, 16)
        for name in ("rows", "cols"):
            size = getattr(self, name)
            rule = f"a divisor of array.{name} ({size})"
            _check(size % self.cluster == 0, "array.cluster", rule, self.cluster)

    @property
    def block_rows(self) -> int:
        """Cluster rows of the array: hops a weight makes from top to bottom."""
        return self.rows // self.cluster

    @property
    def block_cols(self) -> int:
        """Cluster columns of the array: hops an activation makes from left to right."""
        return self.cols // self.cluster


@dataclass(frozen=True, kw_only=True)
class NumericConfig:
    """Number formats of the integer data path.

    ``weight_bits``: signed weights.  ``k_tile``: most channels that one tile accumulates.
    ``exponent_span``: by how many octaves the coarsest 8-bit scale of a bin table may lie below
    its finest scale; with ``k_tile`` it sets the accumulator's width.
    """

    weight_bits: int = 8
    k_tile: int = 128
    exponent_span: int = 2

    def __post_init__(self) -> None:
        _check_int("numeric.weight_bits", self.weight_bits, 2, 8)
        _check_int("numeric.k_tile", self.k_tile, 1, 4096)
        _check_int("numeric.exponent_span", self.exponent_span, 0, 16)

    @property
    def channel_bound(self) -> int:
        """Largest ``|q| * 2**(f_last - f)`` that one channel may contribute."""
        return MAX_Q << self.exponent_span

    @property
    def acc_bound(self) -> int:
        """Largest magnitude a tile's sum can take.

        ``k_tile`` channels, each at most :attr:`channel_bound`, times the most negative weight.
        """
        return int(self.k_tile * self.channel_bound * 2 ** (self.weight_bits - 1))

    @property
    def acc_width(self) -> int:
        """Signed bits that hold every value up to :attr:`acc_bound`: proof of no overflow."""
        return self.acc_bound.bit_length() + 1

    @property
    def max_shift(self) -> int:
        """Largest exponent difference between two slices of one tile.

        A table entry of precision p and exponent f obeys
        ``(2**(p-1) - 1) << (f_max - f) <= channel_bound``, so its top slice, at exponent
        ``f - (p - 2)``, lies at most ``exponent_span + 6`` below ``f_max``.
        """
        return self.exponent_span + MAX_PRECISION - SLICE_BITS

    @property
    def shift_bits(self) -> int:
        """Width of a shift count."""
        return self.max_shift.bit_length()

    @property
    def channel_bits(self) -> int:
        """Width of a channel index within a tile."""
        return max(1, (self.k_tile - 1).bit_length())

    @property
    def max_tile_slices(self) -> int:
        """Most slices of one tile: every channel at :data:`MAX_PRECISION`."""
        return self.k_tile * MAX_SLICES


@dataclass(frozen=True, kw_only=True)
class CoreConfig:
    """Memory system and control of the core (paper, section 4.2).

    ``axi_data_bits``, ``address_bits``: of the AXI4 master.  ``outstanding``: most bursts of one
    direction on their way.  ``banks``, ``bank_words``: the unified buffer, in token vectors of
    ``array.rows`` binary16 values (80 KB at ``paper``, as in the paper).  ``queue``: commands
    that wait before each engine.  ``semaphores``: counters that order the engines.  ``columns``:
    output columns whose sums are kept between k tiles.  ``k_tiles``: most k tiles of a layer.

    Rules that join sections are :class:`dstar.golden.mpc.geometry.Geometry`'s, so that a unit
    without a core is not bound by them.
    """

    axi_data_bits: int = 512
    address_bits: int = 40
    outstanding: int = 8
    banks: int = 10
    bank_words: int = 64
    queue: int = 8
    semaphores: int = 16
    columns: int = 512
    k_tiles: int = 64

    def __post_init__(self) -> None:
        ok = self.axi_data_bits in (64, 128, 256, 512, 1024)
        _check(ok, "core.axi_data_bits", "64, 128, 256, 512 or 1024", self.axi_data_bits)
        _check_int("core.address_bits", self.address_bits, 16, 40)
        _check_int("core.outstanding", self.outstanding, 1, 16)
        _check_int("core.banks", self.banks, 1, 64)
        _check_int("core.bank_words", self.bank_words, 2, 512)
        power = self.bank_words & (self.bank_words - 1) == 0
        _check(power, "core.bank_words", "a power of two", self.bank_words)
        _check_int("core.queue", self.queue, 1, 64)
        _check_int("core.semaphores", self.semaphores, 1, 16)
        _check_int("core.columns", self.columns, 2, 2**15)
        _check_int("core.k_tiles", self.k_tiles, 1, 2**10)

    @property
    def axi_bytes(self) -> int:
        """Bytes of a beat."""
        return self.axi_data_bits // 8

    @property
    def words(self) -> int:
        """Words of the buffer; word w is row ``w % bank_words`` of bank ``w // bank_words``."""
        return self.banks * self.bank_words


@dataclass(frozen=True, kw_only=True)
class ClockConfig:
    """Clock and reset style of the generated Verilog.

    ``reset``: ``"sync"`` gives an active-high synchronous ``rst``, ``"async_low"`` an
    asynchronous active-low ``rst_n``.
    """

    reset: str = "sync"

    def __post_init__(self) -> None:
        ok = self.reset in ("sync", "async_low")
        _check(ok, "clock.reset", "'sync' or 'async_low'", self.reset)


@dataclass(frozen=True, kw_only=True)
class VectorConfig:
    """The VPU besides its lanes, of which there is one a row of the array.

    ``segments``: of each coefficient table, a power of two.  ``width``: signed bits of coefficients
    and of Horner's sums; :mod:`dstar.golden.vpu.generate` says whether the tables meet their bound
    with that.  ``acc_width``, ``acc_fraction``: bits of the accumulator, and those of them below
    one.  ``program``: longest program, in instructions.
    """

    segments: int = 8
    width: int = 21
    acc_width: int = 60
    acc_fraction: int = 28
    program: int = 16

    def __post_init__(self) -> None:
        ok = self.segments in (2, 4, 8, 16, 32, 64)
        _check(ok, "vector.segments", "a power of two from 2 to 64", self.segments)
        _check_int("vector.width", self.width, 18, 30)
        _check_int("vector.acc_width", self.acc_width, 42, 62)
        _check_int("vector.acc_fraction", self.acc_fraction, 24, self.acc_width - 17)
        _check_int("vector.program", self.program, 2, 64)

    @property
    def segment_bits(self) -> int:
        """Bits of a segment's number."""
        return self.segments.bit_length() - 1

    @property
    def fraction(self) -> int:
        """Fraction bits of a mantissa (1 to 2) in Horner's register."""
        return self.width - 2

    @property
    def log2_e(self) -> int:
        """log2(e) in units of ``2**-fraction``."""
        return round(math.log2(math.e) * 2**self.fraction)
