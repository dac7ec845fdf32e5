"""A small dump to break, and the message with which the reader refuses it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from dstar.golden.dump import (
    DumpError,
    DumpInfo,
    DumpReader,
    DumpWriter,
    TensorSpec,
    static_key,
    step_key,
)

INFO = DumpInfo(model="toy", steps=3, scheduler="euler", seed=7)
LAYER = "blocks.0.fc"


def toy_tensors() -> dict[str, np.ndarray[Any, Any]]:
    """One linear layer (5 tokens, 3 in, 4 out) over three steps."""
    rng = np.random.default_rng(1)
    tensors = {f"{LAYER}/w": rng.normal(size=(4, 3)), f"{LAYER}/b": rng.normal(size=4)}
    for step in range(3):
        tensors[f"{LAYER}/00{step}/x"] = rng.normal(size=(5, 3))
        tensors[f"{LAYER}/00{step}/y"] = rng.normal(size=(5, 4))
    return {key: value.astype(np.float32) for key, value in tensors.items()}


def save(path: Path, tensors: dict[str, Any], **changes: str | None) -> Path:
    """Write a dump with the ``safetensors`` package, as a user's own script would."""
    metadata = INFO.to_metadata() | {k: v for k, v in changes.items() if v is not None}
    for key, value in changes.items():
        if value is None:
            del metadata[key]
    save_file(tensors, path, metadata=metadata)
    return path


def read_everything(path: Path) -> None:
    with DumpReader(path) as dump:
        for layer in dump.linear_layers:
            dump.w(layer)
            dump.b(layer)
            for step in dump.steps:
                dump.x(layer, step)
                dump.y(layer, step)


def refusal(path: Path) -> str:
    """The message with which the reader refuses `path`, reading every value."""
    with pytest.raises(DumpError) as caught:
        read_everything(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")


def write(path: Path, tensors: dict[str, Any], dtype: str = "float32") -> Path:
    specs = {key: TensorSpec(value.shape, dtype) for key, value in tensors.items()}
    with DumpWriter(path, info=INFO, tensors=specs) as writer:
        for key, value in tensors.items():
            writer.write(key, value)
    return path


def save_random(
    path: Path,
    shapes: Mapping[str, tuple[int, int, int]],
    *,
    steps: int,
    peak: float | None = None,
    bias: float = 1.0,
    rows: Mapping[int, float] | None = None,
    dtype: str = "float32",
) -> Path:
    """A dump of layers (tokens, in, out) whose activations drift; the first two channels are 0.

    ``peak``: value of the first token's last channel at step 0.  ``bias``: scale of the bias.
    ``rows``: constant weight rows.
    """
    rng = np.random.default_rng(2)
    info = DumpInfo(model="toy", steps=steps, scheduler="none", seed=2)
    arrays: dict[str, Any] = {}
    for name, (tokens, inner, out) in shapes.items():
        w, b = rng.normal(size=(out, inner)), bias * rng.normal(size=out)
        for row, value in (rows or {}).items():
            w[row] = value
        arrays |= {static_key(name, "w"): w, static_key(name, "b"): b}
        x = rng.normal(size=(tokens, inner))
        if peak is not None:
            x[0, -1] = peak
        for step in range(steps):
            x[:, :2] = 0
            arrays[step_key(name, step, "x", info)] = x
            arrays[step_key(name, step, "y", info)] = x @ w.T + b
            x = x + 0.1 * rng.normal(size=x.shape) * rng.uniform(0, 2, inner)
    specs = {key: TensorSpec(value.shape, dtype) for key, value in arrays.items()}
    with DumpWriter(path, info=info, tensors=specs) as writer:
        for key, value in arrays.items():
            writer.write(key, value)
    return path
