"""The paper's table 3 beside our areas."""

from __future__ import annotations

import re
from typing import Any

from dstar.gen.config import Config
from dstar.synth.pdk import Found

#: Area of a unit in one core in mm² at 45 nm and 1 GHz (paper, table 3; 64 x 64 PEs, 64 lanes).
TABLE_3 = {"mpu": 3.67, "vpu": 0.05, "qpu": 0.10}
#: NAND2_X1 of the 45 nm Nangate open cell library in µm², the gate that areas are scaled by.
NAND2_45NM = 0.798


def nand2_area(found: Found) -> float | None:
    """Area of the smallest two-input NAND, known by its name."""
    areas = [
        cell.area
        for name, cell in found.cells.items()
        if cell.area and len(cell.pins) == 3 and re.search(r"nand2(?!b)", name, re.IGNORECASE)
    ]
    return min(areas, default=None)


def against_paper(unit: str, cfg: Config, area_um2: float, found: Found) -> dict[str, Any] | None:
    """The paper's figure, and ours at 45 nm: as synthesized there, or scaled by NAND2 areas.

    None for a unit the table does not have, another array than the paper's, or a library without
    a NAND2.
    """
    if unit not in TABLE_3 or (cfg.array.rows, cfg.array.cols) != (64, 64):
        return None
    gate = nand2_area(found)
    if gate is None:
        return None
    native = found.pdk.name == "freepdk45"
    factor = 1.0 if native else NAND2_45NM / gate
    return {
        "paper_mm2": TABLE_3[unit],
        "ours_mm2": area_um2 * factor * 1e-6,
        "scaling_factor": factor,
        "how": "synthesized at 45 nm, memories apart"
        if native
        else (
            f"scaled, not measured: ratio of NAND2 areas, {NAND2_45NM} µm² (NAND2_X1 of the 45 nm "
            f"Nangate library) to {gate:g} µm² here; memories apart"
        ),
    }
