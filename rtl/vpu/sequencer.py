"""Sequencer of the VPU: holds a program, repeats it, and steps all lanes through it."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from dstar.gen.config import VectorConfig
from dstar.golden.vpu.float import WIDTH
from dstar.golden.vpu.isa import Op
from dstar.golden.vpu.steps import Step, steps
from dstar.golden.vpu.tables import DEGREE, TABLES
from dstar.rtl.vpu.control import control_layout


def instruction_layout() -> data.StructLayout:
    """An instruction (:class:`dstar.golden.vpu.isa.Instruction`)."""
    return data.StructLayout(
        {
            "op": unsigned(4),
            "dst": unsigned(2),
            "a": unsigned(3),
            "b": unsigned(3),
            "accumulate": unsigned(1),
            "emit": unsigned(1),
            "uses_input": unsigned(1),
            "uses_scalar": unsigned(1),
            "constant": unsigned(WIDTH),
        }
    )


def command_layout() -> data.StructLayout:
    """A program arrives an instruction a word.

    ``last``: ends the program.  ``repeat``: with ``last``, how often it runs, less one.
    """
    return data.StructLayout(
        {"instruction": instruction_layout(), "last": unsigned(1), "repeat": unsigned(16)}
    )


class VPUSequencer(wiring.Component):
    """Runs programs.

    Members
    -------
    command: stream of :func:`command_layout`; taken between programs.
    input_valid, scalar_valid: a word is there; input_ready, scalar_ready: it is taken.
    output_valid, output_ready: of the output stream, whose payload is the lanes' last result.
    control: to the lanes.  constant: of the instruction.  from_scalar: the operand that all lanes
        share is the scalar stream's word, not the constant.
    fold: one-hot stride of a reduction, bit i for ``2**i``.
    table, power: coefficients that the lanes need in this cycle.

    Latency: :func:`dstar.golden.vpu.steps.latency` cycles an instruction, the first of which
    waits for operands, and for the last emitted vector to have left.
    """

    def __init__(self, cfg: VectorConfig, *, lanes: int) -> None:
        self.cfg = cfg
        self.lanes = lanes
        super().__init__(
            {
                "command": In(stream.Signature(command_layout())),
                "input_valid": In(1),
                "input_ready": Out(1),
                "scalar_valid": In(1),
                "scalar_ready": Out(1),
                "output_valid": Out(1),
                "output_ready": In(1),
                "control": Out(control_layout()),
                "constant": Out(WIDTH),
                "from_scalar": Out(1),
                "fold": Out(max(1, (lanes - 1).bit_length())),
                "table": Out(range(len(TABLES))),
                "power": Out(range(DEGREE + 1)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Program memory, step counter, microcode."""
        m = Module()
        layout = instruction_layout()
        m.submodules.memory = memory = Memory(shape=layout.size, depth=self.cfg.program, init=[])
        write, read = memory.write_port(), memory.read_port()
        payload = self.command.payload

        running, fetching = Signal(), Signal()
        place = Signal(range(self.cfg.program))
        length = Signal(range(self.cfg.program))
        repeat = Signal(16)
        loaded, leaving = Signal(), Signal()
        m.d.comb += [
            self.command.ready.eq(~running),
            loaded.eq(self.command.valid & ~running),
            write.en.eq(loaded),
            write.addr.eq(place),
            write.data.eq(payload.instruction.as_value()),
        ]
        instruction = data.View(layout, read.data)

        # Step 0 fetches operands; the others are microcode, the operations' one after the other.
        rom: list[Step] = [Step("fetch")]
        starts: dict[Op, int] = {}
        ends: list[int] = []
        for op in Op:
            starts[op] = len(rom)
            rom += steps(op, self.lanes)
            ends.append(len(rom) - 1)
        step = Signal(range(len(rom)))
        is_last = Signal()
        with m.Switch(step), m.Case(*ends):
            m.d.comb += is_last.eq(1)
        fetch = Signal()
        ready = Signal()
        m.d.comb += [
            fetch.eq(running & ~fetching & (step == 0)),
            ready.eq(
                fetch
                & (self.input_valid | ~instruction.uses_input)
                & (self.scalar_valid | ~instruction.uses_scalar)
                & (~self.output_valid | self.output_ready)
            ),
            self.input_ready.eq(ready & instruction.uses_input),
            self.scalar_ready.eq(ready & instruction.uses_scalar),
        ]

        after = Signal.like(place)
        done = Signal()
        m.d.comb += [
            leaving.eq(is_last & (place == length)),
            after.eq(Mux(is_last, Mux(leaving, 0, place + 1), place)),
            done.eq(leaving & (repeat == 0)),
            read.addr.eq(Mux(running, after, 0)),
        ]
        with m.If(loaded):
            m.d.sync += place.eq(Mux(payload.last, 0, place + 1))
            with m.If(payload.last):
                m.d.sync += [
                    running.eq(1),
                    fetching.eq(1),
                    length.eq(place),
                    repeat.eq(payload.repeat),
                ]
        with m.Elif(running):
            m.d.sync += [fetching.eq(0), place.eq(after)]
            with m.If(done):
                m.d.sync += running.eq(0)
            with m.If(leaving):
                m.d.sync += repeat.eq(repeat - 1)
        with m.If(ready), m.Switch(instruction.op):
            for op in Op:
                with m.Case(op):
                    m.d.sync += step.eq(starts[op])
        with m.Elif(is_last):
            m.d.sync += step.eq(0)
        with m.Elif(step != 0):
            m.d.sync += step.eq(step + 1)

        self._control(m, rom, step, instruction, ready, is_last)
        return m

    def _control(
        self, m: Module, rom: list[Step], step: Signal, instruction: Any, ready: Any, is_last: Any
    ) -> None:
        control = self.control
        emitting, accumulating = Signal(), Signal()
        m.d.sync += accumulating.eq(is_last & instruction.accumulate)
        with m.If(is_last):
            m.d.sync += emitting.eq(instruction.emit)
        with m.Elif(self.output_ready):
            m.d.sync += emitting.eq(0)
        m.d.comb += [
            self.output_valid.eq(emitting),
            self.constant.eq(instruction.constant),
            self.from_scalar.eq(instruction.uses_scalar),
            control.load.eq(ready),
            control.a.eq(instruction.a),
            control.b.eq(instruction.b),
            control.op.eq(instruction.op),
            control.dst.eq(instruction.dst),
            control.accumulate.eq(accumulating),
        ]
        with m.Switch(step):
            for number, item in enumerate(rom):
                with m.Case(number):
                    m.d.comb += [
                        control.finish.eq(item.finish),
                        control.direct.eq(item.direct),
                        control.maximum.eq(item.maximum),
                        control.shared.eq(item.shared),
                        control.back.eq(item.back),
                        control.clear.eq(item.clear),
                        control.fold.eq(item.fold != 0),
                        control.magnitude.eq(item.magnitude),
                        control.place.eq(item.place),
                        control.horner.eq(item.horner),
                        self.fold.eq(item.fold),
                        self.table.eq(TABLES.index(item.table)),
                        self.power.eq(item.power),
                    ]
