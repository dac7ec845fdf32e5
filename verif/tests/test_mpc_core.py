"""Golden core: what instructions do, in every order, and every way to stop."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from dstar.gen.config import PRESETS, load_config
from dstar.golden.bins import BinTable
from dstar.golden.linear import FMDQLinear, LayerTables
from dstar.golden.mpc.core import CoreError, GoldenCore
from dstar.golden.mpc.fields import IsaError, Status
from dstar.golden.mpc.geometry import Geometry
from dstar.golden.mpc.isa import INSTRUCTION_BYTES, Instruction, Opcode, encode_program
from dstar.golden.mpc.layout import (
    LayerShape,
    Tiling,
    pack_parameters,
    pack_vectors,
    pack_weights,
    unpack_vectors,
)
from dstar.golden.mpc.memory import Memory
from dstar.golden.mpc.table import table_of, table_program, table_rows
from dstar.golden.mpc.text import assemble, disassemble
from dstar.golden.mpc.vector import vector_program
from dstar.golden.vpu.isa import Source
from dstar.golden.vpu.programs import layer_norm, residual, softmax
from dstar.golden.vpu.vpu import VPU
from dstar.verif.tests.mpc_programs import RandomProgram
from dstar.verif.tests.mpc_tools import END, same

TINY = PRESETS["tiny"]
BASE, PROGRAM = 0x1000, 0x8000
TABLE = BinTable.uniform(4)
GOOD = disassemble(table_program(TABLE))
BAD = "".join(f"table index={i} threshold=0x7fff slices=4 exponent=6\n" for i in range(16))
TILE = GOOD + "quantize channels=2 keyframe=1\n"


def core_of(order: np.random.Generator | None = None) -> GoldenCore:
    return GoldenCore(TINY, Memory(0x10000, base=BASE), order)


def run(core: GoldenCore, program: list[Instruction]) -> None:
    core.memory.write(PROGRAM, encode_program(program))
    core.run(PROGRAM, len(program))


def test_example_of_the_documentation(seed: int) -> None:
    text = (Path(__file__).parents[2] / "docs" / "isa.md").read_text()
    (example,) = re.findall(r"```\n(.*?)```", text, re.DOTALL)
    rng = np.random.default_rng(seed)
    table = BinTable.uniform(6)
    layer = FMDQLinear(
        rng.normal(size=(8, 16)), rng.normal(size=8), cfg=TINY,
        tables=LayerTables(delta=table, keyframe=table),
    )  # fmt: skip
    x = rng.normal(size=(4, 16)).astype(np.float16)
    want = layer.step(x)
    tiling = Tiling(Geometry(TINY), LayerShape(tokens=4, inner=16, out=8), 16)
    core = core_of(rng)
    core.memory.write(0x1000, pack_vectors(x, 4))
    core.memory.write(0x2000, pack_weights(layer.weight, tiling))
    core.memory.write(0x3000, pack_parameters(layer.weight, layer.bias, tiling))
    run(core, [*table_program(table), *assemble(example)])
    assert same(unpack_vectors(core.memory.read(0x5000, 64), 4, 4, 8, 8), want.y)
    assert layer.reference is not None
    assert same(unpack_vectors(core.memory.read(0x4000, 128), 4, 4, 16, 16), layer.reference)


@pytest.mark.parametrize("preset", ["tiny", "edge"])
def test_every_allowed_order_of_random_programs_gives_the_same(preset: str, seed: int) -> None:
    cfg = PRESETS[preset]
    used = set()
    for number in range(8):
        rng = np.random.default_rng([seed, number])
        draw = RandomProgram(cfg, rng, length=60)
        used |= {i.opcode for i in draw.instructions}
        memory = draw.memory(0x80000)
        results = []
        for order in (None, *(np.random.default_rng([seed, number, n]) for n in range(3))):
            again = Memory(len(memory.data), base=memory.base)
            again.data[:] = memory.data
            core = GoldenCore(cfg, again, order)
            core.run(0x80000, len(draw.instructions))
            results.append((again.data.tobytes(), core.units.buffer.tobytes()))
        assert len(set(results)) == 1
    assert used >= set(Opcode) - {Opcode.OPERATE}


def test_a_forgotten_semaphore_is_found_by_some_order() -> None:
    lines = "load address=0x1000 length=2 rows=1 signal=0\nstore address=0x2000 length=2 rows=1"
    got = set()
    for seed in range(20):
        for wait in ("", " wait=0"):
            core = core_of(np.random.default_rng(seed))
            core.memory.write(0x1000, bytes(range(16)))
            run(core, [*assemble(lines + wait), END])
            got.add((wait, core.memory.read(0x2000, 16).tobytes()))
    assert got == {("", bytes(16)), ("", bytes(range(16))), (" wait=0", bytes(range(16)))}


def test_strides_of_loads_and_stores() -> None:
    core = core_of()
    core.memory.write(0x1000, bytes(range(200)))
    run(core, [*assemble("""
        load address=0x1008 stride=32 buffer=10 step=3 length=2 rows=3
        sync
        store address=0x2000 stride=64 buffer=10 step=3 length=2 rows=3
    """), END])  # fmt: skip
    for row in range(3):
        want = bytes(range(8 + 32 * row, 24 + 32 * row))
        assert core.units.buffer[10 + 3 * row : 12 + 3 * row].tobytes() == want
        assert core.memory.read(0x2000 + 64 * row, 16).tobytes() == want
    assert (core.units.bytes_read, core.units.bytes_written) == (48, 48)


def test_vector_programs_equal_the_vpu(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(5, 4)).astype(np.float16)
    h = rng.normal(size=(5, 4)).astype(np.float16)
    scalars = rng.normal(size=10).astype(np.float16)
    core = core_of()
    core.memory.write(0x1000, x.tobytes())
    core.memory.write(0x1100, h.tobytes())
    core.memory.write(0x1200, np.pad(scalars, (0, 2)).tobytes())
    load = assemble("load address=0x1000 length=5 rows=1\n"
                    "load address=0x1100 buffer=5 length=5 rows=1\n"
                    "load address=0x1200 buffer=10 length=3 rows=1\nsync")  # fmt: skip
    program, at = list(load), 20
    for part in layer_norm(5, modulate=True):
        program += vector_program(part, input=0, outer=1, scalar=10, output=at)
    for part in softmax(5):
        program += vector_program(part, input=0, outer=1, output=at + 5)
    for part in residual(5):
        program += vector_program(part, input=0, inner=5, outer=1, output=at + 10)
    run(core, [*program, END])
    want = VPU(4, TINY.vector).run(layer_norm(5, modulate=True), np.tile(x, (3, 1)), scalars)
    assert same(core.units.words(20, 5), want)
    assert same(core.units.words(25, 5), VPU(4, TINY.vector).run(softmax(5), np.tile(x, (2, 1))))
    pairs = np.stack([x, h], axis=1).reshape(10, 4)
    assert same(core.units.words(30, 5), VPU(4, TINY.vector).run(residual(5), pairs))
    assert all(i["b"] == Source.R0 for i in program if i.opcode == Opcode.VECTOR and i["op"] > 4)


def test_tables_come_back() -> None:
    for table in (TABLE, BinTable.paper(5), BinTable.keyframe(7.0), BinTable.keyframe(6e4)):
        assert table_of(table_rows(table), TINY).entries == table.entries


#: Program, status, program counter, part of the message; all but the first end with END.
STOPS: dict[str, tuple[str, Status, int, str]] = {
    "length": ("sync\nsync", Status.LENGTH, 2, "used up without END"),
    "field": ("sync\nload rows=1", Status.FIELD, 1, "LOAD: length must be from 1 to 160, got 0"),
    "range": ("load buffer=159 length=2 rows=1", Status.RANGE, 0, "must be at most 160, got 161"),
    "vector input": ("vector a=4 count=3 input=158 outer=1", Status.RANGE, 0,
                     "VECTOR: input must end within 160 words, got 161"),
    "vector output": ("vector emit=1 count=3 output=158", Status.RANGE, 0,
                      "VECTOR: output must end within 160 words, got 161"),
    "vector scalar": ("vector a=5 count=5 scalar=159", Status.RANGE, 0,
                      "VECTOR: scalar must end within 160 words, got 161"),
    "read": ("load address=0x10ff8 length=2 rows=1", Status.READ, 0, "the memory answered"),
    "write": ("store address=0x10ff8 length=2 rows=1", Status.WRITE, 0, "the memory answered"),
    "semaphore": ("load length=1 rows=1 address=0x1000 signal=0\n" * 256, Status.SEMAPHORE, 255,
                  "beyond 255"),
    "wait": ("load length=1 rows=1 address=0x1000 wait=3", Status.DEADLOCK, 1,
             "waiting: 0 (load wait=3 address=0x1000 length=1 rows=1)"),
    "queue": ("load length=1 rows=1 address=0x1000 wait=3\n" * 9 + "store length=1 rows=1 "
              "address=0x1000 signal=3", Status.DEADLOCK, 8, "semaphores above zero: {}"),
    "no tile": ("multiply channels=1 tiles=1 first=1", Status.DEADLOCK, 1, "nothing runs"),
    "third tile": (GOOD + "quantize channels=1 keyframe=1\n" * 3, Status.DEADLOCK, 19, "nothing"),
    "no table": ("quantize channels=1 keyframe=1", Status.TABLE, 0, "row 0 of the bin table was"),
    "bad table": (BAD + "quantize channels=1 keyframe=1", Status.TABLE, 16, "must repeat row -1"),
    "left": (TILE, Status.TILES, 17, "END with a tile not released"),
    "channels": (TILE + "multiply channels=3 tiles=1 first=1 finest=4 release=1", Status.TILES, 17,
                 "channels must be those of the tile (2), got 3"),
    "finest": (TILE + "multiply channels=2 tiles=1 first=1 finest=5 release=1", Status.TABLE, 17,
               "finest must be that of the bin table (4), got 5"),
    "long": ("operate\n" * 16 + "vector count=1", Status.PROGRAM, 16, "too long"),
    "cut": ("operate", Status.PROGRAM, 1, "cut off"),
}  # fmt: skip


@pytest.mark.parametrize("case", STOPS)
def test_stops(case: str, seed: int) -> None:
    text, status, pc, message = STOPS[case]
    program = assemble(text) + ([] if case == "length" else [END])
    for order in (None, np.random.default_rng(seed)):
        with pytest.raises(CoreError) as error:
            run(core_of(order), program)
        assert (error.value.status, error.value.pc) == (status, pc)
        assert message in str(error.value)
        if status in (Status.READ, Status.WRITE):
            assert error.value.address == 0x11000
    core = core_of()
    with pytest.raises(CoreError):
        run(core, program)
    run(core, [END])


def test_opcode_and_fetch() -> None:
    core = core_of()
    with pytest.raises(CoreError, match="opcode must be from 1 to 9, got 0") as error:
        core.run(PROGRAM, 1)
    assert (error.value.status, error.value.pc) == (Status.OPCODE, 0)
    core.memory.write(0x11000 - INSTRUCTION_BYTES, Instruction.make(Opcode.SYNC).encode())
    with pytest.raises(CoreError) as error:
        core.run(0x11000 - INSTRUCTION_BYTES, 2)
    assert (error.value.status, error.value.pc) == (Status.FETCH, 1)
    assert error.value.address == 0x11000
    core.memory.faults = {0x1010}
    with pytest.raises(CoreError) as error:
        run(core, [*assemble("load address=0x1000 length=4 rows=1"), END])
    assert (error.value.status, error.value.address) == (Status.READ, 0x1010)


def test_flags_and_two_programs_back_to_back() -> None:
    core = core_of()
    core.memory.write(0x1000, np.array([np.inf, 1, np.nan, 0], np.float16).tobytes())
    first = [*table_program(TABLE), *assemble("load address=0x1000 length=1 rows=1 signal=0\n"
             "quantize channels=1 keyframe=1 wait=0\nmultiply weights=8 channels=1 tiles=1 first=1 "
             "release=1 finest=4"), END]  # fmt: skip
    run(core, first)
    assert core.units.nonfinite
    assert not core.units.saturated
    # Semaphore 0 is zero again: without a signal nothing starts.
    with pytest.raises(CoreError, match="DEADLOCK"):
        run(core, [*assemble("store address=0x2000 length=1 rows=1 wait=0"), END])


def test_fewer_semaphores() -> None:
    cfg = load_config(preset="tiny", overrides=("semaphores=2",))
    core = GoldenCore(cfg, Memory(0x10000, base=BASE))
    with pytest.raises(CoreError, match="signal must be from 0 to 3, got 4"):
        run(core, [*assemble("load address=0x1000 length=1 rows=1 signal=2"), END])


def test_a_table_row_that_was_never_written() -> None:
    rows = [*table_rows(TABLE)[:-1], None]
    with pytest.raises(IsaError, match="row 15 of the bin table was never written"):
        table_of(rows, TINY)
