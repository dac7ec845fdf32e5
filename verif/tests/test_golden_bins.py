"""Bin tables: the paper's rows, the named tables, and every refusal."""

from __future__ import annotations

import numpy as np
import pytest

from dstar.gen.config import PRESETS, ConfigError
from dstar.golden.bins import MAX_ENTRIES, BinEntry, BinTable, max_q

PAPER = PRESETS["paper"]


def at(table: BinTable, magnitude: float) -> tuple[int, int]:
    """Precision and exponent of one magnitude."""
    entry = table.entries[int(table.lookup(np.array([magnitude], np.float32))[0])]
    return entry.precision, entry.exponent


def test_paper_example_of_the_first_sub_channel() -> None:
    # M = 0.7, threshold 1: 2 bits, scale 1 = 2**0 (section 3.1).
    assert at(BinTable.paper(0), 0.7) == (2, 0)


@pytest.mark.parametrize(
    ("magnitude", "precision", "gain"),
    [
        (0.0, 0, 0),
        (0.5, 0, 0),
        (0.501, 2, 0),
        (1, 2, 0),
        (1.01, 4, 2),
        (2, 4, 2),
        (3, 4, 1),
        (4, 4, 1),
        (8, 6, 2),
        (16, 6, 1),
        (32, 8, 2),
        (64, 8, 1),
        (65, 8, 0),
        (128, 8, 0),
        (1000, 8, 0),
        (np.inf, 8, 0),
        (np.nan, 8, 0),
    ],
)
def test_paper_rows_in_units_of_the_first_threshold(
    magnitude: float, precision: int, gain: int
) -> None:
    b = 4
    want = (precision, b + gain if precision else 0)
    assert at(BinTable.paper(b), float(np.float16(magnitude)) * 2.0**-b) == want


def test_paper_rows_follow_the_closed_form() -> None:
    # f = log2(PCeil) - ceil(log2 M), PCeil 8, 32, 128 at 4, 6, 8 bits.
    table = BinTable.paper(3, span=6)
    for entry in table.entries[2:]:
        assert entry.exponent == entry.precision - 1 - np.log2(entry.threshold)


@pytest.mark.parametrize(
    ("magnitude", "precision", "exponent"),
    [(0.5, 0, 0), (1.5, 2, 4), (7.5, 4, 4), (31.5, 6, 4), (127.5, 8, 4), (255, 8, 3), (1e3, 8, 2)],
)
def test_uniform_rows(magnitude: float, precision: int, exponent: int) -> None:
    assert at(BinTable.uniform(4), magnitude / 16) == (precision, exponent)


@pytest.mark.parametrize("largest", [2.0**-24, 1e-3, 0.5, 1.0, 1.99, 127.5, 127.6, 5000, 65280])
def test_keyframe_does_not_clip_and_is_no_coarser_than_needed(largest: float) -> None:
    largest = float(np.float16(largest))
    table = BinTable.keyframe(largest)
    coarsest = table.entries[-1]
    assert coarsest.precision == 8
    assert largest <= coarsest.threshold
    if largest * 2.0 ** (coarsest.exponent + 1) <= 127.5:
        assert table.finest == 23  # nothing in binary16 is finer than that
    assert table.finest - coarsest.exponent <= PAPER.numeric.exponent_span


def test_keyframe_at_the_ends_of_binary16() -> None:
    assert BinTable.keyframe(0.0).finest == 23
    assert BinTable.keyframe(65504.0).entries[-1].exponent == -9


@pytest.mark.parametrize("table", [BinTable.paper, BinTable.uniform])
@pytest.mark.parametrize("span", [0, 2, 5, 9])
def test_named_tables_fit_the_bound_of_their_span(table: type[BinTable], span: int) -> None:
    for b in range(-9, 23):
        made = table(b, span=span)  # type: ignore[call-arg, arg-type]
        cfg = PAPER.replace({"exponent_span": max(span, 2)})
        made.check(cfg)
        assert len(made.entries) <= MAX_ENTRIES
        assert made.channel_bound <= cfg.numeric.channel_bound


def test_every_named_table_skips_exactly_what_rounds_to_zero() -> None:
    tables = [make(b) for make in (BinTable.paper, BinTable.uniform) for b in (-3, 4, 22)]
    for table in [*tables, BinTable.keyframe(3.0), BinTable.keyframe(1e-7)]:
        skip, first = table.entries[:2]
        assert skip.precision == 0
        assert skip.threshold * 2.0**first.exponent == 0.5


def test_a_table_beyond_the_bound_is_refused() -> None:
    table = BinTable.paper(4, span=3)
    with pytest.raises(ConfigError) as error:
        table.check(PAPER)
    assert str(error.value) == (
        "bin table 'paper(4)', entry 9: 127 << (6 - 3) must be at most 508 "
        "(numeric.exponent_span 2), got 1016"
    )
    table.check(PAPER.replace({"exponent_span": 3}))


ROW = BinEntry(1.0, 2, 0)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ((), "entries of a bin table must be 1 to 16, got 0"),
        (
            tuple(BinEntry(float(i), 2, 0) for i in range(17)),
            "entries of a bin table must be 1 to 16, got 17",
        ),
        (
            (BinEntry(0.1, 2, 0),),
            "bin table 't', entry 0: threshold must be a finite non-negative binary16 value, "
            "got 0.1",
        ),
        (
            (BinEntry(-1.0, 2, 0),),
            "bin table 't', entry 0: threshold must be a finite non-negative binary16 value, "
            "got -1.0",
        ),
        (
            (BinEntry(float("nan"), 2, 0),),
            "bin table 't', entry 0: threshold must be a finite non-negative binary16 value, "
            "got nan",
        ),
        (
            (ROW, ROW),
            "bin table 't', entry 1: threshold must be above the one before (1.0), got 1.0",
        ),
        (
            (BinEntry(1.0, 3, 0),),
            "bin table 't', entry 0: precision must be 0, 2, 4, 6 or 8, got 3",
        ),
        (
            (BinEntry(1.0, 0, 1),),
            "bin table 't', entry 0: exponent must be 0 at precision 0, got 1",
        ),
        (
            (BinEntry(1.0, 2, 25),),
            "bin table 't', entry 0: exponent must be at most 24, got 25",
        ),
        (
            (BinEntry(1.0, 8, -10),),
            "bin table 't', entry 0: exponent must be such that 127 * 2**-exponent is at most "
            "65504, got -10",
        ),
    ],
)
def test_illegal_tables_are_refused(entries: tuple[BinEntry, ...], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        BinTable(entries, "t")
    assert str(error.value) == message


def test_a_table_without_slices_and_a_bad_keyframe_are_refused() -> None:
    with pytest.raises(ConfigError, match="must be a table with an entry above 0 bits"):
        BinTable((BinEntry(1.0, 0, 0),))
    with pytest.raises(ConfigError, match="largest magnitude must be a number from 0 to 65504"):
        BinTable.keyframe(float("nan"))


def test_hardware_patterns_order_as_values() -> None:
    table = BinTable.paper(4)
    magnitudes = np.arange(0x8000, dtype=np.uint16)
    by_bits = np.searchsorted(table.threshold_bits, magnitudes, side="left")
    by_bits = np.minimum(by_bits, len(table.entries) - 1)
    values = magnitudes.view(np.float16)
    with np.errstate(invalid="ignore"):
        wide = values.astype(np.float32)
    np.testing.assert_array_equal(table.lookup(wide), by_bits)


def test_max_q() -> None:
    assert [max_q(p) for p in (0, 2, 4, 6, 8)] == [0, 1, 7, 31, 127]
