"""Spending bits where they matter: one threshold exponent per layer, by measured sensitivity.

The layers of a model differ by orders of magnitude in what an error in their input does to its
output.  :func:`allocate` finds the steps ``T = 2**-b`` that reach a given output error with few
bits.  (The paper assigns larger ScaleBase values to the first layers of some models, for the
same reason.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from dstar.gen.config import PRESETS, Config

from .half import Float32, Half, carry, widen
from .linear import LayerTables
from .profile import MIN_B, LayerProfile
from .quantize import difference, quantize, reconstruct

#: Octaves by which a step may exceed the profile's rule.
COARSEST = 5
#: Measures, for each layer and its exponent b, the mean squared change of the model's output when
#: that layer alone is quantized at the step ``2**-b``.
Measure = Callable[[Mapping[str, int]], Mapping[str, float]]


def average_bits(
    activations: Sequence[Half], tables: LayerTables, cfg: Config = PRESETS["paper"]
) -> float:
    """Mean bits of one layer over the steps of its activation, with feedback, keyframe counted."""
    if tables.keyframe is None:
        raise ValueError("tables must have a keyframe table, got None")
    bits, reference = [], None
    for x in activations:
        wide = carry(x)
        d = difference(wide, reference)
        table = tables.keyframe if reference is None else tables.delta
        quantized = quantize(d, table, cfg.array.rows)
        start: Float32 = np.zeros_like(wide) if reference is None else widen(reference)
        reference = reconstruct(start, quantized)[0]
        bits.append(quantized.average_bits)
    return float(np.mean(bits))


def predict(known: Mapping[int, float], b: int) -> float:
    """Error at exponent ``b`` from errors measured at others, at least one.

    Between two measured exponents the logarithm is interpolated; beyond them the error is
    proportional to the squared step.
    """
    below, above = [i for i in known if i <= b], [i for i in known if i >= b]
    if not below or not above:
        nearest = min(known, key=lambda i: abs(i - b))
        return known[nearest] * 4.0 ** (nearest - b)
    low, high = max(below), min(above)
    if low == high or min(known[low], known[high]) == 0:
        return known[low]
    part = (b - low) / (high - low)
    return math.exp((1 - part) * math.log(known[low]) + part * math.log(known[high]))


class _Costs:
    """Bits of all values of a layer at an exponent, computed when first asked for."""

    def __init__(
        self,
        profiles: Mapping[str, LayerProfile],
        activations: Mapping[str, Sequence[Half]],
        cfg: Config,
    ) -> None:
        self.profiles, self.activations, self.cfg = profiles, activations, cfg
        self.known: dict[tuple[str, int], float] = {}

    def __call__(self, name: str, b: int) -> float:
        if (name, b) not in self.known:
            tables, steps = self.profiles[name].tables(b), self.activations[name]
            self.known[name, b] = steps[0].size * average_bits(steps, tables, self.cfg)
        return self.known[name, b]


def allocate(
    measure: Measure,
    profiles: Mapping[str, LayerProfile],
    activations: Mapping[str, Sequence[Half]],
    target: float,
    cfg: Config = PRESETS["paper"],
) -> dict[str, int]:
    """Exponents b per layer whose errors add up to no more than a target.

    Starts :data:`COARSEST` octaves above the rule of the profile and refines, octave by octave,
    the layer that removes most error for the bits it costs on its activations, until the target
    is met or every layer is at its limit.  Errors are predicted from those measured so far, then
    measured where the prediction led, until every chosen exponent has been measured.

    Parameters
    ----------
    measure:
        Called first with the profiles' own exponents, then with a few layers at a time.
    profiles, activations:
        Of the same layers.
    target:
        Mean squared output error to stay within.
    """
    cost = _Costs(profiles, activations, cfg)
    start = {name: profile.exponent for name, profile in profiles.items()}
    known = {name: {start[name]: error} for name, error in measure(start).items()}
    while True:
        chosen = _refine(known, profiles, cost, target)
        unknown = {name: b for name, b in chosen.items() if b not in known[name]}
        if not unknown:
            return chosen
        for name, error in measure(unknown).items():
            known[name][unknown[name]] = error


def _refine(
    known: Mapping[str, Mapping[int, float]],
    profiles: Mapping[str, LayerProfile],
    cost: _Costs,
    target: float,
) -> dict[str, int]:
    """One pass of :func:`allocate` with the errors known so far."""

    def gain(name: str) -> float:
        b = chosen[name]
        removed = predict(known[name], b) - predict(known[name], b + 1)
        return removed / max(cost(name, b + 1) - cost(name, b), 1e-9)

    chosen = {name: max(MIN_B, p.exponent - COARSEST) for name, p in profiles.items()}
    while sum(predict(known[name], b) for name, b in chosen.items()) > target:
        finer = [name for name, b in chosen.items() if b < profiles[name].limit]
        if not finer:
            break
        chosen[max(finer, key=gain)] += 1
    return chosen
