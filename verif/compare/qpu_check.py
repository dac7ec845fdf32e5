"""Checks what the QPU returned against the golden tiles and references."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dstar.gen.config import Config
from dstar.verif.compare.check import JobResult, Mismatch
from dstar.verif.compare.plan import Job, Place
from dstar.verif.compare.qpu_plan import QPURun
from dstar.verif.packing import Words, slices_fields, unpack
from dstar.verif.qpu.stimulus import QPUStimulus, canonical, header_fields, unpack_vectors

#: What the fields of a slices word and of a header are called in a report.
SLICE_NAMES = ("metadata", "code", "count", "last", "exponent")
HEADER_NAMES = ("header slices", "header channels", "header exponent")

#: Wrong values and the first of them.
Wrong = tuple[int, Mismatch | None]


def word_counts(run: QPURun) -> list[int]:
    """Slices words of each tile."""
    lanes = run.cfg.array.lanes
    return [
        max(1, -(-tile.slices // lanes)) for block in run.blocks for tile in block.activation.tiles
    ]


def _places(run: QPURun) -> list[Place]:
    """Where each tile belongs."""
    return [job.place for job in run.jobs if job.place.col_tile == 0]


def join(wrong: Sequence[Wrong]) -> Wrong:
    """Sum of the counts, and the first mismatch."""
    firsts = [first for _, first in wrong if first is not None]
    return sum(count for count, _ in wrong), min(firsts, default=None)


def check_slices(got: Words, want: Words, place: Place, cfg: Config) -> Wrong:
    """Compare the words of one tile.

    A mismatch's column is the slice's position in the tile, or the word's for count, last and
    exponent; its row is the token.
    """
    if (got == want).all():
        return 0, None
    lanes, rows = cfg.array.lanes, cfg.array.rows
    wrong = []
    fields = zip(
        SLICE_NAMES,
        unpack(slices_fields(cfg), got),
        unpack(slices_fields(cfg), want),
        strict=True,
    )
    for what, ours, golden in fields:
        per_slice = {"metadata": 1, "code": rows}.get(what)
        shape = (len(got) * lanes, per_slice) if per_slice else (len(got), 1)
        wrong.append(_differences(place, what, ours.reshape(shape), golden.reshape(shape)))
    return join(wrong)


def _differences(
    place: Place, what: str, got: npt.NDArray[np.int64], want: npt.NDArray[np.int64]
) -> Wrong:
    """Compare values (columns, rows)."""
    differs = got != want
    count = int(np.count_nonzero(differs))
    if not count:
        return 0, None
    column, row = (int(i) for i in np.argwhere(differs)[0])
    return count, Mismatch(place, column, row, what, int(want[column, row]), int(got[column, row]))


def check_tiles(run: QPURun, want: QPUStimulus, got: dict[str, Words]) -> list[Wrong]:
    """Compare headers and references, and slices where they were recorded, tile by tile."""
    cfg = run.cfg
    places, words = _places(run), word_counts(run)
    results: list[list[Wrong]] = [[] for _ in places]
    for name, counts in (("header", [1] * len(places)), ("slices", words)):
        if name not in got:
            continue
        ends = np.cumsum(counts)
        for i, (end, count) in enumerate(zip(ends, counts, strict=True)):
            part = slice(end - count, end)
            ours, golden = got[name][part], want.outputs[name][part]
            if name == "slices":
                results[i].append(check_slices(ours, golden, places[i], cfg))
            elif not np.array_equal(ours, golden):
                pairs = zip(
                    HEADER_NAMES,
                    unpack(header_fields(cfg), ours),
                    unpack(header_fields(cfg), golden),
                    strict=True,
                )
                results[i] += [_differences(places[i], what, a, b) for what, a, b in pairs]
    vectors = canonical(unpack_vectors(got["next_reference"], cfg)).astype(np.int64)
    expected = unpack_vectors(want.outputs["next_reference"], cfg).astype(np.int64)
    start = 0
    for i, tile in enumerate(want.tiles):
        part = slice(start, start + tile.channels)
        results[i].append(_differences(places[i], "reference", vectors[part], expected[part]))
        start += tile.channels
    return [join(wrong) for wrong in results]


def qpu_results(
    run: QPURun, wrong: Sequence[Wrong], stamps: npt.NDArray[np.uint64]
) -> list[JobResult]:
    """Results of a QPU alone; a tile's cycles run from the last word of the one before it."""
    ends = stamps[np.cumsum(word_counts(run)) - 1].astype(np.int64)
    cycles = np.diff(ends, prepend=0).tolist()
    return [
        JobResult(job, count, first, taken)
        for job, (count, first), taken in zip(run.jobs, wrong, cycles, strict=True)
    ]


def with_tiles(results: Sequence[JobResult], wrong: Sequence[Wrong]) -> list[JobResult]:
    """Results of the MPU's products; what was wrong with a tile counts at its first product."""
    tiles = iter(wrong)
    joined = []
    for result in results:
        job: Job = result.job
        parts: list[Wrong] = [(result.mismatches, result.first)]
        if job.place.col_tile == 0:
            parts.append(next(tiles))
        count, first = join(parts)
        joined.append(JobResult(job, count, first, result.cycles))
    return joined
