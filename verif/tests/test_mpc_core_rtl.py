"""The core's RTL against the golden core: random programs, resets, errors of every kind."""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pytest

from dstar.gen.config import PRESETS
from dstar.golden.bins import BinTable
from dstar.golden.mpc.core import GoldenCore
from dstar.golden.mpc.fields import Status
from dstar.golden.mpc.isa import Instruction, Opcode
from dstar.golden.mpc.memory import Memory
from dstar.golden.mpc.register_map import Register
from dstar.golden.mpc.registers import REGISTERS
from dstar.golden.mpc.table import table_program
from dstar.golden.mpc.text import assemble
from dstar.verif.mpc.machine import Machine, build_machine
from dstar.verif.mpc.session import Bus, Program, Session
from dstar.verif.tests.core_tools import PROGRAM, code, golden_error, random_run
from dstar.verif.tests.mpc_tools import END

TINY = PRESETS["tiny"]
BASE = 0x4000
BEAT = TINY.core.axi_bytes
SLOW = Bus(latency=15, bytes_per_cycle=5.5, stall=0.2)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return build_machine(TINY, tmp_path_factory.mktemp("core"))


def empty() -> Memory:
    return Memory(1 << 18, base=BASE, beat=BEAT)


@pytest.mark.parametrize("bus", [Bus(latency=0), SLOW])
def test_random_programs(machine: Machine, bus: Bus, seed: int) -> None:
    rng = np.random.default_rng(seed)
    runs = [random_run(TINY, rng, 80) for _ in range(6)]
    ended = Session(machine=machine, bus=bus, seed=seed).run(empty(), [p for p, _ in runs])
    for end, (_, want) in zip(ended, runs, strict=True):
        assert end.error == (Status.OK, 0, 0)
        assert (end.reads[0] == want).all()
    # Clients of the buffer met, and it was counted.
    assert sum(end.conflicts for end in ended) > 0


def test_reset_in_mid_program(machine: Machine, seed: int) -> None:
    """Wherever a program is cut off, the next one runs as if it were the first."""
    rng = np.random.default_rng(seed)
    programs, wants = [], []
    for _ in range(5):
        (first, _), (second, want) = (random_run(TINY, rng, 60) for _ in range(2))
        cut = int(rng.integers(1, 1500))
        programs += [dataclasses.replace(first, reset_after=cut), second]
        wants.append(want)
    ended = Session(machine=machine, bus=SLOW, seed=seed).run(empty(), programs)
    for end, want in zip(ended[1::2], wants, strict=True):
        assert end.error == (Status.OK, 0, 0)
        assert (end.reads[0] == want).all()


def test_counters_and_flags(machine: Machine) -> None:
    """A program of known traffic; NaN raises the flag; four slices, two octaves apart."""
    memory = empty()
    memory.write(BASE, np.array([np.inf, 1, np.nan, 0], np.float16).tobytes())
    table = table_program(BinTable.uniform(4))
    program = [*table, *assemble(
        f"load address={BASE} length=8 rows=2 step=8 signal=0\n"
        "quantize channels=1 keyframe=1 wait=0 signal=1\n"
        "multiply weights=8 channels=1 tiles=1 first=1 release=1 finest=4 signal=2\n"
        f"store address={BASE + 1024} length=3 rows=1 wait=1"
    ), END]  # fmt: skip
    run = Program(address=PROGRAM, length=len(program), writes=[(PROGRAM, code(program))])
    (end,) = Session(machine=machine).run(memory, [run])
    assert end.error == (Status.OK, 0, 0)
    numeric: Register = REGISTERS["NUMERIC"]
    assert numeric.unpack(end.registers["NUMERIC"])["NONFINITE"] == 1
    word = 2 * TINY.array.rows
    assert end.wide("BYTES_READ") == 16 * word + 32 * len(program)
    assert end.wide("BYTES_WRITTEN") == 3 * word
    assert (end.registers["BEATS"], end.registers["SLOTS"]) == (7, 4)
    busy = end.engines("BUSY")
    assert all(0 < busy[name] <= end.cycles for name in ("load", "quantize", "multiply", "store"))
    assert busy["vector"] == 0


@pytest.mark.parametrize(("scale", "saturated"), [(2.0**-9, 0), (2.0**20, 1)])
def test_an_output_beyond_binary16_is_told(machine: Machine, scale: float, saturated: int) -> None:
    words = np.zeros((32, TINY.array.rows), np.uint16)
    words[0] = np.float16(1).view(np.uint16)
    words[8:16] = 0x7F7F  # weights of 127
    words[16:, ::2] = np.float32(scale).view(np.uint32) >> 16  # scales in bfloat16, biases of 0
    program = [*table_program(BinTable.uniform(4)), *assemble(
        f"load address={BASE} length=32 rows=1 signal=0\n"
        "quantize channels=1 keyframe=1 wait=0\n"
        "multiply weights=8 channels=1 tiles=1 first=1 last=1 keyframe=1 release=1 finest=4 "
        "parameters=16 output=40"
    ), END]  # fmt: skip
    memory = empty()
    memory.write(BASE, words.tobytes())
    memory.write(PROGRAM, code(program).tobytes())
    golden = GoldenCore(TINY, copy.deepcopy(memory))
    golden.run(PROGRAM, len(program))
    assert golden.units.saturated == saturated
    (end,) = Session(machine=machine).run(memory, [Program(address=PROGRAM, length=len(program))])
    assert end.error == (Status.OK, 0, 0)
    numeric: Register = REGISTERS["NUMERIC"]
    assert numeric.unpack(end.registers["NUMERIC"]) == {"NONFINITE": 0, "SATURATED": saturated}


