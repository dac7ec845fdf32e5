"""The QPU keeps the MPU busy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dstar.gen.config import PRESETS
from dstar.golden.bins import BinTable
from dstar.verif.qpu.timeline import measure


@pytest.mark.parametrize(
    ("preset", "products"),
    [("tiny", 4), pytest.param("paper", 2, marks=pytest.mark.full)],
)
def test_mpu_never_waits(preset: str, products: int, tmp_path: Path) -> None:
    """A tile used for so many column tiles costs the MPU no cycle, at few bits or at eight."""
    cfg = PRESETS[preset]
    assert products * cfg.array.cols == cfg.numeric.k_tile
    for step in (4, 9):
        timeline = measure(
            cfg, tmp_path, tiles=8, products=products, table=BinTable.paper(step), scale=0.04
        )
        np.testing.assert_array_equal(timeline.waits, 0)
        if step == 4:
            # While the tiles before are still waiting, vectors come in every cycle.
            first = timeline.arrives[:2]
            np.testing.assert_array_equal(np.diff(first, axis=1), cfg.numeric.k_tile - 1)
