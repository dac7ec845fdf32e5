"""The INT8 designs that ours are measured against, and the bits they are compared at."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest
from amaranth.sim import Simulator

from dstar.gen.config import load_config
from dstar.synth.reference import BoothPE, Int8PE, Int8Tile
from dstar.synth.report import AVERAGE_BITS


@pytest.mark.parametrize("pe", [Int8PE, BoothPE])
def test_reference_is_an_int8_systolic_tile(pe: type[Int8PE]) -> None:
    """Sums of products modulo the accumulator's width, captured and shifted out."""
    cfg = load_config(preset="tiny", overrides=("k_tile=4",))
    tile = Int8Tile(cfg, rows=2, pe=pe)
    # Four products whose sign bits are inverted instead of extended.
    bias = sum(1 << (8 + 2 * digit) for digit in range(4)) if pe is BoothPE else 0
    rng = random.Random(3)
    width, steps = cfg.numeric.acc_width, 9
    a = [[rng.randrange(-128, 128) for _ in range(2)] for _ in range(steps)]
    w = [[rng.randrange(-128, 128) for _ in range(2)] for _ in range(steps)]

    def pack(values: list[int], bits: int) -> int:
        return sum((v % (1 << bits)) << (bits * i) for i, v in enumerate(values))

    async def bench(ctx: Any) -> None:
        for step in range(steps):
            ctx.set(tile.activations_i, pack(a[step], 8))
            ctx.set(tile.weights_i, pack(w[step], 8))
            ctx.set(tile.keep_i, step > 0)
            await ctx.tick()
        ctx.set(tile.keep_i, 0)
        await ctx.tick()
        ctx.set(tile.keep_i, 1)
        ctx.set(tile.start, 1)
        await ctx.tick()
        ctx.set(tile.shift, 1)
        for col in (1, 0):
            got = ctx.get(tile.shadow_o)
            for row in range(2):
                exact = sum(a[s][row] * w[s][col] for s in range(steps)) + steps * bias
                assert got >> (width * row) & ((1 << width) - 1) == exact % (1 << width)
            await ctx.tick()

    simulator = Simulator(tile)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()


def test_average_bits_are_those_measured() -> None:
    """The row of the default tables in the numerics, as ``bench/fmdq_quality.py`` prints it."""
    text = (Path(__file__).parents[2] / "docs" / "numerics.md").read_text()
    row = re.search(r"^\| \*\*FMDQ `reconstructed`, default\*\* \| \d+ \| ([\d.]+) ", text, re.M)
    assert row is not None
    assert float(row[1]) == AVERAGE_BITS
