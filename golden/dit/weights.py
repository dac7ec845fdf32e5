"""The shipped weights: `weights.safetensors` beside this file, written by `train`."""

from __future__ import annotations

from importlib.resources import as_file, files

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load

from .forward import Floats
from .spec import DIGITS

FILE = "weights.safetensors"


def load_weights() -> dict[str, Floats]:
    """The shipped tensors by name, widened from float16 to float32.

    Raises
    ------
    ValueError
        If the file does not hold exactly the tensors of `DIGITS`, by name and shape.
    """
    tensors = load((files(__package__) / FILE).read_bytes())
    weights = {name: tensor.astype(np.float32) for name, tensor in tensors.items()}
    want = DIGITS.tensors
    if odd := sorted(want.keys() ^ weights.keys()):
        raise ValueError(f"{FILE} must hold exactly the tensors of the model, differs in {odd}")
    for name, tensor in weights.items():
        if tensor.shape != want[name]:
            raise ValueError(f"{name} must have shape {want[name]}, got {tensor.shape}")
    return weights


def load_metadata() -> dict[str, str]:
    """Where the weights come from: model, parameters, dataset, training_steps, seed."""
    with as_file(files(__package__) / FILE) as path, safe_open(path, framework="numpy") as file:
        return dict(file.metadata() or {})
