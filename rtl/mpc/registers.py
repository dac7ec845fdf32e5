"""The core's registers and counters."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from dstar.gen.config import Config
from dstar.golden.mpc.register_map import REGISTER_BITS
from dstar.golden.mpc.registers import (
    ENGINES,
    IDENTITY,
    READERS,
    REGISTERS,
    VERSION,
    WRITERS,
)
from dstar.rtl.mpc.axi import RESPONSE_BITS, forward_ports, lite_ports
from dstar.rtl.mpc.register_block import RegisterBlock, port_name


def counters_signature() -> wiring.Signature:
    """What the core counts, as the core drives it.

    ``busy``, ``stalled``: a bit for each of :data:`~dstar.golden.mpc.registers.ENGINES`.
    ``read_beat``, ``write_beat``: a beat passes on the memory bus.
    ``beats``, ``slots``: of the MPU, counted there.  ``conflicts``: of the unified buffer, in the
    order READERS, WRITERS, counted there.
    """
    return wiring.Signature(
        {
            "busy": Out(len(ENGINES)),
            "stalled": Out(len(ENGINES)),
            "read_beat": Out(1),
            "write_beat": Out(1),
            "beats": Out(32),
            "slots": Out(32),
            "conflicts": Out(data.ArrayLayout(32, len(READERS) + len(WRITERS))),
        }
    )


class CoreRegisters(wiring.Component):
    """The core's registers and their counters.

    Members
    -------
    s_axil_*: AXI4-Lite slave.  interrupt: high while an enabled event is pending.
    start: run the program (pulse); only while neither ``busy`` nor ``resetting``.
    clear: with ``start``: counters elsewhere start at 0 too.
    reset: reset the core (pulse).
    program_address, program_length: of the program, stable while it runs unless software errs.
    busy, resetting: state of the core.
    done: the program ended (pulse).
    failed: the core stopped (pulse), for the reason ``code``, at instruction ``pc``; with
        ``address`` and ``response`` for a bus error, 0 otherwise.
    nonfinite, saturated: a number did not fit (pulses).
    counters: :func:`counters_signature`.

    These registers are outside the soft reset.  Counters run while ``busy``, those of 32 bits
    modulo 2**32; only the first ``failed`` since the start is kept.
    """

    def __init__(self, cfg: Config) -> None:
        self.cfg = cfg
        address_bits = cfg.core.address_bits
        super().__init__(
            {
                **lite_ports("s_axil", address_bits=REGISTERS.address_bits),
                "interrupt": Out(1),
                "start": Out(1),
                "clear": Out(1),
                "reset": Out(1),
                "program_address": Out(address_bits),
                "program_length": Out(REGISTERS["PROGRAM_LENGTH"]["VALUE"].width),
                "busy": In(1),
                "resetting": In(1),
                "done": In(1),
                "failed": In(1),
                "code": In(REGISTERS["ERROR"]["CODE"].width),
                "pc": In(REGISTER_BITS),
                "address": In(address_bits),
                "response": In(RESPONSE_BITS),
                "nonfinite": In(1),
                "saturated": In(1),
                "counters": In(counters_signature()),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """State, counters, and the wires to the block."""
        m = Module()
        m.submodules.block = block = RegisterBlock(REGISTERS)
        slave = lite_ports("s_axil", address_bits=REGISTERS.address_bits)
        forward_ports(m, self, block, slave)

        def drive(register: str, field: str, value: Any) -> None:
            m.d.comb += getattr(block, port_name(register, field)).eq(value)

        def drive_wide(register: str, value: Any) -> None:
            low_bits = Value.cast(value)[:REGISTER_BITS]
            drive(f"{register}_LOW", "VALUE", low_bits)
            drive(f"{register}_HIGH", "VALUE", Value.cast(value)[REGISTER_BITS:])

        m.d.comb += [
            self.start.eq(block.control_start & ~self.busy & ~self.resetting),
            self.clear.eq(self.start),
            self.reset.eq(block.control_reset),
            self.program_address.eq(
                Cat(block.program_address_low_value, block.program_address_high_value)
            ),
            self.program_length.eq(block.program_length_value),
            block.interrupt_pending_done_set.eq(self.done),
            block.interrupt_pending_failed_set.eq(self.failed),
            self.interrupt.eq(
                (block.interrupt_pending_done & block.interrupt_enable_done)
                | (block.interrupt_pending_failed & block.interrupt_enable_failed)
            ),
            block.numeric_nonfinite_set.eq(self.nonfinite),
            block.numeric_saturated_set.eq(self.saturated),
        ]
        cfg = self.cfg
        drive("ID", "VALUE", IDENTITY)
        drive("VERSION", "VALUE", VERSION)
        drive("CONFIG", "VALUE", Const(int(cfg.hash[:8], 16), REGISTER_BITS))
        drive("SHAPE", "ROWS", cfg.array.rows)
        drive("SHAPE", "COLUMNS", cfg.array.cols)
        drive("STATUS", "BUSY", self.busy)
        drive("STATUS", "RESETTING", self.resetting)

        done, failed = Signal(), Signal()
        code, response = Signal.like(self.code), Signal.like(self.response)
        pc, address = Signal.like(self.pc), Signal(2 * REGISTER_BITS)
        with m.If(self.start):
            m.d.sync += [s.eq(0) for s in (done, failed, code, response, pc, address)]
        with m.Else():
            m.d.sync += done.eq(done | self.done)
            with m.If(self.failed & ~failed):
                m.d.sync += [
                    failed.eq(1),
                    code.eq(self.code),
                    response.eq(self.response),
                    pc.eq(self.pc),
                    address.eq(self.address),
                ]
        drive("STATUS", "DONE", done)
        drive("STATUS", "FAILED", failed)
        drive("ERROR", "CODE", code)
        drive("ERROR", "RESPONSE", response)
        drive("ERROR_PC", "VALUE", pc)
        drive_wide("ERROR_ADDRESS", address)

        def count(name: str, event: Any, step: int = 1, width: int = REGISTER_BITS) -> Signal:
            counter = Signal(width, name=name)
            with m.If(self.start):
                m.d.sync += counter.eq(0)
            with m.Elif(self.busy & event):
                m.d.sync += counter.eq(counter + step)
            return counter

        events = self.counters
        wide = 2 * REGISTER_BITS
        size = cfg.core.axi_bytes
        drive_wide("CYCLES", count("cycles", 1, width=wide))
        drive_wide("BYTES_READ", count("bytes_read", events.read_beat, size, wide))
        drive_wide("BYTES_WRITTEN", count("bytes_written", events.write_beat, size, wide))
        drive("BEATS", "VALUE", events.beats)
        drive("SLOTS", "VALUE", events.slots)
        for i, engine in enumerate(ENGINES):
            name = engine.lower()
            drive(f"BUSY_{engine}", "VALUE", count(f"busy_{name}", events.busy[i]))
            drive(f"STALLED_{engine}", "VALUE", count(f"stalled_{name}", events.stalled[i]))
        for i, client in enumerate(READERS + WRITERS):
            drive(f"CONFLICTS_{client}", "VALUE", events.conflicts[i])
        return m
