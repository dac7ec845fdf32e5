"""Instructions, one after the other, into the engines' queues."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from dstar.gen.config import Config
from dstar.golden.mpc.fields import Status
from dstar.golden.mpc.isa import INSTRUCTION_BYTES, Engine, Opcode
from dstar.rtl.mpc.decode import PC_BITS, STATUS_BITS, Decoder
from dstar.rtl.mpc.slot import entry_layout


class Dispatch(wiring.Component):
    """Checks instructions in order and hands each to its engine (docs/isa.md, "Order").

    Members
    -------
    run: a program runs; it starts with the first cycle of it, and ends with ``ended`` or a reset.
    length: instructions of the program.
    instructions: stream from the fetch.
    queues: by the engine's name in lower case, streams of :func:`~dstar.rtl.mpc.slot.entry_layout`.
    quiet: no engine has a command, queued or started.  held: some encoded tile is not released.
    sync: all semaphores to zero (pulse).  ended: END is reached and all is done (pulse).
    pc: number of the instruction that is being fetched, checked or dispatched.
    blocked: it is legal and cannot be dispatched now.
    status: why it is illegal, else OK; stands until reset.

    Throughput: an instruction in three cycles, which is little against what it starts.
    """

    def __init__(self, cfg: Config) -> None:
        self.cfg = cfg
        queues = {
            e.name.lower(): Out(stream.Signature(entry_layout(cfg, e)))
            for e in Engine
            if e != Engine.CONTROL
        }
        super().__init__(
            {
                "run": In(1),
                "length": In(PC_BITS),
                "instructions": In(stream.Signature(8 * INSTRUCTION_BYTES)),
                "queues": Out(wiring.Signature(queues)),
                "quiet": In(1),
                "held": In(1),
                "sync": Out(1),
                "ended": Out(1),
                "pc": Out(PC_BITS),
                "blocked": Out(1),
                "status": Out(STATUS_BITS),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Fetch, check, dispatch."""
        m = Module()
        m.submodules.decoder = decoder = Decoder(self.cfg)
        word = Signal(8 * INSTRUCTION_BYTES, reset_less=True)
        engine, status = decoder.engine, Signal(STATUS_BITS)
        # Operations of the VPU program that no VECTOR has completed yet.
        body = Signal(range(self.cfg.vector.program + 1))
        m.d.comb += decoder.instruction.eq(word)

        chosen = Signal()
        for kind in Engine:
            if kind == Engine.CONTROL:
                continue
            queue = getattr(self.queues, kind.name.lower())
            m.d.comb += [
                queue.payload.pc.eq(self.pc),
                queue.payload.wait.eq(decoder.wait),
                queue.payload.signal.eq(decoder.signal),
                queue.payload.freed.eq(decoder.freed),
                queue.payload.command.eq(getattr(decoder.commands, kind.name.lower())),
            ]
            with m.If(engine == kind):
                m.d.comb += [queue.valid.eq(chosen), self.blocked.eq(chosen & ~queue.ready)]

        with m.FSM():
            with m.State("REST"):
                m.d.sync += [self.pc.eq(0), body.eq(0)]
                with m.If(self.run):
                    m.next = "FETCH"
            with m.State("FETCH"):
                with m.If(self.pc == self.length):
                    m.d.comb += self.status.eq(Status.LENGTH)
                with m.Else():
                    m.d.comb += self.instructions.ready.eq(1)
                    m.d.sync += word.eq(self.instructions.payload)
                    with m.If(self.instructions.valid):
                        m.next = "CHECK"
            with m.State("CHECK"):
                cut = (engine == Engine.CONTROL) & (body != 0)
                long = (engine == Engine.VECTOR) & (body == self.cfg.vector.program)
                m.d.sync += status.eq(
                    Mux(
                        (decoder.status == Status.OK) & (cut | long),
                        Status.PROGRAM,
                        decoder.status,
                    )
                )
                m.next = "DISPATCH"
            with m.State("DISPATCH"):
                m.d.comb += self.status.eq(status)
                with m.If(status == Status.OK):
                    m.d.comb += chosen.eq(engine != Engine.CONTROL)
                    with m.If(engine == Engine.CONTROL):
                        m.d.comb += self.blocked.eq(~self.quiet)
                        with m.If(self.quiet & (decoder.opcode == Opcode.END)):
                            m.d.comb += [
                                self.status.eq(Mux(self.held, Status.TILES, Status.OK)),
                                self.ended.eq(~self.held),
                                self.sync.eq(~self.held),
                            ]
                            with m.If(~self.held):
                                m.next = "END"
                        with m.Elif(self.quiet):
                            m.d.comb += self.sync.eq(1)
                    with m.If(~self.blocked & (decoder.opcode != Opcode.END)):
                        m.d.sync += self.pc.eq(self.pc + 1)
                        m.next = "FETCH"
                        with m.If(engine == Engine.VECTOR):
                            m.d.sync += body.eq(Mux(decoder.opcode == Opcode.VECTOR, 0, body + 1))
            with m.State("END"), m.If(~self.run):
                m.next = "REST"
        return m
