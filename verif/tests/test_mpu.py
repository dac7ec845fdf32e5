"""The MPU against golden: corners, random tiles, idle and back-pressure, reset, faults."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dstar.gen.config import Config, load_config
from dstar.verif.generated import generate
from dstar.verif.harness import build_harness
from dstar.verif.packing import pack_commands, pack_slices, pack_weights
from dstar.verif.player import play
from dstar.verif.process import SimulationError
from dstar.verif.tests.mpu_tools import (
    Product,
    beats,
    check_outputs,
    generated,
    play_products,
    random_products,
    random_tile,
)

#: Preset ``tiny`` and odd but legal shapes: lanes, clusters, sizes that divide nothing evenly.
CONFIGS = {
    "tiny": "",
    "two_lanes": "rows=6 cols=10 lanes=2 k_tile=10",
    "no_clusters": "rows=5 cols=3 cluster=1 lanes=8 k_tile=7 weight_bits=5",
    "one_lane": "rows=8 cols=2 cluster=2 lanes=1 k_tile=5 exponent_span=0",
    "one_row": "rows=1 cols=12 cluster=1 k_tile=20 exponent_span=5",
}
PATTERNS: dict[str, dict[str, Any]] = {
    "free": {},
    "idle": {"idle": 0.4},
    "backpressure": {"backpressure": 0.6},
    "both": {"idle": 0.2, "backpressure": 0.3},
    "starved": {"idle": {"slices": 0.9}},
}


def config(name: str) -> Config:
    return load_config(preset="tiny", overrides=tuple(CONFIGS[name].split()))


@pytest.mark.parametrize("name", CONFIGS)
def test_bit_exact(name: str, tmp_path: Path, seed: int) -> None:
    """All corners and random tiles, under every pattern, and after a reset in mid-tile."""
    cfg = config(name)
    build, dut = generated(cfg, tmp_path)
    rng = np.random.default_rng(seed)
    for options in PATTERNS.values():
        play_products(build, dut, cfg, random_products(rng, cfg, 40), seed=seed, **options)
    resets = [int(cycles) for cycles in rng.integers(10, 400, 4)]
    play_products(
        build, dut, cfg, random_products(rng, cfg, 20), seed=seed, backpressure=0.3, resets=resets
    )


def test_operands_are_reused(tmp_path: Path, seed: int) -> None:
    """A tile times several weight tiles, a weight tile times several tiles, in one program."""
    cfg = config("tiny")
    build, dut = generated(cfg, tmp_path)
    rng = np.random.default_rng(seed)
    k, cols = cfg.numeric.k_tile, cfg.array.cols
    tiles = [random_tile(rng, cfg, channels=k, density=0.8) for _ in range(6)]
    weights = [rng.integers(-128, 128, (cols, k)).astype(np.int8) for _ in range(6)]
    pairs = [(0, 0), (0, 1), (0, 2), (1, 2), (2, 2), (3, 3), (3, 4), (4, 4), (5, 4), (5, 5)]
    following = [*pairs[1:], (6, 6)]
    pairing = list(zip(pairs, following, strict=True))
    result = play(
        build,
        dut,
        inputs={
            "slices": np.concatenate([pack_slices(tile, cfg) for tile in tiles]),
            "weights": np.concatenate([pack_weights(w, cfg) for w in weights]),
            "command": pack_commands(
                np.array([now[0] != then[0] for now, then in pairing]),
                np.array([now[1] != then[1] for now, then in pairing]),
            ),
        },
        expect={"output": len(pairs) * cols},
        max_cycles=10_000,
        seed=seed,
    )
    check_outputs(result, cfg, [(tiles[a], weights[b]) for a, b in pairs])


def test_drain_overlaps_compute(tmp_path: Path) -> None:
    """Tile after tile takes exactly its beats, or ``cols`` cycles where that is more."""
    cfg = load_config(preset="tiny", overrides=("rows=8", "cols=8"))
    build, dut = generated(cfg, tmp_path)
    rng = np.random.default_rng(3)
    k, cols = cfg.numeric.k_tile, cfg.array.cols
    weights = rng.integers(-128, 128, (cols, k)).astype(np.int8)
    tiles = [random_tile(rng, cfg, channels=k, density=d) for d in [1.0] * 5 + [0.1] * 5]
    products = [Product(tile=tile, weights=weights) for tile in tiles]
    count = len(products)
    result = play(
        build,
        dut,
        inputs={
            "slices": np.concatenate([pack_slices(p.tile, cfg) for p in products]),
            "weights": pack_weights(weights, cfg),
            "command": pack_commands(np.ones(count, bool), np.arange(count) == count - 1),
        },
        expect={"output": count * cols},
        stamps=True,
        max_cycles=10_000,
    )
    check_outputs(result, cfg, [(p.tile, p.weights) for p in products])
    work = [beats(p, cfg) for p in products]
    assert min(work[:5]) > cols > min(work[5:])
    first = result.stamps["output"][::cols].astype(int)
    assert np.diff(first).tolist() == [max(cols, beats_) for beats_ in work[1:]]


def test_latency_is_as_stated(tmp_path: Path) -> None:
    """One product in an idle unit: from its last beat to the first output word."""
    cfg = load_config(preset="tiny", overrides=("rows=8", "cols=12"))
    build, dut = generated(cfg, tmp_path)
    rng = np.random.default_rng(1)
    tile = random_tile(rng, cfg, channels=1, density=1.0)
    weights = rng.integers(-128, 128, (cfg.array.cols, 1)).astype(np.int8)
    latencies = set()
    for _ in range(2):
        result = play_products(build, dut, cfg, [Product(tile=tile, weights=weights)], stamps=True)
        # Loading takes one word; the job begins in the cycle after it is seen to be loaded.
        loading, begin = len(pack_slices(tile, cfg)), 1
        last_beat = loading + begin + beats(Product(tile=tile, weights=weights), cfg) - 1
        latencies.add(int(result.stamps["output"][0]) - last_beat)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert latencies == {manifest["latency"]["last_beat_to_output"]}


#: A place in the Verilog (as a regular expression) and what stands there instead.
FAULTS = {
    "a row's offset is not subtracted": (r"(\[20:0\]) - offset_deskew_1;", r"\1;"),
    "beats ignore the exponent": (r"(assign joins_1 = \S+) .*;", r"\1 ;"),
    "doublings are lost": (r"(assign head_shift = ).*;", r"\g<1>0;"),
    "captures do not wait": (r"(assign capture_ready = ).*;", r"\g<1>1'h1;"),
    "captured sums move on": (r"(assign moving = shift) .*;", r"\1;"),
    "columns are popped into a full queue": (r"(assign pop = \S+) .*;", r"\1 ;"),
    "a lane's slice is always signed": (r"(assign unsigned_1 = ).*;", r"\g<1>0;"),
    "one memory copy is not written": (r"(if \(write)(\)\n +copy_2\[)", r"\1 & 1'b0\2"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_caught(fault: str, tmp_path: Path, seed: int) -> None:
    cfg = config("tiny")
    dut = generate("mpu", cfg, tmp_path)
    source = tmp_path / "mpu.v"
    broken, count = re.subn(*FAULTS[fault], source.read_text(), count=1)
    assert count == 1
    source.write_text(broken)
    build = build_harness(dut, optimize=1)

    def attempts() -> None:
        """Some faults need a rare coincidence of waits."""
        for number in range(seed, seed + 24):
            products = random_products(np.random.default_rng(number), cfg, 40)
            play_products(build, dut, cfg, products, seed=number, backpressure=0.8)

    with pytest.raises((AssertionError, SimulationError)):
        attempts()


def test_a_reset_without_a_clock_edge(tmp_path: Path, seed: int) -> None:
    """The same unit with an asynchronous active-low reset."""
    cfg = load_config(preset="tiny", overrides=("clock.reset=async_low",))
    build, dut = generated(cfg, tmp_path)
    assert (dut.reset, dut.reset_active_low) == ("rst_n", True)
    products = random_products(np.random.default_rng(seed), cfg, 20)
    play_products(build, dut, cfg, products, seed=seed, resets=[50, 81])
