"""Random tiles for the MPU, and one run of it on them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dstar.gen.config import Config
from dstar.golden.accumulate import accumulate
from dstar.golden.encode import EncodedTile
from dstar.golden.schedule import Schedule, schedule
from dstar.verif.generated import generate
from dstar.verif.harness import Dut, build_harness
from dstar.verif.packing import Words, pack_commands, pack_slices, pack_weights, unpack_output
from dstar.verif.player import PlayResult, play
from dstar.verif.verilate import Build


@dataclass(frozen=True, kw_only=True, eq=False)
class Product:
    """One command: an encoded tile times a weight tile, int8 (cols, channels)."""

    tile: EncodedTile
    weights: npt.NDArray[np.int8]


def random_tile(
    rng: np.random.Generator, cfg: Config, *, channels: int, density: float, kind: str = "random"
) -> EncodedTile:
    """A tile of random sub-channels within the accumulator's bound.

    ``density``: fraction of channels that are not skipped.  ``kind``: ``random``; ``gaps``, with
    one exponent in three; ``ones``, all slice bits set; ``extreme``, every channel 8 bits wide,
    at the coarsest exponent, and of largest magnitude.
    """
    rows, span = cfg.array.rows, cfg.numeric.exponent_span
    entries: list[tuple[int, int, bool, npt.NDArray[np.uint8]]] = []
    for channel in range(channels):
        if rng.random() >= density:
            continue
        precision = 8 if kind == "extreme" else int(rng.choice([2, 4, 6, 8]))
        # The coarsest exponent that leaves `q << (f_max - f)` within the channel's bound.
        coarsest = -(span + 8 - precision)
        exponent = int(rng.integers(coarsest, 1))
        if kind == "gaps":
            exponent = -3 * (-exponent // 3)
        if kind == "extreme":
            exponent = 0 if channel == channels - 1 else coarsest
        limit = 2 ** (precision - 1) - 1
        q = rng.integers(-limit, limit + 1, rows)
        if kind == "ones":
            q[:] = -1
        if kind == "extreme":
            q[:] = limit
        for n in range(precision // 2):
            codes = ((q >> (2 * n)) & 3).astype(np.uint8)
            entries.append((exponent - 2 * n, channel, n == precision // 2 - 1, codes))
    entries.sort(key=lambda entry: entry[:2])
    return EncodedTile(
        rows=rows,
        channels=channels,
        channel=np.array([e[1] for e in entries], np.uint16),
        signed=np.array([e[2] for e in entries], bool),
        exponent=np.array([e[0] for e in entries], np.int8),
        codes=np.array([e[3] for e in entries], np.uint8).reshape(len(entries), rows),
    )


def random_products(rng: np.random.Generator, cfg: Config, count: int) -> list[Product]:
    """Products that hit the corners, then random ones, in random order."""
    k, cols = cfg.numeric.k_tile, cfg.array.cols
    low, high = -(2 ** (cfg.numeric.weight_bits - 1)), 2 ** (cfg.numeric.weight_bits - 1) - 1
    plans: list[tuple[str, int, float]] = [
        ("extreme", k, 1.0),
        ("ones", k, 1.0),
        ("gaps", k, 1.0),
        ("random", k, 0.0),
        ("random", 1, 1.0),
        ("random", max(1, k - 1), 1.0),
        ("random", k, 0.1),
    ]
    kinds = ("random", "gaps")
    while len(plans) < count:
        plans.append((str(rng.choice(kinds)), int(rng.integers(1, k + 1)), float(rng.random())))
    products = []
    for kind, channels, density in rng.permutation(np.array(plans, object)):
        tile = random_tile(rng, cfg, channels=channels, density=density, kind=kind)
        weights = rng.integers(low, high + 1, (cols, channels)).astype(np.int8)
        if kind in ("extreme", "ones"):
            weights[::2], weights[1::2] = low, high
        products.append(Product(tile=tile, weights=weights))
    return products


def play_products(
    build: Build, dut: Dut, cfg: Config, products: list[Product], **options: Any
) -> PlayResult:
    """Run the products, each with operands of its own, and check every output bit."""
    release = np.ones(len(products), bool)
    result = play(
        build,
        dut,
        inputs={
            "slices": np.concatenate([pack_slices(p.tile, cfg) for p in products]),
            "weights": np.concatenate([pack_weights(p.weights, cfg) for p in products]),
            "command": pack_commands(release, release),
        },
        expect={"output": len(products) * cfg.array.cols},
        max_cycles=100_000,
        **options,
    )
    check_outputs(result, cfg, [(p.tile, p.weights) for p in products])
    total = schedule([p.tile for p in products], cfg.array.lanes)
    empty = sum(p.tile.slices == 0 for p in products)
    assert result.probes["perf__beats"] == total.beats + empty
    assert result.probes["perf__slots"] == total.slices
    return result


def check_outputs(
    result: PlayResult, cfg: Config, pairs: list[tuple[EncodedTile, npt.NDArray[np.int8]]]
) -> None:
    """Sums, exponents and last flags of the output words against golden."""
    check_words(result.outputs["output"], cfg, pairs)


def check_words(
    words: Words, cfg: Config, pairs: list[tuple[EncodedTile, npt.NDArray[np.int8]]]
) -> None:
    """Output words, ``cols`` for each pair of a tile and its weights, against golden."""
    cols = cfg.array.cols
    sums, exponent, last = unpack_output(words, cfg)
    for index, (tile, weights) in enumerate(pairs):
        part = slice(index * cols, (index + 1) * cols)
        np.testing.assert_array_equal(sums[part], accumulate(tile, weights).T, f"tile {index}")
        assert (exponent[part] == tile.last_exponent).all(), f"tile {index}"
    np.testing.assert_array_equal(last, np.tile(np.arange(cols) == cols - 1, len(pairs)))


def beats(product: Product, cfg: Config) -> int:
    """Compute cycles of one product; an empty tile takes one."""
    result: Schedule = schedule(product.tile, cfg.array.lanes)
    return max(1, result.beats)


def generated(cfg: Config, folder: Path, **options: Any) -> tuple[Build, Dut]:
    """The MPU's simulator and description."""
    dut = generate("mpu", cfg, folder)
    return build_harness(dut, **options), dut
