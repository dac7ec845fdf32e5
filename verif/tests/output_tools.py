"""Layers as the output path sees them, and runs of the path on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dstar.gen.config import PRESETS, Config
from dstar.golden.bins import BinTable
from dstar.golden.linear import FMDQLinear, LayerTables
from dstar.golden.output import output
from dstar.verif.harness import Dut
from dstar.verif.output_words import channel_words, command_words, sums_words, vector_words
from dstar.verif.player import PlayResult, play
from dstar.verif.verilate import Build

Half = npt.NDArray[np.float16]
TINY = PRESETS["tiny"]
ODD = TINY.replace({"rows": 6, "cols": 6, "cluster": 2, "k_tile": 5, "exponent_span": 4})


@dataclass
class Layer:
    """One token tile of a layer at one step, as the output path sees it."""

    sums: npt.NDArray[np.int64]
    exponents: npt.NDArray[np.int8]
    finest: int
    scale: npt.NDArray[np.float32]
    bias: Half
    before: Half | None
    y: Half
    saturated: bool

    @property
    def addend(self) -> Half:
        """What the reverse differential adds."""
        return self.bias if self.before is None else self.before


def layer_steps(
    cfg: Config, seed: int, *, out: int, channels: int, steps: int = 4, size: float = 1.0
) -> list[Layer]:
    """A random layer over some steps, from the layer model."""
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal((out, channels)) * np.exp2(np.linspace(-14, 2, out))[:, None]
    bias = rng.standard_normal(out)
    table = BinTable.paper(4, span=cfg.numeric.exponent_span)
    layer = FMDQLinear(weight, bias, tables=LayerTables(delta=table), cfg=cfg)
    x = rng.standard_normal((cfg.array.rows, channels)) * size
    result, before = [], None
    for _ in range(steps):
        step = layer.step(x)
        tiles = step.tiles[0]
        sums = np.array([step.acc(0, k) for k in range(len(tiles))])
        result.append(
            Layer(
                sums,
                np.array([tile.last_exponent for tile in tiles], np.int8),
                step.table.finest,
                layer.weight.scale,
                bias.astype(np.float16),
                before,
                step.y,
                step.saturated,
            )
        )
        before = step.y
        # Every other step nothing changes but a few channels: some tiles are empty.
        change = rng.standard_normal(x.shape) * size * np.exp2(rng.integers(-9, 0, channels))
        change[:, cfg.numeric.k_tile :] *= len(result) % 2
        x = x + change
    return result


def random_layer(cfg: Config, rng: np.random.Generator, *, out: int, size: int) -> Layer:
    """Any sums, exponents, scales and addends that the path must take; y from the golden path."""
    rows, gaps = cfg.array.rows, cfg.numeric.max_shift
    finest = int(rng.integers(-6, 25))
    gap = rng.integers(0, gaps + 1, 8)
    gap[rng.random(8) < 0.5] = 0
    bound = (cfg.numeric.acc_bound >> gap)[:, None, None]
    sums = rng.integers(-bound, bound + 1, (8, rows, out)) >> rng.integers(0, size, (8, 1, out))
    scale = np.ldexp(rng.integers(128, 256, out), rng.integers(-36, 4, out) + finest // 2)
    before = rng.integers(-0x7BFF, 0x7C00, (rows, out))
    addend = np.where(before < 0, 0x8000 - before, before).astype(np.uint16).view(np.float16)
    y, saturated = output(
        sums,
        (finest - gap).astype(np.int8),
        finest=finest,
        scale=scale.astype(np.float32),
        addend=addend,
    )
    exponents = (finest - gap).astype(np.int8)
    bias = np.zeros(out, np.float16)
    return Layer(sums, exponents, finest, scale.astype(np.float32), bias, addend, y, saturated)


def hidden_saturation(cfg: Config, *, hidden: bool) -> Layer:
    """Sums that just leave binary16's range, or just do not, and addends that bring them to 0."""
    rows, cols = cfg.array.rows, cfg.array.cols
    sums = np.full((1, rows, cols), 65536 if hidden else 65504)
    addend = np.full((rows, cols), -65504, np.float16)
    exponents, scale = np.zeros(1, np.int8), np.ones(cols, np.float32)
    y, saturated = output(sums, exponents, finest=0, scale=scale, addend=addend)
    return Layer(sums, exponents, 0, scale, np.zeros(cols, np.float16), addend, y, saturated)


def ties(cfg: Config) -> Layer:
    """Sums half way between two binary16 values, which go to the even one, below or above."""
    rows, cols = cfg.array.rows, cfg.array.cols
    odd = 2 * np.arange(rows * cols) + 2**11 + 1
    sums = np.where(np.arange(rows * cols) // 2 % 2, -odd, odd).reshape(1, rows, cols)
    addend = np.zeros((rows, cols), np.float16)
    exponents, scale = np.zeros(1, np.int8), np.ones(cols, np.float32)
    y, saturated = output(sums, exponents, finest=0, scale=scale, addend=addend)
    return Layer(sums, exponents, 0, scale, np.zeros(cols, np.float16), addend, y, saturated)


def streams(
    steps: list[Layer], cfg: Config, columns: int, *, tiles_inside: bool
) -> tuple[dict[str, npt.NDArray[np.uint8]], Half]:
    """Stream words and the expected output (columns, rows), column tile by column tile.

    ``tiles_inside``: all column tiles of a k tile before the next k tile.
    """
    cols = cfg.array.cols
    commands, sums, exponents, channels, before, expected = [], [], [], [], [], []
    for step in steps:
        k_tiles, out = len(step.sums), step.sums.shape[2]
        tiles = range(out // cols)
        order = [(k, t) for t in tiles for k in range(k_tiles)]
        for k, tile in sorted(order) if tiles_inside else order:
            last, keyframe = k + 1 == k_tiles, step.before is None
            part = slice(tile * cols, (tile + 1) * cols)
            base = tile * cols if tiles_inside else 0
            commands.append([k == 0, last, keyframe, step.finest, base])
            sums.append(step.sums[k][:, part].T)
            exponents += [step.exponents[k]] * cols
            if last:
                channels.append(channel_words(step.scale[part], step.bias[part]))
                expected.append(step.y[:, part].T)
                if step.before is not None:
                    before.append(step.before[:, part].T)
    words = {
        "command": command_words(commands, columns),
        "sums": sums_words(np.concatenate(sums), np.array(exponents), cfg),
        "channel": np.concatenate(channels),
        "before": vector_words(np.concatenate(before)),
    }
    return words, np.concatenate(expected)


def run(
    build: Build,
    dut: Dut,
    cfg: Config,
    words: dict[str, npt.NDArray[np.uint8]],
    count: int,
    seed: int,
    wait: float = 0.0,
    plusargs: Sequence[str] = (),
) -> tuple[Half, PlayResult]:
    """Play the streams; the output as (columns, rows)."""
    result = play(
        build,
        dut,
        inputs=words,
        expect={"output": count},
        idle=wait,
        backpressure=wait,
        seed=seed,
        plusargs=plusargs,
    )
    return np.ascontiguousarray(result.outputs["output"]).view(np.float16), result
