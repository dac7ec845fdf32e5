"""How busy the engines keep QPU and MPU when everything is in the buffer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dstar.gen.config import PRESETS, Config
from dstar.golden.bins import BinTable
from dstar.golden.mpc.geometry import Geometry
from dstar.golden.mpc.isa import Instruction, Opcode
from dstar.golden.mpc.table import table_program
from dstar.verif.player import PlayResult
from dstar.verif.tests.engine_bench import EngineBench
from dstar.verif.tests.engine_tools import Bench, Bytes
from dstar.verif.tests.rtl_bench import build_bench

#: First threshold of the bin table, 2**-BASE, and how often sub-channels need 2, 4 or 6 bits.
BASE = 4
SHARES = {1.0: 0.5, 4.0: 0.35, 16.0: 0.15}


def differential_step(
    cfg: Config, rng: np.random.Generator, *, tiles: int
) -> tuple[Bytes, list[Instruction]]:
    """Token tiles times a row of column tiles; every operand has a bank of its own."""
    k, cols, bank = cfg.numeric.k_tile, cfg.array.cols, cfg.core.bank_words
    width = min(Geometry(cfg).column_tiles, bank // cols)
    geometry = Geometry(cfg)
    contents = rng.integers(0, 256, (cfg.core.words, geometry.word_bytes), dtype=np.uint8)
    halves = contents.view(np.float16)
    halves[bank:] = rng.standard_normal(halves[bank:].shape)
    given = slice(3 * bank, 3 * bank + tiles * k)
    peaks = rng.choice(list(SHARES), tiles * k, p=list(SHARES.values())) * 2.0**-BASE
    change = rng.uniform(-1, 1, halves[given].shape) * peaks[:, None]
    halves[given] = halves[4 * bank : 4 * bank + tiles * k] + change
    pairs = contents[6 * bank : 7 * bank].view(np.uint16).reshape(bank, -1, 2)
    pairs[..., 0] = 120 << 7
    program = table_program(BinTable.paper(BASE))
    for tile in range(tiles):
        places = {name: (3 + n) * bank + tile * k for n, name in enumerate(["x", "reference"])}
        places["next"] = 5 * bank + tile * k
        program.append(Instruction.make(Opcode.QUANTIZE, {**places, "channels": k, "write": 1}))
        operands = {"weight_step": geometry.weight_words(k), "channels": k, "tiles": width}
        operands |= {"before": bank, "output": 2 * bank, "parameters": 6 * bank}
        flags = {"first": 1, "last": 1, "release": 1, "finest": BinTable.paper(BASE).finest}
        program.append(Instruction.make(Opcode.MULTIPLY, {**operands, **flags}))
    return contents, program


def busy_shares(result: PlayResult) -> tuple[float, float]:
    """Compute cycles over all, and lanes' slots used in them."""
    probes = result.probes
    return probes["beats"] / probes["cycles"], probes["slots"] / probes["beats"]


@pytest.mark.full
def test_array_is_kept_busy(tmp_path: Path, seed: int) -> None:
    """Eight by eight, where a product takes as long as its weights: as at `paper`."""
    changes = {"rows": 8, "cols": 8, "k_tile": 64, "columns": 64, "bank_words": 512}
    cfg = PRESETS["tiny"].replace(changes)
    bench = Bench(*build_bench("engine_bench", EngineBench(cfg), tmp_path, cfg), cfg)
    contents, program = differential_step(cfg, np.random.default_rng(seed), tiles=8)
    result = bench.check(contents, program, seed=seed)
    share, _ = busy_shares(result)
    assert share > 0.8
    assert result.probes["conflicts"] == 0
