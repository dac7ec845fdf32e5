"""Sampling with a method and keeping what came out, so that long runs can be resumed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dstar.golden.model.apply import DstarModel
from dstar.golden.model.report import Report

from .methods import Context, Method
from .metrics import Floats
from .sets import LAYERS, draw_evaluation, shipped_model

#: Name of the model without any method, which the others are compared with.
FLOAT = "float"


@dataclass(frozen=True, eq=False, kw_only=True)
class Run:
    """The images of one method and seed, and what they cost.

    ``images``: float32 (samples, 1, 32, 32).  ``average_bits``: see
    :mod:`dstar.golden.rivals.scheme`; 32 in the float model.  ``attention_fraction_computed``:
    multiply-accumulates of Q and K projections, QK and PV, over the dense ones.
    ``pruned_fraction``: of the scores.  ``score_cache_bytes_per_step``: bytes of scores that move
    to and from the cache, for each image, all layers.  ``bits``: float32 (layers, steps), average
    bits.  ``histogram``: int64 (5, 64), values by half their bits and by scale exponent + 32.
    """

    images: Floats
    average_bits: float = 32.0
    attention_fraction_computed: float = 1.0
    pruned_fraction: float = 0.0
    score_cache_bytes_per_step: float = 0.0
    bits: Floats
    histogram: npt.NDArray[np.int64]

    def save(self, path: Path) -> None:
        """Write an .npz file; a half-written one never has its name."""
        part = path.with_suffix(".part.npz")
        np.savez(part, **{name: getattr(self, name) for name in self.__dataclass_fields__})
        part.replace(path)

    @classmethod
    def load(cls, path: Path) -> Run:
        """Read what :meth:`save` wrote."""
        with np.load(path) as file:
            values: dict[str, Any] = {name: file[name] for name in cls.__dataclass_fields__}
        return cls(**{n: v.item() if v.ndim == 0 else v for n, v in values.items()})


def run(method: Method | None, context: Context, *, samples: int, seed: int) -> Run:
    """Sample the evaluation images of one seed; without a method, with the float model."""
    model = shipped_model() if method is None else method.build(context)
    batches = draw_evaluation(model, steps=context.steps, samples=samples, seed=seed)
    images = np.concatenate(list(batches))
    shape = len(LAYERS), context.steps
    if not isinstance(model, DstarModel):
        empty = np.zeros((5, 64), np.int64)
        return Run(images=images, bits=np.full(shape, 32, np.float32), histogram=empty)
    report = model.report()
    by_layer, bits = report.bits(), np.zeros(shape, np.float32)
    for i, name in enumerate(LAYERS):
        for step, value in by_layer[name].items():
            bits[i, step] = value
    return Run(
        images=images,
        average_bits=report.average_bits,
        attention_fraction_computed=report.attention_fraction_computed,
        pruned_fraction=report.pruned_fraction,
        score_cache_bytes_per_step=report.score_cache_bytes_per_step / samples,
        bits=bits,
        histogram=_histogram(report),
    )


def _histogram(report: Report) -> npt.NDArray[np.int64]:
    total = report.total.histogram
    return np.zeros((5, 64), np.int64) if total is None else total.numpy().astype(np.int64)


class Runs:
    """Runs of one size, kept in a folder: what is there is not computed again.

    Parameters
    ----------
    folder:
        Where they are kept; made when the first is saved.  Delete it after changing a method.
    context:
        Gives the steps.
    samples:
        Images of a seed.
    """

    def __init__(self, folder: Path, context: Context, samples: int) -> None:
        self.folder, self.context, self.samples = folder, context, samples

    def path(self, name: str, seed: int) -> Path:
        """File of one run."""
        return self.folder / f"{name}.{self.context.steps}x{self.samples}.{seed}.npz"

    def get(self, method: Method | None, seed: int) -> Run:
        """A run from the folder, or a new one."""
        path = self.path(FLOAT if method is None else method.name, seed)
        if path.exists():
            return Run.load(path)
        result = run(method, self.context, samples=self.samples, seed=seed)
        self.folder.mkdir(parents=True, exist_ok=True)
        result.save(path)
        return result

    def all(
        self, method: Method | None, seeds: int, done: Callable[[], None] = lambda: None
    ) -> list[Run]:
        """Runs of seeds 0 to ``seeds - 1``; calls ``done`` after each."""
        found = []
        for seed in range(seeds):
            found.append(self.get(method, seed))
            done()
        return found
