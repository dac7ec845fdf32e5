"""MPU and output path together: from encoded tiles to a layer's binary16 output."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dstar.gen.config import PRESETS
from dstar.golden.bins import BinTable
from dstar.golden.linear import FMDQLinear, LayerTables
from dstar.rtl.matrix import MatrixUnit
from dstar.verif.compare import segments as planning
from dstar.verif.compare.plan import Stimulus
from dstar.verif.compare.segments import kept_columns, segments
from dstar.verif.compare.select import GoldenStep
from dstar.verif.player import play
from dstar.verif.tests.rtl_bench import build_bench

CFG = PRESETS["tiny"]
TOKENS, INNER, OUT, STEPS = 10, 40, 12, 4
ROWS, COLS = CFG.array.rows, CFG.array.cols


@pytest.mark.parametrize("tiles", [1, 5])
@pytest.mark.parametrize("wait", [0.0, 0.3])
def test_layer_output_is_bit_exact(
    wait: float, tiles: int, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A layer's output at several steps; sums of ``tiles`` output tiles are kept at once."""
    monkeypatch.setattr(planning, "SEGMENT_TILES", tiles)
    rng = np.random.default_rng(seed)
    unit = MatrixUnit(CFG, columns=kept_columns(CFG), k_tiles=-(-INNER // CFG.numeric.k_tile))
    build, dut = build_bench("matrix", unit, tmp_path)
    weight, bias = rng.standard_normal((OUT, INNER)), rng.standard_normal(OUT)
    layer = FMDQLinear(weight, bias, tables=LayerTables(delta=BinTable.paper(4)), cfg=CFG)
    x = rng.standard_normal((TOKENS, INNER))

    steps: list[GoldenStep] = []
    for number in range(STEPS):
        before = steps[-1].result.y if steps else None
        half = x.astype(np.float16)
        result = layer.step(half)
        steps.append(
            GoldenStep(
                step=number, x=half, reference=None, before=before, bias=layer.bias, result=result
            )
        )
        x = x + rng.standard_normal(x.shape) * np.exp2(rng.integers(-9, 0, INNER))
    stimulus = Stimulus()
    for segment in segments(0, steps, CFG):
        stimulus.add(segment)

    ends = [job for job in stimulus.jobs if job.y is not None]
    played = play(
        build,
        dut,
        inputs=stimulus.streams(),
        expect={"output": len(ends) * COLS},
        idle=wait,
        backpressure=wait,
        seed=seed,
    )
    got = np.ascontiguousarray(played.outputs["output"]).view(np.uint16).reshape(-1, COLS, ROWS)
    outputs = np.zeros((STEPS, TOKENS, OUT), np.uint16)
    for job, vectors in zip(ends, got, strict=True):
        token, column = job.place.token_tile * ROWS, job.place.col_tile * COLS
        tokens = slice(token, token + job.tokens)
        outputs[job.place.step, tokens, column : column + COLS] = vectors[:, : job.tokens].T
    for step in steps:
        np.testing.assert_array_equal(outputs[step.step], step.result.y.view(np.uint16))
