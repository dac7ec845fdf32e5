"""The RTL decoder against the golden one: every field of legal and of corrupted instructions."""

from __future__ import annotations

import numpy as np
import pytest
from amaranth.sim import Simulator

from dstar.gen.config import PRESETS, Config
from dstar.golden.mpc.fields import IsaError, Status
from dstar.golden.mpc.isa import (
    INSTRUCTION_BYTES,
    INSTRUCTIONS,
    Engine,
    Instruction,
    Opcode,
    decode,
    fields,
)
from dstar.golden.vpu.isa import Source
from dstar.rtl.mpc.decode import Decoder, places

CASES = 400


def legal(rng: np.random.Generator, cfg: Config) -> bytes:
    """An instruction whose fields are all within their ranges; often at an end."""
    opcode = list(Opcode)[rng.integers(len(Opcode))]
    values = {}
    for field in fields(opcode)[1:]:
        low, high = field.range(cfg)
        ends = (low, high, int(rng.integers(low, high, endpoint=True)))
        value = ends[rng.integers(3)]
        values[field.name] = value - value % (2 * cfg.array.rows) if field.aligned else value
    if {values.get("a"), values.get("b")} == {Source.SCALAR, Source.CONSTANT}:
        values["b"] = values["a"]
    return Instruction.make(opcode, values).encode()


def scalar_and_constant() -> list[bytes]:
    """What the VPU's shared operand bus cannot serve, both ways round."""
    pairs = ((Source.SCALAR, Source.CONSTANT), (Source.CONSTANT, Source.SCALAR))
    return [Instruction.make(Opcode.OPERATE, a=int(a), b=int(b)).encode() for a, b in pairs]


def expected(word: bytes, cfg: Config) -> tuple[Status, Instruction | None]:
    """The golden decoder's verdict; what only an engine finds is no error here."""
    try:
        instruction = decode(word)
        instruction.check(cfg)
    except IsaError as error:
        if error.status != Status.RANGE or instruction.engine in (Engine.LOAD, Engine.STORE):
            return error.status, None
    return Status.OK, instruction


@pytest.mark.parametrize("preset", ["tiny", "paper"])
def test_decoder_equals_golden(preset: str) -> None:
    cfg = PRESETS[preset]
    rng = np.random.default_rng(7)
    words = [legal(rng, cfg) for _ in range(CASES)]
    for word in scalar_and_constant():
        assert expected(word, cfg)[0] == Status.FIELD
    for word in list(words):
        # One flipped bit: in the opcode, in a field, beyond the last.
        flipped = int.from_bytes(word, "little") ^ 1 << int(rng.integers(8 * INSTRUCTION_BYTES))
        words.append(flipped.to_bytes(INSTRUCTION_BYTES, "little"))
    words += scalar_and_constant()
    dut = Decoder(cfg)
    seen: set[tuple[Status, Opcode | None]] = set()

    async def bench(ctx: object) -> None:
        for word in words:
            status, instruction = expected(word, cfg)
            ctx.set(dut.instruction, int.from_bytes(word, "little"))  # type: ignore[attr-defined]
            await ctx.delay(1e-9)  # type: ignore[attr-defined]
            assert ctx.get(dut.status) == status, word.hex()  # type: ignore[attr-defined]
            seen.add((status, instruction.opcode if instruction else None))
            if instruction is None:
                continue
            values = instruction.operands
            for name in ("wait", "signal", "freed"):
                assert ctx.get(getattr(dut, name)) == values.get(name, 0)  # type: ignore[attr-defined]
            assert ctx.get(dut.opcode) == instruction.opcode  # type: ignore[attr-defined]
            assert ctx.get(dut.engine) == instruction.engine  # type: ignore[attr-defined]
            if instruction.engine != Engine.CONTROL:
                command = getattr(dut.commands, instruction.engine.name.lower())
                got = ctx.get(command)  # type: ignore[attr-defined]
                for field in INSTRUCTIONS[instruction.opcode].operands:
                    if field.name != "freed":
                        assert got[field.name] == values[field.name], (word.hex(), field.name)

    simulator = Simulator(dut)
    simulator.add_testbench(bench)
    simulator.run()
    assert {opcode for status, opcode in seen if status == Status.OK} == set(Opcode)
    assert {Status.OPCODE, Status.FIELD, Status.RANGE} <= {status for status, _ in seen}


def test_places_cover_an_instruction_without_gaps() -> None:
    for opcode in Opcode:
        at = 0
        for low, field in places(opcode).values():
            assert low == at
            at += field.width
        assert at <= 8 * INSTRUCTION_BYTES
