"""Instruction set of the core: both codings, ranges, text and documentation."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstar.gen.config import PRESETS, ConfigError, load_config
from dstar.golden.mpc.fields import IsaError, Status
from dstar.golden.mpc.geometry import Geometry
from dstar.golden.mpc.isa import (
    INSTRUCTION_BYTES,
    INSTRUCTIONS,
    Instruction,
    Opcode,
    decode,
    fields,
    mask,
)
from dstar.golden.mpc.manual import BEGIN, FINISH, manual
from dstar.golden.mpc.text import assemble, disassemble

TINY = PRESETS["tiny"]


@st.composite
def instructions(draw: st.DrawFn) -> Instruction:
    opcode = draw(st.sampled_from(list(Opcode)))
    values = [int(opcode), *(draw(st.integers(*f.bounds)) for f in fields(opcode)[1:])]
    return Instruction(opcode, tuple(values))


@given(instructions())
def test_both_codings_bring_every_instruction_back(instruction: Instruction) -> None:
    data = instruction.encode()
    assert len(data) == INSTRUCTION_BYTES
    assert decode(data) == instruction
    assert assemble(disassemble([instruction])) == [instruction]


@given(st.integers(1, 9), st.binary(max_size=INSTRUCTION_BYTES - 1))
def test_bytes_are_refused_or_encoded_the_same(opcode: int, operands: bytes) -> None:
    data = (bytes([opcode]) + operands).ljust(INSTRUCTION_BYTES, b"\0")
    end = sum(field.width for field in fields(Opcode(opcode)))
    if int.from_bytes(data, "little") >> end:
        with pytest.raises(IsaError):
            decode(data)
    else:
        assert decode(data).encode() == data


def test_empty_memory_is_no_program() -> None:
    with pytest.raises(IsaError, match="opcode must be from 1 to 9, got 0") as error:
        decode(bytes(INSTRUCTION_BYTES))
    assert error.value.status == Status.OPCODE


@pytest.mark.parametrize("opcode", Opcode)
def test_every_bit_beyond_the_fields_is_refused(opcode: Opcode) -> None:
    end = sum(field.width for field in fields(opcode))
    assert end <= 8 * INSTRUCTION_BYTES
    word = int.from_bytes(Instruction.make(opcode).encode(), "little")
    for bit in range(end, 8 * INSTRUCTION_BYTES):
        with pytest.raises(IsaError, match=f"bits from {end} on must be zero") as error:
            decode((word | 1 << bit).to_bytes(INSTRUCTION_BYTES, "little"))
        assert error.value.status == Status.FIELD


#: Lines that the tiny core (160 words of 8 bytes, k tile 16, 8 column tiles) refuses.
REFUSED = {
    "load length=0 rows=1": "LOAD: length must be from 1 to 160, got 0",
    "load length=1 rows=0": "LOAD: rows must be from 1 to 65535, got 0",
    "load address=0x1004 length=1 rows=1": "LOAD: address must be a multiple of 8 bytes, "
    "got 0x1004",
    "load stride=4 length=1 rows=2": "LOAD: stride must be a multiple of 8 bytes, got 0x4",
    "load buffer=160 length=1 rows=1": "LOAD: buffer must be from 0 to 159, got 160",
    "load buffer=150 step=4 length=3 rows=3": "LOAD: buffer + 11 words must be at most 160, "
    "got 161",
    "quantize x=145 channels=16 keyframe=1": "QUANTIZE: x + 16 words must be at most 160, got 161",
    "quantize channels=17": "QUANTIZE: channels must be from 1 to 16, got 17",
    "quantize channels=16 reference=150": "QUANTIZE: reference + 16 words must be at most 160, "
    "got 166",
    "quantize channels=16 next=150 write=1": "QUANTIZE: next + 16 words must be at most 160, "
    "got 166",
    "table slices=5": "TABLE: slices must be from 0 to 4, got 5",
    "multiply channels=1 tiles=9": "MULTIPLY: tiles must be from 1 to 8, got 9",
    "multiply channels=1 tiles=2 base=25": "MULTIPLY: base + 8 columns must be at most 32, got 33",
    "multiply channels=16 tiles=2 weights=140 weight_step=13": "MULTIPLY: weights + 21 words must "
    "be at most 160, got 161",
    "multiply channels=1 tiles=1 last=1 before=157": "MULTIPLY: before + 4 words must be at most "
    "160, got 161",
    "multiply channels=1 tiles=1 last=1 parameters=159": "MULTIPLY: parameters + 2 words must be "
    "at most 160, got 161",
    "operate a=7": "OPERATE: a must be from 0 to 6, got 7",
    "operate wait=1": "OPERATE: wait must be from 0 to 0, got 1",
    "vector count=0": "VECTOR: count must be from 1 to 65535, got 0",
}


@pytest.mark.parametrize("line", REFUSED)
def test_refused(line: str) -> None:
    (instruction,) = assemble(line)
    with pytest.raises(IsaError) as error:
        instruction.check(TINY)
    assert str(error.value) == REFUSED[line]
    ranges = " words " in str(error.value) or " columns " in str(error.value)
    assert error.value.status == (Status.RANGE if ranges else Status.FIELD)


def test_what_is_not_used_is_not_checked() -> None:
    for line in ("quantize channels=16 reference=150 next=150 keyframe=1",
                 "multiply channels=16 tiles=1 output=159 parameters=159"):  # fmt: skip
        assemble(line)[0].check(TINY)


def test_a_core_with_fewer_semaphores_refuses_the_others() -> None:
    cfg = load_config(preset="tiny", overrides=("semaphores=3",))
    Instruction.make(Opcode.LOAD, length=1, rows=1, wait=mask([0, 2])).check(cfg)
    with pytest.raises(IsaError, match="signal must be from 0 to 7, got 8"):
        Instruction.make(Opcode.LOAD, length=1, rows=1, signal=mask([3])).check(cfg)


TEXTS = {
    "jump": "line 2: instruction must be one of load, store, table, quantize, multiply, operate, "
    "vector, sync, end, got 'jump'",
    "load lenght=4": "line 2: LOAD: field must be one of wait, signal, address, stride, buffer, "
    "step, length, rows, got 'lenght'",
    "load length": "line 2: LOAD: a field must be written name=number, got 'length'",
    "load wait=1;2": "line 2: LOAD: a field must be written name=number, got 'wait=1;2'",
    "load rows=1 rows=2": "line 2: LOAD: rows must be given once, got 'rows=2'",
    "load rows=65536": "line 2: LOAD: rows must be from 0 to 65535, got 65536",
    "load wait=16": "line 2: LOAD: wait must be from 0 to 65535, got 65536",
}


@pytest.mark.parametrize("line", TEXTS)
def test_a_wrong_line_is_named(line: str) -> None:
    with pytest.raises(IsaError) as error:
        assemble(f"# a comment\n{line}\n")
    assert str(error.value) == TEXTS[line]


def test_documentation_holds_the_tables() -> None:
    text = (Path(__file__).parents[2] / "docs" / "isa.md").read_text()
    assert text.partition(BEGIN + "\n")[2].partition(FINISH)[0] == manual()
    for opcode in INSTRUCTIONS:
        assert f"### {opcode.name} ({int(opcode)})" in manual()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("rows=6",), "16 * array.rows (96) bits into a power of two of beats, got 64"),
        (("rows=2",), "16 * array.rows (32) bits into a power of two of beats, got 64"),
        (("rows=12",), "16 * array.rows (192) bits into a power of two of beats, got 64"),
        (("cols=10",), "array.cols must be at most 2 * array.rows (8) in a core, got 10"),
        (("columns=30",), "core.columns must be a multiple of array.cols (4), got 30"),
    ],
)
def test_configurations_that_make_no_core(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        Geometry(load_config(preset="tiny", overrides=overrides))
    assert message in str(error.value)


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_make_cores(preset: str) -> None:
    geometry = Geometry(PRESETS[preset])
    assert geometry.rows_per_word == 2
    assert geometry.parameter_words == 2
    if preset == "paper":
        assert geometry.words * geometry.word_bytes == 80 * 1024
