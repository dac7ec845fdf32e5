"""Checks what a unit returned against golden sums and outputs, job by job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dstar.gen.config import Config
from dstar.verif.compare.plan import Job, Place
from dstar.verif.packing import Words, unpack_output


@dataclass(frozen=True, order=True)
class Mismatch:
    """One wrong value.

    ``place``: its tile product.  ``column``, ``row``: within the tile.  ``what``: ``sum``;
    ``exponent`` or ``last`` of the column's word; or ``y``, whose values are binary16 patterns.
    """

    place: Place
    column: int
    row: int
    what: str
    expected: int
    got: int

    def as_dict(self, names: Sequence[str]) -> dict[str, Any]:
        """As in the JSON report; ``names`` are the layers'."""
        place = self.place
        return {
            "layer": names[place.layer],
            "step": place.step,
            "tile": {
                "token_tile": place.token_tile,
                "k_tile": place.k_tile,
                "col_tile": place.col_tile,
            },
            "row": self.row,
            "column": self.column,
            "what": self.what,
            "expected": self.expected,
            "got": self.got,
        }


@dataclass(frozen=True)
class JobResult:
    """One checked job: the number of wrong values, the first of them, the cycles it took."""

    job: Job
    mismatches: int
    first: Mismatch | None
    cycles: int


def check(
    jobs: Sequence[Job], words: Words, stamps: npt.NDArray[np.uint64], cfg: Config
) -> list[JobResult]:
    """Compare the output words of `jobs` with the golden model, real rows and columns only.

    Parameters
    ----------
    words:
        Output words, ``cols`` for each job, in order.
    stamps:
        The cycle in which each was accepted.  A job's cycles run from the last word of the job
        before it to its own.

    Raises
    ------
    ValueError
        If the number of words is wrong.
    """
    cols = cfg.array.cols
    if len(words) != cols * len(jobs) or len(stamps) != len(words):
        raise ValueError(
            f"{len(jobs)} tile products must give {cols * len(jobs)} output words with a stamp "
            f"each, got {len(words)} words and {len(stamps)} stamps"
        )
    ends = stamps[cols - 1 :: cols].astype(np.int64)
    cycles = np.diff(ends, prepend=0).tolist()
    results = []
    for i, job in enumerate(jobs):
        sums, exponent, last = unpack_output(words[i * cols : (i + 1) * cols], cfg)
        # Word order is column order: (columns, rows).
        expected = job.expected().T
        wrong = _differences(job.place, sums[: len(expected), : job.tokens], expected, "sum")
        columns = np.arange(len(expected))
        ends_tile = (columns == cols - 1).astype(np.int64)
        scale = np.full(len(expected), job.tile.last_exponent)
        for what, got, want in (("exponent", exponent, scale), ("last", last, ends_tile)):
            wrong += _differences(job.place, got[: len(expected), None], want[:, None], what)
        first = min((mismatch for _, mismatch in wrong), default=None)
        results.append(JobResult(job, sum(count for count, _ in wrong), first, cycles[i]))
    return results


def check_outputs(results: Sequence[JobResult], words: Words, cfg: Config) -> list[JobResult]:
    """Compare the output vectors with the golden ``y`` too, where jobs have one.

    Parameters
    ----------
    results:
        Of :func:`check`.  A wrong sum comes before the wrong y that follows from it.
    words:
        Binary16 token vectors, ``cols`` for each job with a ``y``, in order.

    Raises
    ------
    ValueError
        If the number of words is wrong.
    """
    cols, rows = cfg.array.cols, cfg.array.rows
    ends = sum(result.job.y is not None for result in results)
    if len(words) != cols * ends:
        raise ValueError(
            f"{ends} output tiles must give {cols * ends} output vectors, got {len(words)}"
        )
    bits = np.ascontiguousarray(words).view(np.uint16).reshape(ends, cols, rows).astype(np.int64)
    tiles = iter(bits)
    checked = []
    for result in results:
        y = result.job.y
        if y is not None:
            want = np.ascontiguousarray(y.T).view(np.uint16).astype(np.int64)
            got = next(tiles)[: len(want), : result.job.tokens]
            for count, first in _differences(result.job.place, got, want, "y"):
                result = replace(
                    result,
                    mismatches=result.mismatches + count,
                    first=min(result.first or first, first),
                )
        checked.append(result)
    return checked


def _differences(
    place: Place, got: npt.NDArray[np.int64], want: npt.NDArray[np.int64], what: str
) -> list[tuple[int, Mismatch]]:
    """How many values (columns, rows) differ, with the first one; empty if none does."""
    differs = got != want
    count = int(np.count_nonzero(differs))
    if not count:
        return []
    column, row = (int(i) for i in np.argwhere(differs)[0])
    value, expected = int(got[column, row]), int(want[column, row])
    return [(count, Mismatch(place, column, row, what, expected, value))]
