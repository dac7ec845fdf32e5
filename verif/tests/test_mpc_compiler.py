"""Compiled layers on the golden core against the golden layers, all bits of y and x̂."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dstar.gen.config import PRESETS, Config, load_config
from dstar.golden.bins import BinTable
from dstar.golden.capture import capture_builtin
from dstar.golden.dump import DumpReader
from dstar.golden.linear import FMDQLinear, LayerTables, Mode
from dstar.golden.mpc.compiler import compile_linear
from dstar.golden.mpc.cost import AnyOrder, Bounds
from dstar.golden.mpc.fields import IsaError
from dstar.golden.mpc.image import flat_tokens
from dstar.golden.mpc.isa import Opcode
from dstar.golden.mpc.layout import Allocator, CompileError, LayerShape
from dstar.golden.mpc.plan import plan_layer
from dstar.golden.profile import dump_tables
from dstar.golden.vpu.isa import Op
from dstar.golden.vpu.programs import unary
from dstar.golden.vpu.vpu import VPU
from dstar.verif.tests.mpc_tools import LayersOnCore, same

TINY, EDGE = PRESETS["tiny"], PRESETS["edge"]


def random_layer(
    rng: np.random.Generator,
    cfg: Config,
    inner: int,
    out: int,
    mode: Mode = "reconstructed",
    bias: float = 1.0,
) -> FMDQLinear:
    tables = LayerTables(delta=BinTable.uniform(4))
    biases = bias * rng.normal(size=out)
    return FMDQLinear(rng.normal(size=(out, inner)), biases, tables=tables, mode=mode, cfg=cfg)


def check_steps(bench: LayersOnCore, xs: list[np.ndarray]) -> None:
    """Every step's y and x̂ of every layer; the golden chain takes GELU from the golden VPU."""
    for x in xs:
        given, steps = x, []
        for layer, image in zip(bench.layers, bench.images, strict=True):
            steps.append(layer.step(given))
            if image.plan.gelu:
                vectors = steps[-1].y.T[:, None, :]
                vpu = VPU((1, len(given)), bench.cfg.vector)
                given = vpu.run(unary(bench.gelu, len(vectors)), vectors)[:, 0].T
        bench.images[0].write_x(x)
        bench.run(bench.compile(steps))
        for layer, image, step in zip(bench.layers, bench.images, steps, strict=True):
            assert same(image.read_y(), step.y)
            assert layer.reference is not None
            assert same(image.read_reference(), layer.reference)


def drift(rng: np.random.Generator, shape: tuple[int, int], steps: int) -> list[np.ndarray]:
    x = rng.normal(size=shape)
    return [(x := x + 0.05 * rng.normal(size=shape)).astype(np.float16) for _ in range(steps)]


#: Cores besides the presets; shapes are ragged in every dimension.
CASES: dict[str, tuple[tuple[str, ...], tuple[int, int, int], Mode]] = {
    "whole": ((), (8, 32, 16), "reconstructed"),
    "ragged": ((), (6, 37, 22), "reconstructed"),
    "one of each": ((), (1, 1, 1), "reconstructed"),
    "true references": ((), (9, 33, 7), "previous"),
    "one k tile, many columns": ((), (9, 15, 61), "reconstructed"),
    "weights stay": ((), (21, 32, 9), "reconstructed"),
    "several groups": (("columns=8",), (13, 40, 50), "reconstructed"),
    "short queues": (("queue=1",), (6, 37, 22), "reconstructed"),
    "small buffer": (("banks=4",), (6, 37, 22), "reconstructed"),
    "smallest buffer": (("banks=2", "bank_words=8"), (6, 37, 22), "reconstructed"),
    "wide array": (("cols=8",), (6, 37, 22), "reconstructed"),
    "narrow array": (("cols=2", "columns=10"), (6, 37, 22), "reconstructed"),
    "few weight bits": (("weight_bits=4",), (6, 37, 22), "reconstructed"),
    "tall array": (("rows=16", "cols=4", "k_tile=15"), (30, 37, 22), "reconstructed"),
}


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_layers_of_every_kind(case: str, ordered: bool, seed: int) -> None:
    overrides, (tokens, inner, out), mode = CASES[case]
    cfg = load_config(preset="tiny", overrides=overrides)
    rng = np.random.default_rng(seed)
    layer = random_layer(rng, cfg, inner, out, mode)
    bench = LayersOnCore(cfg, [layer], tokens, order=None if ordered else rng)
    check_steps(bench, drift(rng, (tokens, inner), 3))


