"""FMDQ's thresholds from the profiling set, one exponent a layer (paper, section 5.1).

``python -m dstar.golden.quality.thresholds`` chooses them by :mod:`dstar.golden.allocate`, so
that the images' error equals that of W8A8's activations, and writes ``thresholds.json``; some
minutes.  The exponents of :mod:`dstar.golden.shipped` come from images of all classes and would
not do where classes are held out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from dstar.gen.config import ConfigError
from dstar.golden.allocate import allocate
from dstar.golden.dit.sampler import DEFAULT_STEPS
from dstar.golden.linear import LayerTables
from dstar.golden.model.apply import apply
from dstar.golden.model.fmdq import FMDQ
from dstar.golden.model.method import LinearKernel, LinearMethod, Moment, State
from dstar.golden.model.thresholds import weights_digest
from dstar.golden.profile import LayerProfile, profile_layer
from dstar.golden.rivals import TokenInt8
from dstar.golden.rivals.scheme import FLOAT_BITS, Encoded, int8_kernel

from .metrics import Floats
from .sets import LAYERS, draw_profile, fresh_model, shipped_model

FILE = "thresholds.json"
#: Images that errors are measured on, and of them those whose activations give bits.
SAMPLES, RECORDED = 10, 4


@cache
def load_thresholds() -> dict[str, tuple[int, LayerProfile]]:
    """Exponent and profile of each layer.

    Raises
    ------
    ConfigError
        If the file was made for other weights.
    """
    found = json.loads((files(__package__) / FILE).read_text())
    result = {}
    for name in LAYERS:
        entry = dict(found[name])
        if entry.pop("weights") != _digest(name):
            raise ConfigError(f"{FILE} must be made for the shipped weights, {name} differs")
        result[name] = entry.pop("exponent"), LayerProfile(**entry)
    return result


def tables(shift: int = 0) -> dict[str, LayerTables]:
    """Tables of the layers inside the blocks, every T times ``2**-shift``."""
    return {name: p.tables(b + shift) for name, (b, p) in load_thresholds().items()}


def _digest(name: str) -> str:
    linear = shipped_model().get_submodule(name)
    assert isinstance(linear, nn.Linear)
    return weights_digest(linear)


class _FloatActivations:
    """INT8 weights, activations as they are."""

    def kernel(self, name: str, linear: nn.Linear) -> LinearKernel:
        return int8_kernel(self, linear)

    def encode(self, x: Tensor, state: State, moment: Moment) -> Encoded:
        return Encoded(x, FLOAT_BITS)


class _Alone(_FloatActivations):
    """FMDQ in the layers that have tables, float activations in the others."""

    def __init__(self, chosen: Mapping[str, LayerTables]) -> None:
        self.chosen, self.fmdq = chosen, FMDQ(tables=chosen)

    def kernel(self, name: str, linear: nn.Linear) -> LinearKernel:
        if name in self.chosen:
            return self.fmdq.kernel(name, linear)
        return super().kernel(name, linear)


def _images(method: LinearMethod, steps: int) -> Floats:
    return draw_profile(apply(fresh_model(), method), steps=steps, samples=SAMPLES)


def _activations(steps: int) -> dict[str, list[np.ndarray]]:
    """Inputs of the layers (samples, tokens, channels), binary16, step by step."""
    seen: dict[str, list[np.ndarray]] = {name: [] for name in LAYERS}
    model = fresh_model()

    def record(name: str, x: Tensor) -> None:
        tokens = x.unsqueeze(1) if x.dim() == 2 else x
        seen[name].append(tokens.half().numpy())

    for name in LAYERS:
        model.get_submodule(name).register_forward_pre_hook(
            lambda module, args, name=name: record(name, args[0])
        )
    draw_profile(model, steps=steps, samples=RECORDED)
    return seen


def choose(steps: int = DEFAULT_STEPS) -> dict[str, dict[str, object]]:
    """Measure the profiling set; entries of the file by layer."""
    activations = _activations(steps)
    profiles = {name: profile_layer(xs) for name, xs in activations.items()}
    base = _images(_FloatActivations(), steps)
    target = float(np.square(_images(TokenInt8(), steps) - base).mean())
    print(f"mean squared error of W8A8's activations: {target:.3g}", flush=True)

    def measure(exponents: Mapping[str, int]) -> dict[str, float]:
        found = {}
        for name, b in exponents.items():
            alone = _images(_Alone({name: profiles[name].tables(b)}), steps)
            found[name] = float(np.square(alone - base).mean())
            print(f"{name:20} 2**-{b}: {found[name]:.3g}", flush=True)
        return found

    chosen = allocate(measure, profiles, activations, target)
    return {
        name: {
            "exponent": b,
            **asdict(profiles[name]),
            "weights": _digest(name),
        }
        for name, b in chosen.items()
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    Path(__file__).with_name(FILE).write_text(json.dumps(choose(), indent=1) + "\n")
