# amaranth: UnusedElaboratable=no
"""The QPU against the golden model, bit by bit."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import numpy as np
import pytest

from dstar.gen.config import PRESETS, ArrayConfig, Config, NumericConfig
from dstar.golden.bins import BinEntry, BinTable
from dstar.golden.encode import EncodedTile
from dstar.golden.half import MAX_HALF
from dstar.rtl.qpu.qpu import QPU
from dstar.verif.qpu.coverage import Coverage
from dstar.verif.qpu.stimulus import Activation, stimulus
from dstar.verif.tests.qpu_tools import Bench, activations, random_table, tables, values
from dstar.verif.tests.rtl_bench import build_bench

TINY = PRESETS["tiny"]

#: Odd shapes: no powers of two, one row, one channel, every number of lanes.
ODD = {
    "k1": Config(
        array=ArrayConfig(rows=1, cols=2, cluster=1, lanes=1),
        numeric=NumericConfig(k_tile=1, exponent_span=0),
    ),
    "k5": Config(
        array=ArrayConfig(rows=3, cols=3, cluster=3, lanes=8),
        numeric=NumericConfig(k_tile=5, exponent_span=1),
    ),
    "k11": Config(
        array=ArrayConfig(rows=10, cols=2, cluster=2, lanes=2),
        numeric=NumericConfig(k_tile=11, exponent_span=16),
    ),
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench.make(TINY, tmp_path_factory.mktemp("qpu"))


def test_200k_subchannels(tiny: Bench, seed: int) -> None:
    """Every word of more than 200,000 sub-channels, and proof that nothing was left out."""
    rng = np.random.default_rng(seed)
    run: list[Activation] = []
    coverage = Coverage()
    while coverage.subchannels < 200_000:
        more = [*activations(rng, TINY, 2), *activations(rng, TINY, 4, channels=2000)]
        for a in more:
            coverage.add(a)
        run += more
    assert coverage.missing(tables(TINY)) == []
    tiny.run(stimulus(run, TINY), seed=seed)


def test_coverage_tells_what_is_missing(seed: int) -> None:
    """One kind of tile under one table leaves goals open, by name."""
    rng = np.random.default_rng(seed)
    table = BinTable.uniform(3)
    x = values(rng, (4, 64), table)
    coverage = Coverage()
    coverage.add(Activation(x=x, reference=None, table=table, cfg=TINY))
    missing = coverage.missing([table])
    assert "mode: previous" in missing
    assert "tile: one channel" in missing
    assert "mode: keyframe" not in missing
    small = Coverage()
    small.add(Activation(x=x[:, :1] * 0, reference=None, table=table, cfg=TINY))
    assert {
        f"{table.name}: 8 bits",
        "8 bits: tie up",
        f"{table.name}, row 1: chosen",
        f"{table.name}, row 1: peak at the threshold",
    } <= set(small.missing([table]))


@pytest.mark.parametrize(("idle", "backpressure"), [(0.5, 0.0), (0.0, 0.5), (0.3, 0.3), (0.0, 0.9)])
def test_idle_and_backpressure(tiny: Bench, seed: int, idle: float, backpressure: float) -> None:
    rng = np.random.default_rng(seed)
    want = stimulus(activations(rng, TINY, 40), TINY)
    tiny.run(want, seed=seed, idle=idle, backpressure=backpressure)


@pytest.mark.parametrize("output", ["slices", "header", "next_reference"])
def test_one_output_slow(tiny: Bench, seed: int, output: str) -> None:
    """An output that is taken rarely delays the others and loses nothing."""
    want = stimulus(activations(np.random.default_rng(seed), TINY, 20), TINY)
    tiny.run(want, seed=seed, backpressure={output: 0.9})


def test_reset_in_mid_tile(tiny: Bench, seed: int) -> None:
    """After a reset anywhere, also of the table, everything runs as the first time."""
    rng = np.random.default_rng(seed)
    want = stimulus(activations(rng, TINY, 20), TINY)
    tiny.run(want, seed=seed, resets=sorted(rng.integers(20, 400, 5).tolist()))


def test_nonfinite_and_saturation(tiny: Bench, seed: int) -> None:
    """NaN gives 0, infinity clips; reconstructions stop at 65504; both flags stay up."""
    rng = np.random.default_rng(seed)
    table = BinTable.keyframe(MAX_HALF)
    x = values(rng, (4, 32), table)
    x[1, 3], x[2, 3], x[0, 5], x[3, 7] = np.nan, np.inf, -np.inf, np.nan
    reference = values(rng, (4, 32), table)
    finite = Activation(x=reference, reference=None, table=table, cfg=TINY)
    broken = [
        finite,
        Activation(x=x, reference=reference, table=table, cfg=TINY),
        Activation(x=x, reference=None, table=table, cfg=TINY),
        Activation(x=x, reference=reference, table=table, cfg=TINY, previous=True),
        finite,
    ]
    want = stimulus(broken, TINY)
    assert want.nonfinite
    tiny.run(want, seed=seed)

    # 65408 + 128 rounds to infinity.
    coarse = BinTable((BinEntry(MAX_HALF, 2, -7),), "coarse")
    full = np.full((4, 16), MAX_HALF, np.float16)
    edge = Activation(x=full, reference=full - np.float16(96), table=coarse, cfg=TINY)
    want = stimulus([edge, finite], TINY)
    assert want.saturated
    assert not want.nonfinite
    tiny.run(want, seed=seed)
    cleared = tiny.play(want, seed=seed, scalars={"clear": 1})
    assert cleared.probes["status__saturated"] == 0


def test_infinite_reference(tiny: Bench) -> None:
    """A reference that is not finite never occurs; it must do no harm either."""
    x = np.ones((4, 3), np.float16)
    reference = np.array([[np.inf, np.nan, -np.inf]] * 4, np.float16)
    a = Activation(x=x, reference=reference, table=BinTable.paper(4), cfg=TINY)
    assert a.quantized.nonfinite
    tiny.run(stimulus([a], TINY))


def test_every_precision_twice_a_table(tiny: Bench, seed: int) -> None:
    """Any legal table, its rows in no order of precision or exponent."""
    rng = np.random.default_rng(seed)
    choice = tuple(random_table(rng, TINY, f"random {i}") for i in range(40))
    tiny.run(stimulus(activations(rng, TINY, 80, choice=choice), TINY), seed=seed)


class Dropping(Activation):
    """An activation under an illegal table: slices too coarse for the accumulator are missing."""

    @cached_property
    def tiles(self) -> list[EncodedTile]:
        """Golden tiles without what the hardware drops."""
        lowest = self.table.finest - self.cfg.numeric.max_shift
        kept = []
        for tile in super().tiles:
            inside = tile.exponent >= lowest
            assert 0 < inside.sum() < tile.slices
            names = ("channel", "signed", "exponent", "codes")
            parts = {name: getattr(tile, name)[inside] for name in names}
            kept.append(EncodedTile(rows=tile.rows, channels=tile.channels, **parts))
        return kept


def test_illegal_table_is_reported(tiny: Bench) -> None:
    """Slices that no accumulator could hold are dropped and flagged; nothing hangs."""
    table = BinTable((BinEntry(1.0, 2, 20), BinEntry(2.0, 8, 3)), "too wide")
    x = np.tile(np.array([0.5, 1.5], np.float16), (4, 9))
    activation = Dropping(x=x, reference=None, table=table, cfg=TINY)
    want = stimulus([activation, activation], TINY)
    result = tiny.play(want)
    np.testing.assert_array_equal(result.outputs["slices"], want.outputs["slices"])
    np.testing.assert_array_equal(result.outputs["header"], want.outputs["header"])
    assert result.probes["status__dropped"] == 1


def wide_tiles(cfg: Config, tiles: int) -> list[Activation]:
    """Full tiles of 8-bit sub-channels: as many slices as there can be."""
    rng = np.random.default_rng(1)
    x = rng.uniform(8, 31, (cfg.array.rows, tiles * cfg.numeric.k_tile)).astype(np.float16)
    return [Activation(x=x, reference=None, table=BinTable.paper(3), cfg=cfg)]


def test_one_vector_a_cycle(tiny: Bench) -> None:
    """Sustained without a gap, even where every tile has four slices a channel."""
    want = stimulus(wide_tiles(TINY, 50), TINY)
    assert all(tile.slices == TINY.numeric.max_tile_slices for tile in want.tiles)
    result = tiny.run(want, stamps=True)
    for name, stamps in result.stamps.items():
        expected = TINY.numeric.k_tile if name == "header" else 1
        np.testing.assert_array_equal(np.diff(stamps.astype(np.int64)), expected, name)


def test_latency(tiny: Bench) -> None:
    """The latencies of the class are those of the circuit."""
    qpu = QPU(TINY)
    want = stimulus(wide_tiles(TINY, 1), TINY)
    stamps = tiny.run(want, stamps=True).stamps
    programs = 16
    # The table, the tile's command, then one vector a cycle; a word counts when it is taken.
    first_vector = int(stamps["next_reference"][0]) - qpu.latency["next_reference"]
    assert first_vector >= programs
    last_vector = first_vector + TINY.numeric.k_tile - 1
    assert int(stamps["slices"][0]) == last_vector + qpu.latency["slices"]


@pytest.mark.parametrize("name", ODD)
def test_odd_configurations(name: str, tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    cfg = ODD[name]
    bench = Bench.make(cfg, tmp_path_factory.mktemp(name))
    rng = np.random.default_rng(seed)
    random = tuple(random_table(rng, cfg, f"random {i}") for i in range(8))
    run = activations(rng, cfg, 80, choice=(*tables(cfg), *random))
    bench.run(stimulus(run, cfg), seed=seed)
    bench.run(stimulus(run, cfg), seed=seed, idle=0.3, backpressure=0.3)


def test_bitonic_reorder_gives_the_same(tmp_path: Path, seed: int) -> None:
    """The paper's network in stage 4: the same words, later."""
    cfg = Config(
        array=ArrayConfig(rows=2, cols=2, cluster=1, lanes=4), numeric=NumericConfig(k_tile=5)
    )
    qpu = QPU(cfg, reorder="bitonic")
    latency = qpu.latency["slices"]
    build, dut = build_bench("qpu", qpu, tmp_path, cfg)
    bench = Bench(build=build, dut=dut, cfg=cfg)
    rng = np.random.default_rng(seed)
    want = stimulus(activations(rng, cfg, 100), cfg)
    bench.run(want, seed=seed)
    bench.run(want, seed=seed, idle=0.3, backpressure=0.3)
    stamps = bench.run(stimulus(wide_tiles(cfg, 1), cfg), stamps=True).stamps
    last_vector = int(stamps["next_reference"][-1]) - qpu.latency["next_reference"]
    assert int(stamps["slices"][0]) == last_vector + latency


def test_refuses_reorder() -> None:
    with pytest.raises(ValueError, match="reorder must be one of buckets, bitonic, got 'bubble'"):
        QPU(TINY, reorder="bubble")
