"""Sampling: Euler steps along the rectified flow, from noise at t = 1 to an image at t = 0."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from .forward import Attention, Floats, Ints, Linear, Weights, forward
from .spec import DIGITS, DiTSpec

MIN_STEPS, MAX_STEPS, DEFAULT_STEPS = 4, 50, 28

Predict = Callable[[Floats, Floats, Ints], Floats]
"""A velocity predictor (x, t, y) -> v, as `forward` with its weights bound."""
OnStep = Callable[[int, float, Floats], None]
"""Called before each evaluation with the step from 0, its time, and the images (n, c, s, s)."""


def noise(seed: int, count: int, spec: DiTSpec = DIGITS) -> Floats:
    """Starting images (count, channels, side, side), standard normal.

    Drawn by NumPy whatever runs the network. Image i does not depend on `count`.
    """
    shape = (count, spec.channels, spec.image, spec.image)
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def check(classes: Sequence[int], steps: int, guidance: float, spec: DiTSpec) -> None:
    """Refuse what `sample` cannot do, with the rule and the value."""
    if not MIN_STEPS <= steps <= MAX_STEPS:
        raise ValueError(f"steps must be between {MIN_STEPS} and {MAX_STEPS}, got {steps}")
    if not (math.isfinite(guidance) and guidance >= 0):
        raise ValueError(f"guidance must be finite and at least 0, got {guidance}")
    if not len(classes):
        raise ValueError("classes must hold at least one class, got none")
    for c in classes:
        if not 0 <= c <= spec.null_class:
            raise ValueError(f"classes must be between 0 and {spec.null_class} (none), got {c}")


def integrate(
    predict: Predict,
    *,
    classes: Sequence[int],
    steps: int = DEFAULT_STEPS,
    seed: int = 0,
    guidance: float = 1.0,
    spec: DiTSpec = DIGITS,
    on_step: OnStep | None = None,
) -> Floats:
    """Follow the velocities of `predict` from noise to images; see `sample`."""
    check(classes, steps, guidance, spec)
    count = len(classes)
    x = noise(seed, count, spec)
    y = np.asarray(classes, np.int64)
    guided = guidance != 1.0
    if guided:
        y = np.concatenate([y, np.full(count, spec.null_class, np.int64)])
    for step in range(steps):
        t = 1.0 - step / steps
        if on_step is not None:
            on_step(step, t, x)
        times = np.full(len(y), t, np.float32)
        v = predict(np.concatenate([x, x]) if guided else x, times, y)
        if guided:
            real, null = v[:count], v[count:]
            v = null + np.float32(guidance) * (real - null)
        x = x - np.float32(1.0 / steps) * v
    return x


def sample(
    weights: Weights,
    *,
    classes: Sequence[int],
    steps: int = DEFAULT_STEPS,
    seed: int = 0,
    guidance: float = 1.0,
    spec: DiTSpec = DIGITS,
    linear: Linear | None = None,
    attention: Attention | None = None,
    on_step: OnStep | None = None,
) -> Floats:
    """Draw one image for each class.

    Parameters
    ----------
    weights:
        Tensors as `load_weights` gives them.
    classes:
        One class an image; `spec.null_class` for none.
    steps:
        Evaluations of the network, 4 to 50.
    seed:
        Of the starting noise; the only source of randomness.
    guidance:
        Scale of classifier-free guidance; 1 is none. Any other value evaluates the network on
        twice the batch, first with the classes, then with the null class.
    linear, attention:
        Hooks as in `forward`.
    on_step:
        Called before each evaluation.

    Returns
    -------
    Images (n, channels, side, side), nominally in [-1, 1] and not clipped.

    Raises
    ------
    ValueError
        If an argument is out of range.
    """

    def predict(x: Floats, t: Floats, y: Ints) -> Floats:
        return forward(weights, x, t, y, spec=spec, linear=linear, attention=attention)

    return integrate(
        predict,
        classes=classes,
        steps=steps,
        seed=seed,
        guidance=guidance,
        spec=spec,
        on_step=on_step,
    )
