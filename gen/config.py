"""One validated configuration that golden models, RTL, benches and reports share.

Every width, depth and latency anywhere in the project is a field or a property of the objects
of :mod:`dstar.gen.sections`.  Values come from a preset, then from a TOML file, then from
``--set`` overrides; whatever the origin, an illegal value is refused with :class:`ConfigError`,
which states the rule and the value.
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

from dstar.gen.sections import (
    EXPONENT_BITS,
    MAX_PRECISION,
    MAX_Q,
    MAX_SLICES,
    PRIVATE_FRACTION_BITS,
    SLICE_BITS,
    ArrayConfig,
    ClockConfig,
    ConfigError,
    CoreConfig,
    NumericConfig,
    VectorConfig,
)

__all__ = [
    "EXPONENT_BITS",
    "MAX_PRECISION",
    "MAX_Q",
    "MAX_SLICES",
    "PRESETS",
    "PRIVATE_FRACTION_BITS",
    "SLICE_BITS",
    "ArrayConfig",
    "ClockConfig",
    "Config",
    "ConfigError",
    "CoreConfig",
    "NumericConfig",
    "VectorConfig",
    "load_config",
]


@dataclass(frozen=True, kw_only=True)
class Config:
    """The whole configuration: one section per concern.  Hashable, comparable, printable."""

    preset: str = "paper"
    array: ArrayConfig = field(default_factory=ArrayConfig)
    numeric: NumericConfig = field(default_factory=NumericConfig)
    core: CoreConfig = field(default_factory=CoreConfig)
    clock: ClockConfig = field(default_factory=ClockConfig)
    vector: VectorConfig = field(default_factory=VectorConfig)

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
    "edge": Config(
        preset="edge",
        array=ArrayConfig(rows=16, cols=16, cluster=4),
        core=CoreConfig(axi_data_bits=128, columns=256),
    ),
    "tiny": Config(
        preset="tiny",
        array=ArrayConfig(rows=4, cols=4, cluster=2),
        numeric=NumericConfig(k_tile=16),
        core=CoreConfig(axi_data_bits=64, bank_words=16, columns=32),
    ),
}

_SECTIONS = ("array", "numeric", "core", "clock", "vector")


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
