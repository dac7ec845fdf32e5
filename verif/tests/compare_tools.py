"""A toy dump of ragged layers, and comparisons of a stand-in on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dstar.gen.config import PRESETS, Config
from dstar.golden.bins import BinTable
from dstar.golden.dump import DumpReader
from dstar.golden.linear import LayerTables
from dstar.verif.compare import CompareReport, compare
from dstar.verif.compare.plan import tile_total
from dstar.verif.tests.stand_in import StandIn

TINY = PRESETS["tiny"]
#: Layers of the dump: tokens, in, out.  Ragged in every direction; one with a single token.
SHAPES = {"blocks.0.fc": (9, 21, 13), "blocks.0.adaln": (1, 8, 30), "blocks.1.fc": (8, 16, 4)}
STEPS = 5


def run(path: Path, simulator: StandIn, *, saturate: bool = False, **options: Any) -> CompareReport:
    tables = {name: LayerTables(delta=BinTable.paper(4)) for name in SHAPES}
    with DumpReader(path, saturate=saturate) as dump:
        for name in dump.linear_layers:  # as whoever chooses the tables does
            dump.x(name, 0)
        return compare(dump, simulator.cfg, simulator, tables=tables, **options)


def tiles_of(cfg: Config, name: str) -> int:
    return tile_total(*SHAPES[name], cfg)
