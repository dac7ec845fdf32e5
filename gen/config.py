"""One validated configuration that golden models, RTL, benches and reports share.

Every width, depth and latency anywhere in the project is a field or a property of the objects
here.  Values come from a preset, then from a TOML file, then from ``--set`` overrides; whatever
the origin, an illegal value is refused with :class:`ConfigError`, which states the rule and the
value.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
class Config:
    """The whole configuration: one section per concern.  Hashable, comparable, printable."""

    preset: str = "paper"
    array: ArrayConfig = field(default_factory=ArrayConfig)
    numeric: NumericConfig = field(default_factory=NumericConfig)
    clock: ClockConfig = field(default_factory=ClockConfig)

    def as_dict(self) -> dict[str, Any]:
        """Plain nested dictionary, as written to ``manifest.json``."""
        return dataclasses.asdict(self)

    @property
    def hash(self) -> str:
        """Twelve hex digits that identify every value but the preset's name."""
        values = {k: v for k, v in self.as_dict().items() if k != "preset"}
        text = json.dumps(values, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def replace(self, changes: Mapping[str, Any]) -> Config:
        """A copy with ``{"section.field": value}`` applied and validated again."""
        sections: dict[str, dict[str, Any]] = {}
        for key, value in changes.items():
            section, name = _resolve(key)
            sections.setdefault(section, {})[name] = value
        updated = {
            section: dataclasses.replace(getattr(self, section), **fields)
            for section, fields in sections.items()
        }
        return dataclasses.replace(self, **updated)


PRESETS: dict[str, Config] = {
    "paper": Config(preset="paper"),
    "edge": Config(preset="edge", array=ArrayConfig(rows=16, cols=16, cluster=4)),
    "tiny": Config(
        preset="tiny",
        array=ArrayConfig(rows=4, cols=4, cluster=2),
        numeric=NumericConfig(k_tile=16),
    ),
}

_SECTIONS = ("array", "numeric", "clock")


def _keys() -> dict[str, tuple[str, str]]:
    """Every accepted key, as ``section.field`` and as a bare field name."""
    keys: dict[str, tuple[str, str]] = {}
    for section in _SECTIONS:
        for item in dataclasses.fields(getattr(PRESETS["paper"], section)):
            keys[f"{section}.{item.name}"] = keys[item.name] = (section, item.name)
    return keys


def _resolve(key: str) -> tuple[str, str]:
    keys = _keys()
    if key not in keys:
        known = ", ".join(sorted(k for k in keys if "." in k))
        raise ConfigError(f"unknown key {key!r}; keys are {known}")
    return keys[key]


def _parse_value(key: str, text: str) -> Any:
    """A ``--set`` value: an integer where the field is one, else the text itself."""
    section, name = _resolve(key)
    if isinstance(getattr(getattr(PRESETS["paper"], section), name), int):
        try:
            return int(text, 0)
        except ValueError:
            raise ConfigError(f"{section}.{name} must be an integer, got {text!r}") from None
    return text


def load_config(
    *, preset: str = "paper", file: Path | None = None, overrides: tuple[str, ...] = ()
) -> Config:
    """The configuration of a preset, then a TOML file, then ``key=value`` overrides.

    The TOML file holds sections named as the fields of :class:`Config` and, optionally,
    ``preset = "name"``.

    Raises:
        ConfigError: an unknown preset, key or section, a malformed file or override, or a value
            that breaks a rule.
    """
    changes: dict[str, Any] = {}
    if file is not None:
        try:
            data = tomllib.loads(file.read_text())
        except OSError as error:
            raise ConfigError(f"cannot read {file}: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file} is not valid TOML: {error}") from None
        preset = data.pop("preset", preset)
        for section, values in data.items():
            if section not in _SECTIONS or not isinstance(values, dict):
                raise ConfigError(
                    f"{file}: unknown section {section!r}; sections are {', '.join(_SECTIONS)}"
                )
            changes |= {f"{section}.{name}": value for name, value in values.items()}
    if preset not in PRESETS:
        raise ConfigError(f"unknown preset {preset!r}; presets are {', '.join(PRESETS)}")
    for item in overrides:
        key, separator, text = item.partition("=")
        if not separator:
            raise ConfigError(f"override must be key=value, got {item!r}")
        section, name = _resolve(key.strip())
        changes[f"{section}.{name}"] = _parse_value(key.strip(), text.strip())
    return PRESETS[preset].replace(changes)
