"""Quantize, multiply and vector engine with their units, bit for bit as the golden core."""

from __future__ import annotations

import numpy as np
import pytest

from dstar.gen.config import PRESETS
from dstar.golden.mpc.fields import Status
from dstar.golden.mpc.geometry import Geometry
from dstar.golden.mpc.isa import Instruction, Opcode
from dstar.golden.vpu.isa import Op, Source
from dstar.verif.tests.engine_bench import ENGINES
from dstar.verif.tests.engine_programs import Programs
from dstar.verif.tests.engine_tools import Bench, make

#: Configurations: two weight rows a word; none of a power of two, one a word; four a word, two
#: lanes, a tile of many columns.
SHAPES = {
    "tiny": {},
    "one row a word": {"rows": 4, "cols": 6, "k_tile": 11, "columns": 24, "banks": 7},
    "four rows a word": {"rows": 8, "cols": 4, "cluster": 4, "lanes": 2, "k_tile": 20},
    "three rows a word": {"rows": 8, "cols": 5, "cluster": 1, "lanes": 8, "columns": 30},
}


def bench_of(shape: str, folder: pytest.TempPathFactory) -> Bench:
    changes = {"bank_words": 128} | SHAPES[shape]
    return make(folder.mktemp("engines"), PRESETS["tiny"].replace(changes))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """4 x 4."""
    return bench_of("tiny", tmp_path_factory)


def check_matrix(bench: Bench, seed: int, *, tiles: int, wait: float) -> None:
    """Tiles and products that overlap, at full speed or with banks taken by another client."""
    rng = np.random.default_rng(seed)
    programs = Programs(bench.cfg, rng)
    program = programs.matrix(tiles)
    noise = rng.integers(0, bench.cfg.core.words, 4_000 if wait else 0)
    bench.check(programs.contents(), program, idle=wait, noise=noise, seed=seed)


def check_vectors(bench: Bench, seed: int, *, count: int, wait: float) -> None:
    """VPU programs of any operations."""
    rng = np.random.default_rng(seed)
    programs = Programs(bench.cfg, rng)
    noise = rng.integers(0, bench.cfg.core.words, 4_000 if wait else 0)
    bench.check(programs.contents(), programs.vectors(count), idle=wait, noise=noise, seed=seed)


@pytest.mark.parametrize("wait", [0.0, 0.4])
def test_matrix_engines(tiny: Bench, wait: float, seed: int) -> None:
    check_matrix(tiny, seed, tiles=60, wait=wait)


@pytest.mark.parametrize("wait", [0.0, 0.4])
def test_vector_engine(tiny: Bench, wait: float, seed: int) -> None:
    check_vectors(tiny, seed, count=80, wait=wait)


@pytest.mark.full
@pytest.mark.parametrize("shape", list(SHAPES)[1:])
def test_other_shapes(shape: str, seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    bench = bench_of(shape, tmp_path_factory)
    for wait in (0.0, 0.4):
        check_matrix(bench, seed, tiles=60, wait=wait)
    check_vectors(bench, seed, count=40, wait=0.4)


def test_all_at_once_after_resets(tiny: Bench, seed: int) -> None:
    """All engines side by side, after resets in mid-run."""
    rng = np.random.default_rng(seed)
    programs = Programs(tiny.cfg, rng)
    program = [*programs.matrix(20), *programs.vectors(20)]
    loads = tiny.cfg.core.words
    resets = [loads + int(rng.integers(30, 400)) for _ in range(2)]
    tiny.check(programs.contents(), program, resets=resets, seed=seed)


def broken(tiny: Bench, programs: Programs, case: str) -> Instruction:
    """An instruction that fails, by what is wrong with it."""
    words, channels = tiny.cfg.core.words, 5
    geometry = Geometry(tiny.cfg)
    opcode, _, name = case.partition(" ")
    if opcode == "VECTOR":
        # Three runs of two inputs, a scalar and an output, the second of which is too much.
        body = {"op": Op.ADD, "a": Source.INPUT, "b": Source.SCALAR, "emit": 1, "count": 9}
        fields = {"inner": 1, "outer": 1, **body}
        at = {"input": words - 8, "scalar": words - 2, "output": words - 8}
        return Instruction.make(Opcode.VECTOR, {**fields, name: at[name]})
    if opcode == "QUANTIZE":
        good = {"channels": channels, "write": 1, "next": programs.place("next", channels)}
        return Instruction.make(Opcode.QUANTIZE, {**good, name: words - channels + 1})
    good = programs.multiply(channels, release=True).operands | {"first": 1, "last": 1}
    good |= {"keyframe": 0, "tiles": 2, "base": 0, "weight_step": 1}
    reads = {
        "weights": words - geometry.weight_words(channels),
        "parameters": words - 2 * geometry.parameter_words + 1,
        "before": words - 2 * tiny.cfg.array.cols + 1,
        "output": words - 2 * tiny.cfg.array.cols + 1,
        "base": tiny.cfg.core.columns - tiny.cfg.array.cols,
        "channels": channels + 1,
        "finest": good["finest"] - 1,
    }
    return Instruction.make(Opcode.MULTIPLY, {**good, name: reads[name]})


@pytest.mark.parametrize(
    ("case", "status"),
    [
        ("QUANTIZE x", Status.RANGE),
        ("QUANTIZE reference", Status.RANGE),
        ("QUANTIZE next", Status.RANGE),
        ("QUANTIZE table", Status.TABLE),
        ("MULTIPLY weights", Status.RANGE),
        ("MULTIPLY parameters", Status.RANGE),
        ("MULTIPLY before", Status.RANGE),
        ("MULTIPLY output", Status.RANGE),
        ("MULTIPLY base", Status.RANGE),
        ("MULTIPLY channels", Status.TILES),
        ("MULTIPLY finest", Status.TABLE),
        ("VECTOR input", Status.RANGE),
        ("VECTOR scalar", Status.RANGE),
        ("VECTOR output", Status.RANGE),
    ],
)
def test_faults(tiny: Bench, case: str, status: Status, seed: int) -> None:
    """The first command that fails is named, when those before it are done."""
    programs = Programs(tiny.cfg, np.random.default_rng(seed))
    program = programs.vectors(3) if case.startswith("VECTOR") else programs.matrix(3)
    if case == "QUANTIZE table":
        # A row whose slices would leave the accumulator.
        row = {"index": 0, "threshold": 1, "slices": 4, "exponent": -20}
        program += [Instruction.make(Opcode.TABLE, row), programs.quantize(3)]
    elif case.startswith("MULTIPLY"):
        program += [programs.quantize(5), broken(tiny, programs, case)]
    else:
        program.append(broken(tiny, programs, case))
    result = tiny.run(programs.contents(), program, faults=1, seed=seed)
    word = int.from_bytes(result.outputs["fault"][0].tobytes(), "little")
    engine, number = ENGINES[word & 3], word >> 6
    own = [i for i in program if i.engine == engine]
    assert engine == program[-1].engine
    assert Status(word >> 2 & 15) == status
    assert number == len(own) - 1
