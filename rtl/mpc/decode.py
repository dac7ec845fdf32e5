"""Instructions to the engines' commands: layouts and checks, made from the one description.

Everything here is read from :data:`dstar.golden.mpc.isa.INSTRUCTIONS`; no field's place, width or
range is said again.
"""

from __future__ import annotations

from itertools import permutations
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Shape, Signal, Value, signed, unsigned
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from dstar.gen.config import Config
from dstar.golden.mpc.fields import Field, Status
from dstar.golden.mpc.geometry import Geometry
from dstar.golden.mpc.isa import INSTRUCTION_BYTES, INSTRUCTIONS, Engine, Opcode, fields
from dstar.golden.vpu.isa import Source

#: Width of an opcode in a command, of a status code, of a program's length and counter.
OPCODE_BITS = max(Opcode).bit_length()
STATUS_BITS = max(Status).bit_length()
PC_BITS = 16
#: Fields that are the control unit's alone.
_CONTROL_FIELDS = ("opcode", "wait", "signal", "freed")


def places(opcode: Opcode) -> dict[str, tuple[int, Field]]:
    """Lowest bit and field of each of an opcode's fields."""
    result, at = {}, 0
    for field in fields(opcode):
        result[field.name] = (at, field)
        at += field.width
    return result


def _shape(field: Field, cfg: Config) -> Shape:
    """As narrow as the field's range in this configuration."""
    if field.signed:
        return signed(field.width)
    return unsigned(max(1, field.range(cfg)[1].bit_length()))


def _operands(engine: Engine) -> dict[str, tuple[int, Field]]:
    """Operands of an engine's instructions; a name has one place and width in all of them."""
    result: dict[str, tuple[int, Field]] = {}
    for opcode, form in INSTRUCTIONS.items():
        if form.engine == engine:
            for name, (at, field) in places(opcode).items():
                if name in _CONTROL_FIELDS:
                    continue
                if name in result and (result[name][0], result[name][1].width) != (at, field.width):
                    raise ValueError(f"{engine.name}: field {name} must have one place and width")
                result[name] = (at, field)
    return result


def command_layout(cfg: Config, engine: Engine) -> data.StructLayout:
    """What an engine gets of an instruction: ``opcode``, and its operands by name.

    The operands of all its opcodes lie beside each other; those that the opcode has not are not
    defined.  Each is as wide as its range in ``cfg`` needs.
    """
    operands = {name: _shape(field, cfg) for name, (_, field) in _operands(engine).items()}
    return data.StructLayout({"opcode": unsigned(OPCODE_BITS), **operands})


def _illegal(word: Value, opcode: Opcode, cfg: Config) -> Value:
    """Whether a field is outside its range, or a bit set that belongs to none."""
    geometry = Geometry(cfg)
    faults: list[Value] = []
    end = 0
    for at, field in places(opcode).values():
        value = word[at : at + field.width]
        end = at + field.width
        low, high = field.range(cfg)
        if not field.signed:
            if high < (1 << field.width) - 1:
                power = high & (high + 1) == 0
                faults.append(value[high.bit_length() :].any() if power else value > high)
            if low > 0:
                faults.append(value < low)
        if field.aligned:
            faults.append(value[: geometry.word_bytes.bit_length() - 1].any())
    if INSTRUCTIONS[opcode].engine == Engine.VECTOR:
        # The VPU's operands share one bus for what comes from outside the lanes.
        pair = Cat(word[at : at + f.width] for at, f in (places(opcode)[n] for n in ("a", "b")))
        width = len(pair) // 2
        for a, b in permutations((Source.SCALAR, Source.CONSTANT)):
            faults.append(pair == int(a) | int(b) << width)
    if end < len(word):
        faults.append(word[end:].any())
    illegal: Value = Const(0, 1)
    for fault in faults:
        illegal = illegal | fault
    return illegal


def _beyond(word: Value, opcode: Opcode, cfg: Config) -> Value:
    """Whether a LOAD or STORE leaves the buffer."""
    at = places(opcode)

    def operand(name: str) -> Value:
        low, field = at[name]
        return word[low : low + _shape(field, cfg).width]

    last_row = (operand("rows") - 1)[: at["rows"][1].width] * operand("step")
    return (operand("buffer") + last_row + operand("length")) > Geometry(cfg).words


class Decoder(wiring.Component):
    """An instruction's checks and the parts it is cut into.

    Members
    -------
    instruction: 256 bits.
    status: ``OK``, ``OPCODE``, ``FIELD`` or, for LOAD and STORE, ``RANGE``; the other engines
        find ``RANGE`` where they count addresses.
    opcode, engine: as :class:`~dstar.golden.mpc.isa.Opcode`, :class:`~dstar.golden.mpc.isa.Engine`.
    wait, signal, freed: masks of semaphores; zero where the instruction has none.
    commands: for each engine but control its :func:`command_layout`, by its name in lower case.

    Combinational; the longest path is the product ``rows * step`` of a LOAD.
    """

    def __init__(self, cfg: Config) -> None:
        self.cfg = cfg
        masks = cfg.core.semaphores
        engines = [engine for engine in Engine if engine != Engine.CONTROL]
        commands = {e.name.lower(): Out(command_layout(cfg, e)) for e in engines}
        super().__init__(
            {
                "instruction": In(8 * INSTRUCTION_BYTES),
                "status": Out(STATUS_BITS),
                "opcode": Out(OPCODE_BITS),
                "engine": Out(range(max(Engine) + 1)),
                "wait": Out(masks),
                "signal": Out(masks),
                "freed": Out(masks),
                "commands": Out(wiring.Signature(commands)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Wires, and one comparator a bounded field."""
        m = Module()
        word = self.instruction
        number = word[: places(Opcode.END)["opcode"][1].width]
        with m.Switch(number):
            for opcode, form in INSTRUCTIONS.items():
                with m.Case(int(opcode)):
                    illegal = Signal(name=f"illegal_{opcode.name.lower()}")
                    beyond = Signal(name=f"beyond_{opcode.name.lower()}")
                    if opcode in (Opcode.LOAD, Opcode.STORE):
                        m.d.comb += beyond.eq(_beyond(word, opcode, self.cfg))
                    m.d.comb += [
                        illegal.eq(_illegal(word, opcode, self.cfg)),
                        self.status.eq(Mux(beyond, int(Status.RANGE), int(Status.OK))),
                        self.opcode.eq(int(opcode)),
                        self.engine.eq(int(form.engine)),
                    ]
                    with m.If(illegal):
                        m.d.comb += self.status.eq(int(Status.FIELD))
                    for name in ("wait", "signal", "freed"):
                        if name in places(opcode):
                            at, field = places(opcode)[name]
                            m.d.comb += getattr(self, name).eq(word[at : at + field.width])
            with m.Default():
                m.d.comb += self.status.eq(int(Status.OPCODE))
        for engine in Engine:
            if engine == Engine.CONTROL:
                continue
            command = getattr(self.commands, engine.name.lower())
            m.d.comb += command.opcode.eq(number)
            for name, (at, field) in _operands(engine).items():
                m.d.comb += command[name].eq(word[at : at + field.width])
        return m
