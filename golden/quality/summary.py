"""From runs to rows: metrics by seed, intervals, the printed table and JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from .features import describe, real_moments
from .intervals import Interval, over_seeds
from .metrics import frechet, inception_score, moments, psnr
from .runner import FLOAT, Run
from .sets import EVALUATION_CLASSES

#: Columns of the printed table: a narrower output would lose digits.
WIDTH = 120


@dataclass(frozen=True, kw_only=True)
class Row:
    """One method: means over seeds with intervals; the other fields are means.

    ``psnr_db``: against the float model's images from the same noise; infinite for itself.
    ``frechet``: of the images' features to those of the training images of the same classes.
    ``frechet_excess``: that minus the float model's, seed by seed, so that the seeds' common
    scatter cancels.  ``score``: Inception-style, 1 to 5 for five classes.
    """

    method: str
    average_bits: Interval
    psnr_db: Interval
    frechet: Interval
    frechet_excess: Interval
    score: Interval
    attention_fraction_computed: float
    pruned_fraction: float
    score_cache_bytes_per_step: float

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            name: value.as_dict() if isinstance(value, Interval) else value
            for name, value in ((n, getattr(self, n)) for n in self.__dataclass_fields__)
        }


def _features(run: Run) -> tuple[float, float]:
    """Frechet distance and score of one seed's images."""
    features, probabilities = describe(run.images)
    distance = frechet(moments(features), real_moments(EVALUATION_CLASSES))
    return distance, inception_score(probabilities)


def summarize(name: str, runs: Sequence[Run], reference: Sequence[Run]) -> Row:
    """The row of a method from its runs and the float model's, seed by seed."""
    values = [_features(run) for run in runs]
    base = [_features(run)[0] for run in reference]
    errors = [psnr(run.images, other.images) for run, other in zip(runs, reference, strict=True)]

    def mean(field: str) -> float:
        return float(np.mean([getattr(run, field) for run in runs]))

    return Row(
        method=name,
        average_bits=over_seeds([run.average_bits for run in runs]),
        psnr_db=over_seeds(errors),
        frechet=over_seeds([distance for distance, _ in values]),
        frechet_excess=over_seeds([v[0] - b for v, b in zip(values, base, strict=True)]),
        score=over_seeds([score for _, score in values]),
        attention_fraction_computed=mean("attention_fraction_computed"),
        pruned_fraction=mean("pruned_fraction"),
        score_cache_bytes_per_step=mean("score_cache_bytes_per_step"),
    )


def _text(value: Interval, digits: int) -> str:
    if not np.isfinite(value.mean):
        return "-"
    text = f"{value.mean:.{digits}f}"
    return text if value.high is None else f"{text} ±{value.high - value.mean:.{digits}f}"


def print_table(rows: Sequence[Row], console: Console, title: str) -> None:
    """Print a row a method; ± is half the 95 % interval."""
    table = Table(title=title, box=SIMPLE_HEAD)
    table.add_column("method", no_wrap=True)
    for head in ("bits", "PSNR dB", "Frechet", "over float", "score", "attention", "cache kB"):
        table.add_column(head, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.method,
            f"{row.average_bits.mean:.2f}",
            _text(row.psnr_db, 1),
            _text(row.frechet, 2),
            _text(row.frechet_excess, 2) if row.method != FLOAT else "-",
            _text(row.score, 2),
            f"{row.attention_fraction_computed:.1%}",
            f"{row.score_cache_bytes_per_step / 1000:,.0f}",
        )
    if console.width < WIDTH:
        console = Console(file=console.file, width=WIDTH)
    console.print(table)


def write_json(rows: Sequence[Row], path: Path) -> None:
    """Write a list with one entry a method."""
    path.write_text(json.dumps([row.as_dict() for row in rows], indent=1) + "\n")
