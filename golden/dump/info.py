"""What a dump says about itself, and the keys of its tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata as package_metadata

from .container import DumpError


def _version() -> str:
    try:
        return package_metadata.version("dstar-rtl")
    except package_metadata.PackageNotFoundError:  # run from a bare checkout
        return "unknown"


@dataclass(frozen=True, kw_only=True)
class DumpInfo:
    """Where a dump comes from.

    Parameters
    ----------
    model:
        Name of the model.
    steps:
        Denoising steps of the sample; the dump holds every one of them.
    scheduler:
        Name of the sampler.
    seed:
        Seed of the initial noise.
    writer:
        Program and version that wrote the file.
    extra:
        Further metadata, kept as it is.
    """

    model: str
    steps: int
    scheduler: str
    seed: int
    writer: str = field(default_factory=lambda: f"dstar {_version()}")
    extra: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, low in (("steps", 1), ("seed", None)):
            value = getattr(self, name)
            if type(value) is not int or (low is not None and value < low):
                rule = "an integer" if low is None else "a positive integer"
                raise DumpError(f"metadata {name!r} must be {rule}, got {value!r}")
        for name in ("model", "scheduler", "writer"):
            if not getattr(self, name):
                raise DumpError(f"metadata {name!r} must not be empty")

    @property
    def digits(self) -> int:
        """Digits of a zero-padded step in keys that this package writes."""
        return max(3, len(str(self.steps - 1)))

    def to_metadata(self) -> dict[str, str]:
        """The header's metadata: strings only, as the format demands."""
        return {
            **self.extra,
            "model": self.model,
            "steps": str(self.steps),
            "scheduler": self.scheduler,
            "seed": str(self.seed),
            "writer": self.writer,
        }

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str]) -> DumpInfo:
        """The inverse of :meth:`to_metadata`.

        Raises
        ------
        DumpError
            If an item is missing or is not what it must be.
        """
        names = ("model", "steps", "scheduler", "seed", "writer")
        if missing := [name for name in names if name not in metadata]:
            raise DumpError(f"metadata lacks {', '.join(missing)}; it must name {', '.join(names)}")
        numbers = {}
        for name in ("steps", "seed"):
            if not re.fullmatch("-?[0-9]{1,20}", metadata[name]):
                raise DumpError(f"metadata {name!r} must be an integer, got {metadata[name]!r}")
            numbers[name] = int(metadata[name])
        return cls(
            model=metadata["model"],
            scheduler=metadata["scheduler"],
            writer=metadata["writer"],
            extra={key: value for key, value in metadata.items() if key not in names},
            **numbers,
        )


def step_key(layer: str, step: int, tensor: str, info: DumpInfo) -> str:
    """Key of a tensor of one step: ``LAYER/STEP/TENSOR``."""
    return f"{layer}/{step:0{info.digits}d}/{tensor}"


def static_key(layer: str, tensor: str) -> str:
    """Key of a step-independent tensor: ``LAYER/TENSOR``."""
    return f"{layer}/{tensor}"
