"""MPU and output path together: from encoded tiles to a layer's binary16 output."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from dstar.gen.config import PRESETS
from dstar.golden.bins import BinTable
from dstar.golden.linear import FMDQLinear, LayerTables
from dstar.rtl.matrix import MatrixUnit
from dstar.verif.compare.plan import Stimulus, segments
from dstar.verif.output_words import channel_words, command_words, vector_words
from dstar.verif.packing import Words
from dstar.verif.player import play
from dstar.verif.tests.rtl_bench import build_bench

Half = npt.NDArray[np.float16]

CFG = PRESETS["tiny"]
TOKENS, INNER, OUT, STEPS = 10, 40, 12, 4
ROWS, COLS = CFG.array.rows, CFG.array.cols
TOKEN_TILES, COL_TILES, K_TILES = 3, 3, 3
#: Every column sum of a layer is kept: the MPU takes all tiles of a k tile before the next one.
COLUMNS = TOKEN_TILES * OUT


def tile(y: Half, token_tile: int, col_tile: int) -> Half:
    """Token vectors (cols, rows) of a tile of (tokens, out), padded with zeros."""
    part = y[token_tile * ROWS : (token_tile + 1) * ROWS, col_tile * COLS : (col_tile + 1) * COLS]
    full = np.zeros((COLS, ROWS), np.float16)
    full[:, : len(part)] = part.T
    return full


@pytest.mark.parametrize("wait", [0.0, 0.3])
def test_layer_output_is_bit_exact(wait: float, seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    unit = MatrixUnit(CFG, columns=COLUMNS, k_tiles=K_TILES)
    build, dut = build_bench("matrix", unit, tmp_path)
    bias = rng.standard_normal(OUT)
    weight = rng.standard_normal((OUT, INNER))
    layer = FMDQLinear(weight, bias, tables=LayerTables(delta=BinTable.paper(4)), cfg=CFG)
    x = rng.standard_normal((TOKENS, INNER))

    stimulus, results = Stimulus(), []
    for number in range(STEPS):
        results.append(layer.step(x))
        for segment in segments(0, [(number, results[-1])], CFG):
            stimulus.add(segment)
        x = x + rng.standard_normal(x.shape) * np.exp2(rng.integers(-9, 0, INNER))

    commands: list[list[int]] = []
    channels: list[Words] = []
    before: list[Half] = []
    expected: list[Half] = []
    tokens: list[int] = []
    for job in stimulus.jobs:
        place = job.place
        where = (place.token_tile, place.col_tile)
        first, last, keyframe = place.k_tile == 0, place.k_tile == K_TILES - 1, place.step == 0
        base = (place.token_tile * COL_TILES + place.col_tile) * COLS
        finest = results[place.step].table.finest
        commands.append([*map(int, (first, last, keyframe)), finest, base])
        if last:
            part = slice(place.col_tile * COLS, (place.col_tile + 1) * COLS)
            channels.append(channel_words(layer.weight.scale[part], bias[part].astype(np.float16)))
            expected.append(tile(results[place.step].y, *where))
            tokens += [job.tokens] * COLS
            if not keyframe:
                before.append(tile(results[place.step - 1].y, *where))
    want = np.concatenate(expected)
    result = play(
        build,
        dut,
        inputs={
            **stimulus.streams(),
            "store": command_words(commands, COLUMNS),
            "channel": np.concatenate(channels),
            "before": vector_words(np.concatenate(before)),
        },
        expect={"output": len(want)},
        idle=wait,
        backpressure=wait,
        seed=seed,
    )
    got = np.ascontiguousarray(result.outputs["output"]).view(np.uint16)
    real = np.arange(ROWS) < np.array(tokens)[:, None]
    np.testing.assert_array_equal(got[real], want.view(np.uint16)[real])
    assert len(want) == STEPS * TOKEN_TILES * OUT