@pytest.mark.parametrize("preset", ["edge", "paper"])
def test_ragged_layers_of_larger_cores(preset: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    layer = random_layer(rng, PRESETS[preset], 300, 150)
    bench = LayersOnCore(PRESETS[preset], [layer], 70, order=rng)
    check_steps(bench, drift(rng, (70, 300), 3))


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize(
    ("gelu", "overrides", "outputs"),
    [
        (Op.GELU, (), 6),
        (Op.GELU_TANH, (), 6),
        (Op.GELU, ("banks=4",), 2),
        (Op.GELU, ("banks=2", "bank_words=8"), 1),
    ],
)
def test_chain_with_gelu(
    gelu: Op, overrides: tuple[str, ...], outputs: int, ordered: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    cfg = load_config(preset="tiny", overrides=overrides)
    layers = [random_layer(rng, cfg, 18, 35), random_layer(rng, cfg, 35, 18)]
    bench = LayersOnCore(cfg, layers, 7, order=None if ordered else rng, gelu=gelu)
    assert bench.images[0].plan.outputs == outputs
    check_steps(bench, drift(rng, (7, 18), 3))


def test_missing_tokens_stay_zero_in_a_chain() -> None:
    """GELU of a large bias would set the bins of the next layer, were it not masked."""
    for seed in range(12):
        rng = np.random.default_rng(seed)
        layers = [random_layer(rng, TINY, 18, 35, bias=40.0), random_layer(rng, TINY, 35, 18)]
        bench = LayersOnCore(TINY, layers, 5)
        assert bench.images[0].plan.masked
        check_steps(bench, drift(rng, (5, 18), 3))


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dump") / "dit.safetensors"
    capture_builtin(path, steps=4)
    return path


def linear_of(reader: DumpReader, name: str, cfg: Config) -> FMDQLinear:
    tables = dump_tables(reader, [name], cfg)[name]
    return FMDQLinear(reader.w(name), reader.b(name), tables=tables, cfg=cfg)


def check_dump(
    path: Path, cfg: Config, chains: list[list[str]], *, steps: int, tokens: int | None = None
) -> None:
    """Layers, or chains of them, of a dump: its first steps, and its first tokens or all."""
    with DumpReader(path) as reader:
        for names in chains:
            layers = [linear_of(reader, name, cfg) for name in names]
            xs = [flat_tokens(reader.x(names[0], step))[:tokens] for step in range(steps)]
            bench = LayersOnCore(cfg, layers, len(xs[0]), size=1 << 24)
            check_steps(bench, xs)


def names_of(path: Path, pattern: str) -> list[list[str]]:
    with DumpReader(path) as reader:
        return [[name] for name in reader.match(pattern)]


CHAINS = [[f"blocks.{block}.mlp.{part}" for part in ("fc1", "fc2")] for block in range(4)]


def test_linear_layers_of_the_shipped_model_at_edge(dump: Path) -> None:
    names = names_of(dump, "blocks.*")
    assert len(names) == 20
    check_dump(dump, EDGE, names, steps=3, tokens=40)


def test_linear_layers_of_a_block_at_tiny(dump: Path) -> None:
    check_dump(dump, TINY, names_of(dump, "blocks.3.*"), steps=2, tokens=5)


def test_mlp_chains_of_the_shipped_model_at_edge(dump: Path) -> None:
    check_dump(dump, EDGE, CHAINS, steps=3, tokens=20)


@pytest.mark.full
@pytest.mark.parametrize("preset", ["tiny", "edge", "paper"])
def test_everything_of_the_shipped_model(preset: str, dump: Path) -> None:
    chains = [*names_of(dump, "blocks.*"), *CHAINS]
    check_dump(dump, PRESETS[preset], chains, steps=4, tokens=16 if preset == "tiny" else None)


def test_programs_stay_within_the_plan() -> None:
    """A program has the instructions and moves the words that its plan was chosen by."""
    for shape in ((8, 32, 16), (6, 37, 22), (21, 32, 9), (64, 16, 64)):
        rng = np.random.default_rng(1)
        layer = random_layer(rng, TINY, *shape[1:])
        bench = LayersOnCore(TINY, [layer], shape[0])
        check_steps(bench, drift(rng, shape[:2], 2))
        image, word = bench.images[0], 8
        program = bench.compile([layer.step(np.zeros(shape[:2], np.float16))])
        moved = {
            opcode: sum(i["length"] for i in program if i.opcode == opcode)
            for opcode in (Opcode.LOAD, Opcode.STORE)
        }
        assert len(program) == image.plan.instructions + 1
        assert moved[Opcode.LOAD] == image.plan.words_read
        assert moved[Opcode.STORE] == image.plan.words_written
        assert bench.core.units.bytes_written == 2 * word * moved[Opcode.STORE]


def test_refusals() -> None:
    with pytest.raises(CompileError) as error:
        plan_layer(TINY, LayerShape(tokens=4, inner=1025, out=4))
    assert str(error.value) == (
        "input channels of a layer must be at most 1024 (core.k_tiles 64 of 16), got 1025"
    )
    small = load_config(preset="tiny", overrides=("banks=1", "bank_words=8"))
    with pytest.raises(CompileError) as error:
        plan_layer(small, LayerShape(tokens=4, inner=40, out=40))
    assert str(error.value) == (
        "the buffer must hold at least 12 words for a layer of 40 x 40 channels, has 8 "
        "(core.banks 1 of core.bank_words 8)"
    )
    with pytest.raises(CompileError, match="out of a layer must be at least 1, got 0"):
        LayerShape(tokens=4, inner=4, out=0)
    with pytest.raises(CompileError) as error:
        Allocator(0x100, 0x200, 64).take(257, "weights")
    assert str(error.value) == "memory must hold 257 bytes of weights from 0x100 on, ends at 0x200"
    layer = random_layer(np.random.default_rng(1), TINY, 4, 4)
    image = LayersOnCore(TINY, [layer], 4).images[0]
    with pytest.raises(ValueError, match=r"gelu, plan\.gelu and places\.gelu must agree"):
        compile_linear(
            image.plan, image.places, keyframe=True, table=BinTable.uniform(4), gelu=Op.GELU
        )


def test_places_for_outputs() -> None:
    """As many as keep the array at work: more where it need not wait for the memory."""
    shape = LayerShape(tokens=256, inner=512, out=512)
    small, gelu = (
        plan_layer(PRESETS["paper"], shape),
        plan_layer(PRESETS["paper"], shape, gelu=True),
    )
    wide = {"core.columns": 2048, "core.bank_words": 128, "core.axi_data_bits": 1024}
    fast = plan_layer(PRESETS["paper"].replace(wide), shape)
    assert (small.outputs, gelu.outputs, fast.outputs) == (3, 3, 6)
    # Taken for 2 x 64 cycles of memory, 2 x 64 of columns, and 80 of latency; 64 in any case.
    assert fast.output_cycles == 0
    assert replace(fast, outputs=2).output_cycles == 32 * (336 // 2 - 64)


def test_bounds() -> None:
    """256 x 512 x 512 at 64 x 64, by hand: 4 token tiles, 4 k tiles, 8 column tiles."""
    plan = plan_layer(PRESETS["paper"], LayerShape(tokens=256, inner=512, out=512))
    assert (plan.groups, plan.products) == (1, 128)
    bounds = Bounds(plan, bits=4.0, bytes_per_cycle=47.0)
    assert bounds.beats == 4 * 8 * 512 * 2 / 4 == 8192
    assert (bounds.drain, bounds.weight_rows, bounds.quantize) == (8192, 8192, 2048)
    megabyte = 4 * 256 * 512 * 2
    once = Bounds(plan, bits=4.0, bytes_per_cycle=47.0, once=True)
    assert sum(once.traffic.values()) == megabyte + 256 * 1024 + 256 * 1024 + 512 * 4
    assert bounds.traffic["weights"] == 4 * 256 * 1024 + 512 * 4
    assert once.utilization == pytest.approx(8192 / (sum(once.traffic.values()) / 47))
    assert bounds.utilization < once.utilization < 0.3
    assert bounds.needed_bytes(0.85) == pytest.approx(sum(bounds.traffic.values()) * 0.85 / 8192)
    assert bounds.needed_bytes(1.01) is None
    assert once.needed_bytes(0.85) == pytest.approx(sum(once.traffic.values()) * 0.85 / 8192)


def test_bounds_of_any_order() -> None:
    """By hand at 4 bits: 64 x 64 x 4 x 2 / 4 = 8,192 products a cycle."""
    bound = AnyOrder(PRESETS["paper"], bits=4.0, bytes_per_cycle=47.0)
    assert bound.held == 2 * 81920 + 128 * (8 * 64 + 2 * 64) + 4 * (512 + 192) * 64
    assert bound.allowed(0.85) == pytest.approx(47 / (0.85 * 8192))
    assert bound.blocked == pytest.approx(47 / 8192 * 32768**0.5 / 4)
    assert bound.needed_bytes(0.85) == pytest.approx(47 * 0.85 / bound.blocked)
    assert bound.blocked < bound.utilization < 0.85
    enough = PRESETS["paper"].replace({"core.columns": bound.needed_sums(0.85) // 64 + 1})
    assert AnyOrder(enough, 4.0, 47.0).blocked == pytest.approx(0.85, rel=1e-3)
    assert AnyOrder(PRESETS["paper"], 4.0, 1000.0).utilization == 1.0


def test_no_plan_moves_fewer_bytes(seed: int) -> None:
    """Plans of random layers keep to the bounds."""
    rng = np.random.default_rng(seed)
    for _ in range(20):
        cfg = PRESETS["paper"].replace({"core.columns": 64 << int(rng.integers(6))})
        tokens, inner, out = (int(1 << rng.integers(6, 13)) for _ in range(3))
        plan = plan_layer(cfg, LayerShape(tokens=tokens, inner=inner, out=out))
        busy, bound = Bounds(plan, 4.0, 47.0).utilization, AnyOrder(cfg, 4.0, 47.0)
        assert busy < bound.utilization
        assert busy < bound.blocked or inner <= cfg.numeric.k_tile


def test_a_core_too_small_for_compiled_layers() -> None:
    cfg = load_config(preset="tiny", overrides=("semaphores=12",))
    bench = LayersOnCore(cfg, [random_layer(np.random.default_rng(1), cfg, 4, 4)], 4)
    step = bench.layers[0].step(np.ones((4, 4), np.float16))
    with pytest.raises(CompileError) as error:
        bench.compile([step])
    assert str(error.value) == ("core.semaphores must be at least 13 for compiled layers, got 12")
    cfg = load_config(preset="tiny", overrides=("address_bits=16",))
    bench = LayersOnCore(cfg, [random_layer(np.random.default_rng(1), cfg, 4, 4)], 4)
    with pytest.raises(IsaError, match="LOAD: address must be from 0 to 65535, got 0x"):
        bench.compile([step])
