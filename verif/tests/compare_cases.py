"""What the comparison tests of all units run: an odd configuration, ragged layers, their tables."""

from __future__ import annotations

from dstar.gen.config import ArrayConfig, Config, NumericConfig
from dstar.golden.bins import BinTable
from dstar.golden.linear import LayerTables

#: No size is a multiple of another.
ODD = Config(
    preset="odd",
    array=ArrayConfig(rows=6, cols=9, lanes=2, cluster=3),
    numeric=NumericConfig(weight_bits=5, k_tile=11, exponent_span=1),
)
#: Tokens, input and output channels of each layer.
SHAPES = {"blocks.0.fc": (9, 21, 13), "blocks.0.adaln": (1, 8, 30), "blocks.1.fc": (8, 16, 4)}


def tables_of(cfg: Config) -> dict[str, LayerTables]:
    """The paper's table for each layer, within the configuration's span of exponents."""
    span = cfg.numeric.exponent_span
    return {name: LayerTables(delta=BinTable.paper(4, span=span)) for name in SHAPES}
