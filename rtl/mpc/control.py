"""Control unit: runs programs, orders the engines, stops at the first error."""

from __future__ import annotations

import dataclasses
from typing import Any

from amaranth.hdl import Const, Module, ResetInserter, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from dstar.gen.config import Config
from dstar.golden.mpc.fields import Status
from dstar.golden.mpc.isa import (
    HELD_TILES,
    INSTRUCTION_BYTES,
    SEMAPHORE_MAX,
    Engine,
    Opcode,
)
from dstar.rtl.mpc.axi import RESPONSE_BITS
from dstar.rtl.mpc.bus import BusShape
from dstar.rtl.mpc.decode import PC_BITS, STATUS_BITS, command_layout
from dstar.rtl.mpc.dispatch import Dispatch
from dstar.rtl.mpc.engines.ports import fault_layout
from dstar.rtl.mpc.fetch import Fetch
from dstar.rtl.mpc.semaphores import Semaphores
from dstar.rtl.mpc.slot import EngineSlot

#: Engines in the order of their ports, the control unit aside.
ENGINES = tuple(engine for engine in Engine if engine != Engine.CONTROL)
#: Cycles without any progress after which the core is deadlocked, or the fetch has run dry.
QUIET_CYCLES = 15
#: Cycles of a reset of the engines: an access of the buffer that is on its way ends meanwhile.
RESET_CYCLES = 4
#: Longest burst of the instruction fetch, in beats, and instructions that it reads ahead: with a
#: memory of 40 cycles a short one, on a narrow bus, would be what all engines wait for.
FETCH_BEATS = 4
AHEAD = 16


def engine_signature(cfg: Config, engine: Engine) -> wiring.Signature:
    """An engine as control sees it.

    ``command``: the command that starts.  ``done``: one pulse a command, in order; MULTIPLY also
    ``freed``.  ``fault``: the oldest command that is not done failed; stands until reset.
    """
    return wiring.Signature(
        {
            "command": Out(stream.Signature(command_layout(cfg, engine))),
            "done": In(1),
            "freed": In(1),
            "fault": In(fault_layout(cfg)),
        }
    )


