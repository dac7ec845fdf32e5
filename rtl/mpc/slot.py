"""What control keeps for an engine: its queue, and who is to hear when a command is done."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Signal, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from dstar.gen.config import Config
from dstar.golden.mpc.isa import Engine
from dstar.rtl.mpc.decode import PC_BITS, command_layout
from dstar.rtl.mpc.queue import StreamQueue
from dstar.rtl.mpc.semaphores import client_signature

#: Commands of an engine that may have started and not be done.
IN_FLIGHT = 8


def entry_layout(cfg: Config, engine: Engine) -> data.StructLayout:
    """A queued instruction: number, masks of semaphores, the engine's command."""
    masks = unsigned(cfg.core.semaphores)
    return data.StructLayout(
        {
            "pc": unsigned(PC_BITS),
            "wait": masks,
            "signal": masks,
            "freed": masks,
            "command": command_layout(cfg, engine),
        }
    )


class EngineSlot(wiring.Component):
    """An engine's queue, and a record of each command that has started.

    Members
    -------
    input: stream of :func:`entry_layout`.
    head: the oldest queued command; ``allowed``: whether tiles held let it start.
    semaphores: :func:`~dstar.rtl.mpc.semaphores.client_signature`.
    command: to the engine; a command is offered only in the cycle in which it starts.
    done, freed: from the engine, in order.
    signal, freed_signal: semaphores to raise in this cycle; ``signal_pc``, ``freed_pc``: for whom.
    start: a command starts (pulse).
    pc: of the oldest command that is not done.
    busy: a command has started and is not done.  ``waiting``: a command waits for semaphores.
    empty: neither queued nor started commands.

    Latency: a command starts at the earliest in the cycle after it was queued.
    """

    def __init__(self, cfg: Config, engine: Engine) -> None:
        self.cfg, self.engine = cfg, engine
        command, masks = command_layout(cfg, engine), cfg.core.semaphores
        super().__init__(
            {
                "input": In(stream.Signature(entry_layout(cfg, engine))),
                "head": Out(command),
                "allowed": In(1),
                "semaphores": Out(client_signature(masks)),
                "command": Out(stream.Signature(command)),
                "done": In(1),
                "freed": In(1),
                "signal": Out(masks),
                "signal_pc": Out(PC_BITS),
                "freed_signal": Out(masks),
                "freed_pc": Out(PC_BITS),
                "start": Out(1),
                "pc": Out(PC_BITS),
                "busy": Out(1),
                "waiting": Out(1),
                "empty": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Queue, start, records; those of ``freed`` only where the engine has it."""
        m = Module()
        entry = entry_layout(self.cfg, self.engine)
        record = data.StructLayout({"pc": unsigned(PC_BITS), "mask": self.cfg.core.semaphores})
        m.submodules.queue = queue = StreamQueue(entry, depth=self.cfg.core.queue)
        m.submodules.records = records = StreamQueue(record, depth=IN_FLIGHT)
        wiring.connect(m, wiring.flipped(self.input), queue.input)
        head, room = queue.output.payload, Signal()
        m.d.comb += [
            self.head.eq(head.command),
            self.semaphores.wait.eq(head.wait),
            self.semaphores.request.eq(
                queue.output.valid & self.allowed & self.command.ready & room
            ),
            self.start.eq(self.semaphores.grant),
            self.waiting.eq(self.semaphores.request & ~self.semaphores.grant),
            self.command.payload.eq(head.command),
            self.command.valid.eq(self.start),
            queue.output.ready.eq(self.start),
            records.input.payload.pc.eq(head.pc),
            records.input.payload.mask.eq(head.signal),
            records.input.valid.eq(self.start),
            records.output.ready.eq(self.done),
            self.pc.eq(records.output.payload.pc),
            self.signal_pc.eq(self.pc),
            self.signal.eq(records.output.payload.mask & self.done.replicate(len(self.signal))),
            self.busy.eq(records.output.valid),
            self.empty.eq(~queue.output.valid & ~records.output.valid),
        ]
        if self.engine != Engine.MULTIPLY:
            m.d.comb += room.eq(records.input.ready)
            return m
        m.submodules.frees = frees = StreamQueue(record, depth=IN_FLIGHT)
        m.d.comb += [
            room.eq(records.input.ready & frees.input.ready),
            frees.input.payload.pc.eq(head.pc),
            frees.input.payload.mask.eq(head.freed),
            frees.input.valid.eq(self.start),
            frees.output.ready.eq(self.freed),
            self.freed_pc.eq(frees.output.payload.pc),
            self.freed_signal.eq(
                frees.output.payload.mask & self.freed.replicate(len(self.freed_signal))
            ),
        ]
        return m
