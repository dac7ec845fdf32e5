"""What runs programs and moves words: the core without its units and its buffer."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, ResetInserter, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from dstar.gen.config import Config
from dstar.golden.mpc.isa import Engine
from dstar.golden.mpc.registers import REGISTERS
from dstar.rtl.mpc.axi import connect_master, forward_ports, lite_ports, master_ports
from dstar.rtl.mpc.bus import BusShape
from dstar.rtl.mpc.control import ENGINES, Control, engine_signature
from dstar.rtl.mpc.engines.ports import read_port, write_port
from dstar.rtl.mpc.move import LoadEngine, StoreEngine
from dstar.rtl.mpc.read_mux import ReadMux
from dstar.rtl.mpc.registers import CoreRegisters, counters_signature

#: Read clients of the memory bus; their order is that of their IDs.
FETCH, LOAD = 0, 1
#: Engines that work with units; load and store are here.
UNIT_ENGINES = (Engine.QUANTIZE, Engine.MULTIPLY, Engine.VECTOR)


def core_ports(cfg: Config) -> dict[str, wiring.Member]:
    """The core's ports: AXI4-Lite slave, AXI4 master, interrupt."""
    shape = BusShape.of(cfg)
    return {
        **lite_ports("s_axil", address_bits=REGISTERS.address_bits),
        **master_ports(
            "m_axi",
            address_bits=shape.address_bits,
            data_bits=shape.data_bits,
            id_bits=shape.id_bits,
        ),
        "interrupt": Out(1),
    }


class CoreControl(wiring.Component):
    """Registers, control, command queues, load and store engines.

    Members
    -------
    :func:`core_ports`.
    quantize, multiply, vector: :func:`~dstar.rtl.mpc.control.engine_signature`.
    load, store: write and read port of the unified buffer.
    released: an encoded tile's place in the MPU is free again (pulse).
    nonfinite, saturated: a number did not fit (pulses).
    beats, slots: of the MPU, counted since its reset.
    conflicts: of each client of the buffer, readers first, counted since ``clear`` (a pulse at
    a program's start).
    reset_engines: reset engines and units.
    busy: a program runs.  started, waiting: of :class:`~dstar.rtl.mpc.control.Control`.
    """

    def __init__(self, cfg: Config) -> None:
        self.cfg = cfg
        counters = counters_signature().members
        super().__init__(
            {
                **core_ports(cfg),
                **{e.name.lower(): Out(engine_signature(cfg, e)) for e in UNIT_ENGINES},
                "load": Out(write_port(cfg)),
                "store": Out(read_port(cfg)),
                "released": In(1),
                "nonfinite": In(1),
                "saturated": In(1),
                **{name: counters[name].flip() for name in ("beats", "slots", "conflicts")},
                "clear": Out(1),
                "reset_engines": Out(1),
                "busy": Out(1),
                "started": Out(len(ENGINES)),
                "waiting": Out(len(ENGINES)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Fetch and dispatch to the engines; memory - load - buffer - store - memory."""
        m = Module()
        cfg = self.cfg
        m.submodules.registers = registers = CoreRegisters(cfg)
        m.submodules.control = control = Control(cfg)
        load, store = LoadEngine(cfg, identifier=LOAD), StoreEngine(cfg)
        m.submodules.load = ResetInserter(control.reset_engines)(load)
        m.submodules.store = ResetInserter(control.reset_engines)(store)
        m.submodules.reads = reads = ReadMux(BusShape.of(cfg), clients=2)

        # Memory and buffer.
        wiring.connect(m, control.axi, reads.clients[FETCH])
        wiring.connect(m, load.axi, reads.clients[LOAD])
        master = [name for name in core_ports(cfg) if name.startswith("m_axi_")]
        axi = {name.removeprefix("m_axi_"): getattr(self, name) for name in master}
        connect_master(m, axi, read=reads.axi, write=store.axi)
        wiring.connect(m, load.words, wiring.flipped(self.load))
        wiring.connect(m, store.port, wiring.flipped(self.store))

        # Engines.
        for name, engine in (("load", load), ("store", store)):
            port = getattr(control.engines, name)
            wiring.connect(m, port.command, engine.command)
            m.d.comb += [port.done.eq(engine.done), port.fault.eq(engine.fault)]
            m.d.comb += engine.stop.eq(control.stop)
        for kind in UNIT_ENGINES:
            name = kind.name.lower()
            wiring.connect(m, getattr(control.engines, name), wiring.flipped(getattr(self, name)))
        m.d.comb += [
            control.bus_idle.eq(load.idle & store.idle),
            control.released.eq(self.released),
            self.reset_engines.eq(control.reset_engines),
            self.busy.eq(control.busy),
            self.started.eq(control.started),
            self.waiting.eq(control.waiting),
        ]
        self._registers(m, registers, control)
        return m

    def _registers(self, m: Module, registers: CoreRegisters, control: Control) -> None:
        """What software sees and does."""
        slave = lite_ports("s_axil", address_bits=REGISTERS.address_bits)
        forward_ports(m, self, registers, {**slave, "interrupt": Out(1)})
        for name in ("start", "program_address", "program_length", "reset"):
            m.d.comb += getattr(control, name).eq(getattr(registers, name))
        for name in ("busy", "resetting", "done", "failed", "code", "pc", "address", "response"):
            m.d.comb += getattr(registers, name).eq(getattr(control, name))
        counters = registers.counters
        m.d.comb += [
            self.clear.eq(registers.clear),
            registers.nonfinite.eq(self.nonfinite),
            registers.saturated.eq(self.saturated),
            counters.busy.eq(control.started),
            counters.stalled.eq(control.waiting),
            counters.read_beat.eq(self.m_axi_rvalid & self.m_axi_rready),
            counters.write_beat.eq(self.m_axi_wvalid & self.m_axi_wready),
            counters.conflicts.eq(self.conflicts),
        ]
        # The MPU counts since its reset, the registers since the start.
        for name in ("beats", "slots"):
            now, before = getattr(self, name), Signal(32, name=f"{name}_before")
            total = Signal(32, name=f"{name}_total")
            step = (now - before)[: self.cfg.array.lanes.bit_length()]
            m.d.comb += getattr(counters, name).eq(total)
            m.d.sync += [before.eq(now), total.eq(total + step)]
            with m.If(registers.start):
                m.d.sync += total.eq(0)
            with m.If(control.reset_engines):
                m.d.sync += [before.eq(0), total.eq(total)]
