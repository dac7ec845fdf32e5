"""The rules that tie a dump's tensors together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from .container import DumpError, Entry, TensorSpec
from .info import DumpInfo

#: Tensors of one step: a linear layer's input and output, an attention's operands and output.
STEP_TENSORS = ("x", "y", "q", "k", "v", "o")
#: Tensors of a layer as a whole: weight (out x in) and bias (out).
STATIC_TENSORS = ("w", "b")
_AXES = {"x": 2, "y": 2, "q": 3, "k": 3, "v": 3, "o": 3, "w": 2, "b": 1}
_LAYOUT = {2: "tokens x features", 3: "heads x tokens x head dimension", 1: "out"}
_KEY = re.compile(r"([^/]+)/(?:([0-9]+)/)?([^/]+)")


@dataclass
class LayerIndex:
    """One layer's tensors: `static` by name, `steps` by name and step; all of one shape a name."""

    name: str
    static: dict[str, Entry] = field(default_factory=dict)
    steps: dict[str, dict[int, Entry]] = field(default_factory=dict)

    def shape(self, tensor: str) -> tuple[int, ...]:
        """Shape of `tensor` at every step; KeyError if the layer has none."""
        if tensor in self.static:
            return self.static[tensor].spec.shape
        return next(iter(self.steps[tensor].values())).spec.shape

    @property
    def is_linear(self) -> bool:
        """Whether this is a linear layer (it has ``x``, ``y`` and ``w``)."""
        return "x" in self.steps

    @property
    def tokens(self) -> int:
        """Rows of ``x``."""
        return self.shape("x")[0]

    @property
    def in_features(self) -> int:
        """Columns of ``x`` and of ``w``."""
        return self.shape("x")[1]

    @property
    def out_features(self) -> int:
        """Columns of ``y``, rows of ``w``."""
        return self.shape("y")[1]


def build_index(entries: Mapping[str, Entry], info: DumpInfo) -> dict[str, LayerIndex]:
    """Sort tensors into layers and check every rule that needs no values.

    Layers come in the order of their first tensor.

    Raises
    ------
    DumpError
        On an unknown or misplaced tensor name, a step without zero-padding or out of range, a
        missing key, or a shape that does not fit; the message begins with the key.
    """
    layers: dict[str, LayerIndex] = {}
    digits = {len(match[2]) for key in entries if (match := _KEY.fullmatch(key)) and match[2]}
    width = max([*digits, len(str(info.steps - 1))])
    for key, entry in entries.items():
        name, step, tensor = _parse_key(key, width, info.steps)
        layer = layers.setdefault(name, LayerIndex(name))
        _check_axes(key, tensor, entry.spec)
        if step is None:
            layer.static[tensor] = entry
        else:
            layer.steps.setdefault(tensor, {})[step] = entry
    if not layers:
        raise DumpError("no tensors")
    for layer in layers.values():
        _check_layer(layer, info.steps, width)
    return layers


def _parse_key(key: str, width: int, steps: int) -> tuple[str, int | None, str]:
    match = _KEY.fullmatch(key)
    if match is None:
        raise DumpError(f"{key}: key must be LAYER/STEP/TENSOR or LAYER/w or LAYER/b")
    name, digits, tensor = match.groups()
    known = STATIC_TENSORS if digits is None else STEP_TENSORS
    if tensor not in known:
        where = "without a step" if digits is None else "of a step"
        raise DumpError(f"{key}: a tensor {where} is one of {', '.join(known)}, got {tensor!r}")
    if digits is None:
        return name, None, tensor
    if len(digits) != width:
        raise DumpError(
            f"{key}: step must be zero-padded to {width} digits in this file, got {digits!r}"
        )
    if int(digits) >= steps:
        raise DumpError(f"{key}: step must be below the dump's {steps} steps, got {int(digits)}")
    return name, int(digits), tensor


def _check_axes(key: str, tensor: str, spec: TensorSpec) -> None:
    axes = _AXES[tensor]
    if len(spec.shape) != axes or 0 in spec.shape:
        layout = "out x in" if tensor == "w" else _LAYOUT[axes]
        raise DumpError(f"{key}: shape must be {layout}, none zero, got {list(spec.shape)}")


def _missing(key: str, reason: str) -> DumpError:
    return DumpError(f"{key}: missing ({reason})")


def _check_layer(layer: LayerIndex, steps: int, width: int) -> None:
    """Every step has every tensor of the layer, in one shape, and the shapes fit together."""
    for tensor, found in layer.steps.items():
        if len(found) != steps:
            gap = next(step for step in range(steps) if step not in found)
            raise _missing(
                f"{layer.name}/{gap:0{width}d}/{tensor}",
                f"the dump has {steps} steps, and other steps of this layer have {tensor!r}",
            )
        shape = found[0].spec.shape
        for step, entry in found.items():
            if entry.spec.shape != shape:
                raise DumpError(
                    f"{layer.name}/{step:0{width}d}/{tensor}: shape must be {list(shape)} as at "
                    f"step 0, got {list(entry.spec.shape)}"
                )
    first = f"{layer.name}/{0:0{width}d}"
    linear = [name for name in ("x", "y", "w", "b") if name in layer.steps or name in layer.static]
    if linear:
        for tensor, key in (("x", f"{first}/x"), ("y", f"{first}/y"), ("w", f"{layer.name}/w")):
            if tensor not in linear:
                raise _missing(key, f"a linear layer has x, y and w; this one has {linear}")
        tokens, inner = layer.shape("x")
        out = layer.shape("w")[0]
        _fit(f"{layer.name}/w", layer.shape("w"), (out, inner), "x is tokens x in")
        _fit(f"{first}/y", layer.shape("y"), (tokens, out), "x is tokens x in, w out x in")
        if "b" in layer.static:
            _fit(f"{layer.name}/b", layer.shape("b"), (out,), "w is out x in")
    _check_attention(layer, first)


def _check_attention(layer: LayerIndex, first: str) -> None:
    """q and k share heads and head dimension, k and v heads and tokens, o follows q and v."""
    shapes = {name: layer.shape(name) for name in "qkvo" if name in layer.steps}
    pairs: Iterable[tuple[str, str, int, str]] = (
        ("k", "q", 0, "heads"),
        ("k", "q", 2, "head dimension"),
        ("v", "k", 0, "heads"),
        ("v", "k", 1, "tokens"),
        ("o", "q", 0, "heads"),
        ("o", "q", 1, "tokens"),
        ("o", "v", 2, "head dimension"),
    )
    for one, other, axis, what in pairs:
        if one in shapes and other in shapes and shapes[one][axis] != shapes[other][axis]:
            raise DumpError(
                f"{first}/{one}: shape does not fit: {what} must equal {other}'s "
                f"{shapes[other][axis]}, got {list(shapes[one])}"
            )


def _fit(key: str, shape: tuple[int, ...], expected: tuple[int, ...], reason: str) -> None:
    if shape != expected:
        raise DumpError(
            f"{key}: shape does not fit: must be {list(expected)} ({reason}), got {list(shape)}"
        )
