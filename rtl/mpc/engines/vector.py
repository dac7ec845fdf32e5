"""Vector engine: VPU programs over words of the buffer."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from dstar.gen.config import Config
from dstar.golden.mpc.fields import Status
from dstar.golden.mpc.geometry import Geometry
from dstar.golden.mpc.isa import Engine, Opcode
from dstar.golden.vpu.isa import Op, Source
from dstar.rtl.mpc.engines.operands import (
    HALF_RATE,
    ItemReader,
    OperandReader,
    ResultWriter,
    job_layout,
)
from dstar.rtl.mpc.engines.ports import engine_members, join, read_port, write_port
from dstar.rtl.mpc.engines.walk import COUNT_BITS
from dstar.rtl.vpu.sequencer import command_layout as program_layout

#: Operations of two operands, and those of none.
_BINARY = (Op.MAXIMUM, Op.ADD, Op.SUBTRACT, Op.MULTIPLY)
_NULLARY = (Op.READ, Op.TAKE, Op.SUM)
#: Width of a binary16 scalar.
_SCALAR_BITS = 16


class VectorEngine(wiring.Component):
    """Carries out OPERATE and VECTOR (docs/isa.md) with a :class:`~dstar.rtl.vpu.vpu.VPU`.

    Members
    -------
    command, done, fault, busy, stalled: :func:`~dstar.rtl.mpc.engines.ports.engine_members`;
        ``stalled``: an access of the buffer waits.
    buffer: ports ``input``, ``scalar`` (reads) and ``output`` (writes).
    program, input, scalar, output: to and from the VPU, ``program`` being its commands.

    Throughput: that of the VPU's program.  A VECTOR starts when the one before is done.

    Errors: ``RANGE`` when an address is reached.
    """

    def __init__(self, cfg: Config) -> None:
        self.cfg = cfg
        vectors = stream.Signature(data.ArrayLayout(16, cfg.array.rows))
        ports = {"input": Out(read_port(cfg)), "scalar": Out(read_port(cfg))}
        super().__init__(
            {
                **engine_members(cfg, Engine.VECTOR),
                "buffer": Out(wiring.Signature({**ports, "output": Out(write_port(cfg))})),
                "program": Out(stream.Signature(program_layout())),
                "input": Out(vectors),
                "scalar": Out(stream.Signature(_SCALAR_BITS)),
                "output": In(vectors),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """An operation to the program; with its last, the walks of the operands."""
        m = Module()
        cfg = self.cfg
        count_bits = COUNT_BITS + cfg.vector.program.bit_length()
        m.submodules.input = given = OperandReader(cfg, depth=HALF_RATE)
        m.submodules.scalar = scalar = ItemReader(
            cfg,
            width=_SCALAR_BITS,
            per=8 * Geometry(cfg).word_bytes // _SCALAR_BITS,
            count_bits=count_bits,
        )
        m.submodules.writer = writer = ResultWriter(cfg, count_bits=count_bits)
        wiring.connect(m, wiring.flipped(self.buffer.input), given.port)
        wiring.connect(m, wiring.flipped(self.buffer.scalar), scalar.port)
        wiring.connect(m, wiring.flipped(self.buffer.output), writer.port)
        join(m, given.words, self.input)
        join(m, self.output, writer.words)
        m.d.comb += [
            self.scalar.payload.eq(scalar.items.payload.data),
            self.scalar.valid.eq(scalar.items.valid),
            scalar.items.ready.eq(self.scalar.ready),
        ]

        command, running = self.command.payload, Signal()
        uses = {source: self._uses(m, command, source) for source in (Source.INPUT, Source.SCALAR)}
        instruction, completes = self.program.payload.instruction, Signal()
        m.d.comb += [
            completes.eq(command.opcode == Opcode.VECTOR),
            self.program.valid.eq(self.command.valid & ~running),
            self.command.ready.eq(self.program.ready & ~running),
            self.program.payload.last.eq(completes),
            self.program.payload.repeat.eq(command.count - 1),
            instruction.uses_input.eq(uses[Source.INPUT]),
            instruction.uses_scalar.eq(uses[Source.SCALAR]),
        ]
        for name in ("op", "dst", "a", "b", "accumulate", "emit", "constant"):
            m.d.comb += instruction[name].eq(command[name])

        # Words that one run of the program takes and gives.
        taken, begin = Signal(), Signal()
        m.d.comb += [
            taken.eq(self.command.valid & self.command.ready),
            begin.eq(taken & completes),
        ]
        inputs = self._tally(m, "inputs", taken, begin, uses[Source.INPUT])
        scalars = self._tally(m, "scalars", taken, begin, uses[Source.SCALAR])
        emitted = self._tally(m, "emitted", taken, begin, command.emit)
        job = Signal(job_layout(cfg, count_bits=count_bits), reset_less=True)
        m.d.comb += [
            given.start.valid.eq(begin & (inputs != 0)),
            given.start.payload.first.eq(command.input),
            given.start.payload.inner.eq(command.inner),
            given.start.payload.outer.eq(command.outer),
            given.start.payload.count.eq(inputs),
            given.start.payload.runs.eq(command.count),
            scalar.start.valid.eq(begin & (scalars != 0)),
            scalar.start.payload.first.eq(command.scalar),
            scalar.start.payload.inner.eq(1),
            scalar.start.payload.count.eq(scalars * command.count),
            scalar.start.payload.runs.eq(1),
            writer.job.payload.eq(job),
        ]
        with m.If(begin):
            m.d.sync += [
                job.first.eq(command.output),
                job.count.eq(emitted * command.count),
                job.write.eq(1),
            ]

        # It is done when its outputs are written and the VPU would take another program.
        writing, finished = Signal(), Signal()
        m.d.comb += [
            writer.job.valid.eq(writing),
            finished.eq(running & ~writing & self.program.ready),
        ]
        with m.If(begin):
            m.d.sync += [running.eq(1), writing.eq(1)]
        with m.Else():
            with m.If(writer.job.ready):
                m.d.sync += writing.eq(0)
            with m.If(finished):
                m.d.sync += running.eq(0)
        m.d.sync += self.done.eq(finished | (taken & ~completes))

        waits = [
            given.port.address.valid & ~given.port.address.ready,
            scalar.port.address.valid & ~scalar.port.address.ready,
            writer.port.valid & ~writer.port.ready,
        ]
        m.d.comb += [
            self.fault.valid.eq(given.beyond | scalar.beyond | writer.beyond),
            self.fault.status.eq(Status.RANGE),
            self.busy.eq(running | self.done),
            self.stalled.eq(waits[0] | waits[1] | waits[2]),
        ]
        return m

    def _uses(self, m: Module, command: Any, source: Source) -> Signal:
        """Whether an instruction takes a word of the stream ``source``."""
        result = Signal(name=f"uses_{source.name.lower()}")
        binary, nullary = command.op.matches(*_BINARY), command.op.matches(*_NULLARY)
        m.d.comb += result.eq((~nullary & (command.a == source)) | (binary & (command.b == source)))
        return result

    def _tally(self, m: Module, name: str, taken: Any, begin: Any, one: Any) -> Signal:
        """How many instructions of the program have ``one``, the one that is taken included."""
        bits = self.cfg.vector.program.bit_length()
        kept, total = Signal(bits, name=f"{name}_before"), Signal(bits, name=name)
        m.d.comb += total.eq(kept + one)
        with m.If(taken):
            m.d.sync += kept.eq(Mux(begin, 0, total))
        return total
