"""The two sets of images: one that parameters are chosen on, one that they are judged on.

They share neither seeds nor classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np

from dstar.golden.dit.model import DiT, load_model, sample
from dstar.golden.dit.spec import DIGITS
from dstar.golden.dit.weights import load_weights

from .metrics import Floats

PROFILE_CLASSES = (0, 1, 2, 3, 4)
EVALUATION_CLASSES = (5, 6, 7, 8, 9)
#: Seed of the profiling set, and of the first image of the first evaluation seed.
PROFILE_SEED, EVALUATION_SEED = 1, 1000
#: Images that run at once: so many that layers are efficient, so few that they stay in a cache.
BATCH = 16
#: Linear layers that every method quantizes: those inside the blocks.
LAYERS = tuple(name for name in DIGITS.linears if name.startswith("blocks."))


@cache
def shipped_model() -> DiT:
    """The shipped model in float32; not to be changed."""
    return load_model(load_weights())


def fresh_model() -> DiT:
    """A copy of the shipped model that may be wrapped."""
    return load_model(load_weights())


def draw_profile(model: object, *, steps: int, samples: int = 10) -> Floats:
    """Images (samples, 1, 32, 32) of the profiling set, at most one batch."""
    classes = [PROFILE_CLASSES[i % len(PROFILE_CLASSES)] for i in range(samples)]
    return sample(model, classes=classes, steps=steps, seed=PROFILE_SEED)  # type: ignore[arg-type]


def draw_evaluation(model: object, *, steps: int, samples: int, seed: int) -> Iterator[Floats]:
    """Batches of images (n, 1, 32, 32) of evaluation seed 0, 1, …; ``samples`` in all.

    Classes take turns; every batch has noise of its own.
    """
    labels = np.resize(EVALUATION_CLASSES, samples).tolist()
    for start in range(0, samples, BATCH):
        noise = EVALUATION_SEED * (seed + 1) + start
        classes = labels[start : start + BATCH]
        yield sample(model, classes=classes, steps=steps, seed=noise)  # type: ignore[arg-type]
