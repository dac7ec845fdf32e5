# amaranth: UnusedElaboratable=no
"""The check of the bin table accepts and refuses what the golden core does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from amaranth.sim import Simulator

from dstar.gen.config import PRESETS
from dstar.golden.bins import BinTable
from dstar.golden.mpc.fields import IsaError
from dstar.golden.mpc.table import UNUSED, Row, table_of, table_rows
from dstar.rtl.mpc.engines.table import TableCheck


def random_rows(rng: np.random.Generator, span: int) -> list[Row]:
    """Rows of a legal table, often with one field changed."""
    kind, b = rng.integers(3), int(rng.integers(0, 22))
    if kind == 0:
        table = BinTable.keyframe(float(np.exp2(rng.uniform(-20, 16)).clip(0, 65504)), span=span)
    else:
        table = (BinTable.paper if kind == 1 else BinTable.uniform)(b, span=span)
    rows = [list(row) for row in table_rows(table)]
    for _ in range(int(rng.integers(0, 3))):
        at, field = int(rng.integers(16)), int(rng.integers(3))
        low, high = [(0, 2**15), (0, 5), (-32, 32)][field]
        near = rows[at][field] + int(rng.integers(-1, 2))
        drawn = [int(rng.integers(low, high)), near, UNUSED if field == 0 else near]
        rows[at][field] = min(max(drawn[rng.integers(3)], low), high - 1)
    return [(t, s, f) for t, s, f in rows]


@pytest.mark.parametrize("span", [0, 2, 5])
def test_table_check(span: int, seed: int) -> None:
    cfg = PRESETS["tiny"].replace({"exponent_span": span})
    rng = np.random.default_rng(seed)
    dut = TableCheck(cfg)
    verdicts = []

    async def bench(ctx: Any) -> None:
        assert not ctx.get(dut.known)
        kept: list[Row | None] = [None] * 16
        for trial in range(60):
            # At first a row is never written; later some rows stay from before.
            order = rng.permutation(16)[: 15 if trial == 0 else 16]
            rows = random_rows(rng, span)
            for index in order:
                t, s, f = kept[index] = rows[index]
                ctx.set(dut.write, 1)
                ctx.set(dut.index, int(index))
                ctx.set(dut.row, {"threshold": t, "slices": s, "exponent": f})
                await ctx.tick()
            ctx.set(dut.write, 0)
            ctx.set(dut.check, 1)
            cycles = 0
            while not ctx.get(dut.known):
                await ctx.tick()
                cycles += 1
                assert cycles <= 17
            try:
                finest = table_of(kept, cfg).finest
            except IsaError:
                assert not ctx.get(dut.legal), kept
                verdicts.append(False)
            else:
                assert ctx.get(dut.legal), kept
                assert ctx.get(dut.finest) == finest
                verdicts.append(True)
            ctx.set(dut.check, 0)

    simulation = Simulator(dut)
    simulation.add_clock(1e-6)
    simulation.add_testbench(bench)
    simulation.run()
    assert 10 < sum(verdicts) < 50
