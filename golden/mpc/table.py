"""Bin tables as the core's TABLE instructions write them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dstar.gen.config import SLICE_BITS, Config, ConfigError
from dstar.golden.bins import MAX_ENTRIES, BinEntry, BinTable

from .fields import IsaError, Status
from .isa import Instruction, Opcode

#: Threshold of rows that repeat the last: NaN's pattern, the largest there is.
UNUSED = 0x7FFF

Row = tuple[int, int, int]


def table_rows(table: BinTable) -> list[Row]:
    """The 16 rows (threshold's pattern, slices, exponent) of a table."""
    thresholds = table.threshold_bits.tolist()
    rows = [
        (int(bits), e.precision // SLICE_BITS, e.exponent)
        for bits, e in zip(thresholds, table.entries, strict=True)
    ]
    return rows + [(UNUSED, *rows[-1][1:])] * (MAX_ENTRIES - len(rows))


def table_program(table: BinTable) -> list[Instruction]:
    """TABLE instructions that write a table."""
    return [
        Instruction.make(Opcode.TABLE, index=i, threshold=t, slices=s, exponent=f)
        for i, (t, s, f) in enumerate(table_rows(table))
    ]


def table_of(rows: Sequence[Row | None], cfg: Config) -> BinTable:
    """The table of 16 rows; the inverse of :func:`table_rows`.

    Raises
    ------
    IsaError
        ``TABLE``, if a row was never written or the table breaks a rule.
    """
    used = [row for row in rows if row is not None]
    if len(used) < len(rows):
        raise IsaError(
            Status.TABLE, f"row {list(rows).index(None)} of the bin table was never written"
        )
    count = next((i for i, row in enumerate(used) if row[0] == UNUSED), len(used))
    for i, row in enumerate(used[count:], count):
        if count == 0 or row != (UNUSED, *used[count - 1][1:]):
            raise IsaError(
                Status.TABLE, f"row {i} of the bin table must repeat row {count - 1}, got {row}"
            )
    thresholds = np.array([t for t, _, _ in used[:count]], np.uint16).view(np.float16)
    entries = [
        BinEntry(float(t), SLICE_BITS * s, f)
        for t, (_, s, f) in zip(thresholds, used, strict=False)
    ]
    try:
        table = BinTable(tuple(entries), "programmed")
        table.check(cfg)
    except ConfigError as error:
        raise IsaError(Status.TABLE, str(error)) from None
    return table