#: Programs that stop, after a bin table of 16 instructions; what is at fault is in the text.
WRONG = {
    "no END": "load address=0x4000 length=1 rows=1",
    "buffer": "load address=0x4000 buffer=159 length=2 rows=1",
    "rows": "store address=0x4000 length=1 rows=3 step=100",
    "deadlock": "store address=0x4000 length=1 rows=1 wait=3\nend",
    "deadlock behind a full queue": "load address=0x4000 length=1 rows=1 wait=1\n" * 20 + "end",
    "no tile": "multiply weights=0 channels=1 tiles=1 first=1 finest=4\nend",
    "three tiles": "quantize channels=1 keyframe=1\n" * 3 + "end",
    "tile left": "quantize channels=1 keyframe=1\nend",
    "channels": "quantize channels=2 keyframe=1\n"
    "multiply weights=8 channels=1 tiles=1 first=1 release=1 finest=4\nend",
    "finest": "quantize channels=1 keyframe=1\n"
    "multiply weights=8 channels=1 tiles=1 first=1 release=1 finest=3\nend",
    "quantize": "quantize x=159 channels=2 keyframe=1\nend",
    "operate cut off": "operate op=0 a=4\nsync\nend",
    "program too long": "operate op=0 a=4\n" * 16 + "vector op=0 a=4 emit=1 count=1\nend",
    "vector": "vector op=0 a=4 emit=1 count=9 input=155 outer=1\nend",
    "semaphore": "load address=0x4000 length=1 rows=1 signal=5\n" * 257 + "end",
}


def test_programs_that_stop(machine: Machine) -> None:
    """Status and program counter are the golden core's; the next program runs all the same."""
    good, want = random_run(TINY, np.random.default_rng(1), 40)
    programs, expected = [], []
    for text in WRONG.values():
        program = [*table_program(BinTable.uniform(4)), *assemble(text)]
        memory = empty()
        memory.write(PROGRAM, code(program).tobytes())
        expected.append(golden_error(TINY, memory, len(program)))
        run = Program(address=PROGRAM, length=len(program), writes=[(PROGRAM, code(program))])
        programs += [run, good]
    ended = Session(machine=machine, bus=SLOW, seed=1).run(empty(), programs)
    got = [end.error for end in ended[::2]]
    assert dict(zip(WRONG, got, strict=True)) == dict(zip(WRONG, expected, strict=True))
    for end in ended[1::2]:
        assert end.error == (Status.OK, 0, 0)
        assert (end.reads[0] == want).all()


def test_instructions_that_are_none(machine: Machine) -> None:
    """Opcodes, and bits that belong to no field."""
    good = code([END])
    words = []
    for at, value in ((0, 0), (0, 10), (31, 1), (3, 1)):
        word = good.copy()
        word[at] = value
        words.append(word)
    load = code([Instruction.make(Opcode.LOAD, address=0x4001, length=1, rows=1)]).copy()
    words.append(load)
    programs, expected = [], []
    for word in words:
        memory = empty()
        memory.write(PROGRAM, word.tobytes())
        expected.append(golden_error(TINY, memory, 1))
        programs.append(Program(address=PROGRAM, length=1, writes=[(PROGRAM, word)]))
    ended = Session(machine=machine).run(empty(), programs)
    assert [end.error for end in ended] == expected


def test_an_error_of_every_beat(machine: Machine, seed: int) -> None:
    """Reads, fetches and writes; hardware tells the burst that a write's answer belongs to."""
    good, want = random_run(TINY, np.random.default_rng(seed), 25)
    program = assemble(
        "load address=0x4fc0 length=20 rows=2 step=20 stride=0x100 signal=0\n"
        "load address=0x4000 length=2 rows=1 buffer=50\n"
        "store address=0x5fc0 length=15 rows=2 step=15 stride=0x80 wait=0\n"
        "end"
    )
    memory = empty()
    memory.write(PROGRAM, code(program).tobytes())
    plain = Program(address=PROGRAM, length=4, writes=[(PROGRAM, code(program))])
    touched = [range(PROGRAM, PROGRAM + 32 * 4, BEAT), range(0x4000, 0x4010, BEAT)]
    touched += [range(at, at + 160, BEAT) for at in (0x4FC0, 0x50C0)]
    touched += [range(at, at + 120, BEAT) for at in (0x5FC0, 0x6040)]
    faults = [address for part in touched for address in part]
    expected = []
    for fault in faults:
        memory.faults = {fault}
        expected.append(golden_error(TINY, memory, 4))
    runs = [dataclasses.replace(plain, fault=fault) for fault in faults]
    ended = Session(machine=machine, bus=SLOW, seed=seed).run(empty(), [*runs, good])
    assert {status for status, _, _ in expected} == {Status.READ, Status.WRITE, Status.FETCH}
    for end, (status, pc, address) in zip(ended[:-1], expected, strict=True):
        assert end.error[:2] == (status, pc)
        told = end.error[2]
        assert told == address or (status == Status.WRITE and told <= address < told + 128)
        response = REGISTERS["ERROR"].unpack(end.registers["ERROR"])["RESPONSE"]
        assert response == 2
    assert (ended[-1].reads[0] == want).all()