class Control(wiring.Component):
    """Runs programs (docs/isa.md).

    Members
    -------
    start, program_address, program_length, reset, busy, resetting, done, failed, code, pc, address,
    response: as of :class:`~dstar.rtl.mpc.registers.CoreRegisters`.
    axi: :attr:`~dstar.rtl.mpc.bus.BusShape.read`, for the fetch.
    engines: by name in lower case, :func:`engine_signature`.
    released: an encoded tile's place in the MPU is free again (pulse).
    stop: the memory engines begin no burst.  bus_idle: none of theirs is on the way.
    reset_engines: reset them, and the units that they use.
    started, waiting: a bit for each of :data:`ENGINES`: it has a command; one waits for semaphores.

    After an error the engines are reset when the bus is at rest, so that the next program starts
    like the first; what the buffer holds is then not defined.
    """

    def __init__(self, cfg: Config) -> None:
        self.cfg = cfg
        # A beat may hold several instructions; short bursts keep the fetch's queue small.
        self.ahead_beats = max(
            2 * FETCH_BEATS, AHEAD * 8 * INSTRUCTION_BYTES // cfg.core.axi_data_bits
        )
        self.shape = dataclasses.replace(
            BusShape.of(cfg), max_beats=FETCH_BEATS, outstanding=self.ahead_beats // FETCH_BEATS
        )
        engines = {e.name.lower(): Out(engine_signature(cfg, e)) for e in ENGINES}
        super().__init__(
            {
                "start": In(1),
                "program_address": In(cfg.core.address_bits),
                "program_length": In(PC_BITS),
                "reset": In(1),
                "busy": Out(1),
                "resetting": Out(1),
                "done": Out(1),
                "failed": Out(1),
                "code": Out(STATUS_BITS),
                "pc": Out(PC_BITS),
                "address": Out(cfg.core.address_bits),
                "response": Out(RESPONSE_BITS),
                "axi": Out(self.shape.read),
                "engines": Out(wiring.Signature(engines)),
                "released": In(1),
                "stop": Out(1),
                "bus_idle": In(1),
                "reset_engines": Out(1),
                "started": Out(len(ENGINES)),
                "waiting": Out(len(ENGINES)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Fetch, dispatch, a slot an engine, semaphores; and the state of the whole."""
        m = Module()
        clean = Signal()
        fetch = Fetch(
            self.shape, instruction_bits=8 * INSTRUCTION_BYTES, ahead_beats=self.ahead_beats
        )
        dispatch = Dispatch(self.cfg)
        m.submodules.fetch = ResetInserter(clean)(fetch)
        m.submodules.dispatch = ResetInserter(self.reset_engines)(dispatch)
        wiring.connect(m, fetch.axi, wiring.flipped(self.axi))
        wiring.connect(m, fetch.instructions, dispatch.instructions)
        m.d.comb += dispatch.length.eq(self.program_length)

        slots: dict[Engine, EngineSlot] = {e: EngineSlot(self.cfg, e) for e in ENGINES}
        for engine, slot in slots.items():
            name = engine.name.lower()
            m.submodules[name] = ResetInserter(self.reset_engines)(slot)
            port = getattr(self.engines, name)
            wiring.connect(m, getattr(dispatch.queues, name), slot.input)
            wiring.connect(m, slot.command, wiring.flipped(port.command))
            m.d.comb += [
                slot.done.eq(port.done),
                slot.freed.eq(port.freed),
                self.started[ENGINES.index(engine)].eq(slot.busy),
                self.waiting[ENGINES.index(engine)].eq(slot.waiting),
            ]
        overflow, overflow_pc = self._semaphores(m, slots, dispatch)
        self._tiles(m, slots, dispatch)
        m.d.comb += dispatch.quiet.eq(_all(slot.empty for slot in slots.values()))
        stuck, dry = self._progress(m, slots, dispatch, fetch)

        # The first error there is, an engine's before the control unit's own.
        error = Signal(fault_layout(self.cfg))
        error_pc = Signal(PC_BITS)
        m.d.comb += [error_pc.eq(dispatch.pc), error.status.eq(dispatch.status)]
        m.d.comb += error.valid.eq(dispatch.status != Status.OK)
        with m.If(stuck):
            m.d.comb += [error.valid.eq(1), error.status.eq(Status.DEADLOCK)]
        with m.If(dry):
            m.d.comb += [
                error.valid.eq(1),
                error.status.eq(Status.FETCH),
                error.address.eq(fetch.status.error_address),
                error.response.eq(fetch.status.error_response),
            ]
        with m.If(overflow):
            m.d.comb += [
                error.valid.eq(1),
                error.status.eq(Status.SEMAPHORE),
                error_pc.eq(overflow_pc),
            ]
        for engine, slot in slots.items():
            fault = getattr(self.engines, engine.name.lower()).fault
            with m.If(fault.valid):
                m.d.comb += [error.eq(fault), error_pc.eq(slot.pc)]

        self._state(m, fetch, dispatch, clean, error, error_pc)
        return m

    def _semaphores(
        self, m: Module, slots: dict[Engine, EngineSlot], dispatch: Dispatch
    ) -> tuple[Value, Signal]:
        """Waits and signals; whether one was raised beyond its limit, and by whom."""
        count = self.cfg.core.semaphores
        semaphores = Semaphores(
            count=count, limit=SEMAPHORE_MAX, clients=len(slots), signals=len(slots) + 1
        )
        m.submodules.semaphores = ResetInserter(self.reset_engines)(semaphores)
        sources = [(slot.signal, slot.signal_pc) for slot in slots.values()]
        multiply = slots[Engine.MULTIPLY]
        sources.append((multiply.freed_signal, multiply.freed_pc))
        m.d.comb += semaphores.clear.eq(dispatch.sync)
        for slot, client in zip(slots.values(), semaphores.clients, strict=True):
            wiring.connect(m, slot.semaphores, client)
        culprit = Signal(PC_BITS)
        for number, (raised, pc) in enumerate(sources):
            m.d.comb += semaphores.signals[number].eq(raised)
            before = Signal(count, name=f"raised_{number}")
            before_pc = Signal(PC_BITS, name=f"raised_pc_{number}", reset_less=True)
            m.d.sync += [before.eq(raised), before_pc.eq(pc)]
            with m.If((before & semaphores.overflow).any()):
                m.d.comb += culprit.eq(before_pc)
        return semaphores.overflow.any(), culprit

    def _tiles(self, m: Module, slots: dict[Engine, EngineSlot], dispatch: Dispatch) -> None:
        """Encoded tiles: places taken in the MPU, and those that no MULTIPLY is to release."""
        held, free_for = Signal(range(HELD_TILES + 1)), Signal(range(HELD_TILES + 1))
        quantize, multiply = slots[Engine.QUANTIZE], slots[Engine.MULTIPLY]
        begun, releasing = Signal(), Signal()
        m.d.comb += [
            begun.eq(quantize.start & (quantize.head.opcode == Opcode.QUANTIZE)),
            releasing.eq(multiply.start & multiply.head.release),
            quantize.allowed.eq((held != HELD_TILES) | (quantize.head.opcode == Opcode.TABLE)),
            multiply.allowed.eq(free_for != 0),
            dispatch.held.eq(held != 0),
        ]
        for slot in slots.values():
            if slot not in (quantize, multiply):
                m.d.comb += slot.allowed.eq(1)
        m.d.sync += [
            held.eq(held + begun - self.released),
            free_for.eq(free_for + begun - releasing),
        ]
        with m.If(self.reset_engines):
            m.d.sync += [held.eq(0), free_for.eq(0)]

    def _progress(
        self, m: Module, slots: dict[Engine, EngineSlot], dispatch: Dispatch, fetch: Fetch
    ) -> tuple[Value, Value]:
        """Whether nothing can happen any more; whether the fetch failed and has run dry."""
        still, quiet = Signal(), Signal(range(QUIET_CYCLES + 1))
        idle = ~Value.cast(self.started).any()
        starts = _all(~slot.start for slot in slots.values())
        empty = ~fetch.instructions.valid & fetch.instructions.ready
        failed = fetch.status.error & empty
        m.d.comb += still.eq((dispatch.blocked & idle & starts) | failed)
        with m.If(~still):
            m.d.sync += quiet.eq(0)
        with m.Elif(quiet != QUIET_CYCLES):
            m.d.sync += quiet.eq(quiet + 1)
        over = quiet == QUIET_CYCLES
        return over & dispatch.blocked, over & failed

    def _state(
        self,
        m: Module,
        fetch: Fetch,
        dispatch: Dispatch,
        clean: Signal,
        error: Any,
        error_pc: Signal,
    ) -> None:
        """Rest, run, and the two ways to stop."""
        asked, failing = Signal(), Signal()
        cycle = Signal(range(RESET_CYCLES))
        m.d.comb += [
            fetch.program.payload.address.eq(self.program_address),
            fetch.program.payload.length.eq(self.program_length),
            self.resetting.eq(asked),
            clean.eq(self.reset_engines),
        ]
        m.d.sync += self.reset_engines.eq(0)
        with m.If(self.reset):
            m.d.sync += asked.eq(1)
        with m.FSM():
            with m.State("REST"):
                with m.If(self.reset):
                    m.next = "STOP"
                with m.Elif(self.start):
                    m.next = "BEGIN"
            with m.State("BEGIN"):
                m.d.comb += self.busy.eq(1)
                m.d.comb += fetch.program.valid.eq(self.program_length != 0)
                with m.If(fetch.program.ready | (self.program_length == 0)):
                    m.next = "RUN"
            with m.State("RUN"):
                m.d.comb += [self.busy.eq(1), dispatch.run.eq(1)]
                with m.If(asked | self.reset):
                    m.next = "STOP"
                with m.Elif(error.valid):
                    m.d.sync += [
                        failing.eq(1),
                        self.code.eq(error.status),
                        self.pc.eq(error_pc),
                        self.address.eq(error.address),
                        self.response.eq(error.response),
                    ]
                    m.next = "STOP"
                with m.Elif(dispatch.ended):
                    m.next = "FLUSH"
            with m.State("FLUSH"):
                # Instructions beyond END were perhaps fetched.
                m.d.comb += [self.busy.eq(1), fetch.status.stop.eq(1)]
                with m.If(fetch.status.idle):
                    m.d.comb += [clean.eq(1), self.done.eq(1)]
                    m.next = "REST"
                with m.If(asked | self.reset):
                    m.next = "STOP"
            with m.State("STOP"):
                m.d.comb += [
                    self.busy.eq(failing),
                    fetch.status.stop.eq(1),
                    self.stop.eq(1),
                ]
                with m.If(fetch.status.idle & self.bus_idle):
                    m.d.sync += cycle.eq(0)
                    m.next = "RESET"
            with m.State("RESET"):
                m.d.comb += [
                    self.busy.eq(failing),
                    fetch.status.stop.eq(1),
                    self.stop.eq(1),
                ]
                m.d.sync += [
                    self.reset_engines.eq(cycle != RESET_CYCLES - 1),
                    cycle.eq(cycle + 1),
                ]
                with m.If(cycle == RESET_CYCLES - 1):
                    m.d.comb += self.failed.eq(failing)
                    m.d.sync += [failing.eq(0), asked.eq(0)]
                    m.next = "REST"


def _all(values: Any) -> Value:
    """Whether all of these bits are set."""
    result: Value = Const(1, 1)
    for value in values:
        result = result & value
    return result
