"""The core without its units: what runs programs and moves words, to be synthesized alone."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import ClockDomain, ClockSignal, DomainRenamer, Module, ResetSignal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from dstar.gen.config import Config
from dstar.golden.mpc.isa import Engine
from dstar.golden.mpc.registers import REGISTERS
from dstar.rtl.mpc.axi import connect_master, lite_ports, master_ports
from dstar.rtl.mpc.bus import BusShape
from dstar.rtl.mpc.control import ENGINES, Control, engine_signature
from dstar.rtl.mpc.engines.ports import read_port, write_port
from dstar.rtl.mpc.move import LoadEngine, StoreEngine
from dstar.rtl.mpc.mpc import FETCH, LOAD
from dstar.rtl.mpc.read_mux import ReadMux
from dstar.rtl.mpc.registers import CoreRegisters, counters_signature

#: Modules of :class:`CoreControl` that are kept apart, as patterns of Yosys' selections.
CONTROL_PARTS = tuple(
    f"*.{name}"
    for name in (
        *("registers", "reads", "fetch", "dispatch", "semaphores"),
        *(engine.name.lower() for engine in ENGINES),
    )
)
#: Engines whose units are not here.
_OUTSIDE = (Engine.QUANTIZE, Engine.MULTIPLY, Engine.VECTOR)


class CoreControl(wiring.Component):
    """Registers, control, command queues, load and store of :class:`~dstar.rtl.mpc.mpc.MPC`.

    Members
    -------
    s_axil_*, m_axi_*, interrupt: of the core.
    quantize, multiply, vector: :func:`~dstar.rtl.mpc.control.engine_signature`.
    load, store: write and read port of the unified buffer.
    counters: of the engines and units, as :class:`~dstar.rtl.mpc.registers.CoreRegisters` has them.
    released, nonfinite, saturated: of the units.  reset_units: resets them.
    """

    def __init__(self, cfg: Config) -> None:
        self.cfg = cfg
        shape = self.shape = BusShape.of(cfg)
        self._master = master_ports(
            "m_axi",
            address_bits=shape.address_bits,
            data_bits=shape.data_bits,
            id_bits=shape.id_bits,
        )
        super().__init__(
            {
                **lite_ports("s_axil", address_bits=REGISTERS.address_bits),
                **self._master,
                "interrupt": Out(1),
                **{e.name.lower(): Out(engine_signature(cfg, e)) for e in _OUTSIDE},
                "load": Out(write_port(cfg)),
                "store": Out(read_port(cfg)),
                "counters": In(counters_signature()),
                "released": In(1),
                "nonfinite": In(1),
                "saturated": In(1),
                "reset_units": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """As in the core."""
        m = Module()
        m.submodules.registers = registers = CoreRegisters(self.cfg)
        m.submodules.control = control = Control(self.cfg)
        asynchronous = self.cfg.clock.reset == "async_low"
        m.domains.engines = ClockDomain(local=True, async_reset=asynchronous)
        m.d.comb += [
            ClockSignal("engines").eq(ClockSignal()),
            ResetSignal("engines").eq(ResetSignal() | control.reset_engines),
        ]
        load, store = LoadEngine(self.cfg, identifier=LOAD), StoreEngine(self.cfg)
        m.submodules.load = DomainRenamer("engines")(load)
        m.submodules.store = DomainRenamer("engines")(store)
        m.submodules.reads = reads = ReadMux(self.shape, clients=2)
        wiring.connect(m, control.axi, reads.clients[FETCH])
        wiring.connect(m, load.axi, reads.clients[LOAD])
        axi = {name.removeprefix("m_axi_"): getattr(self, name) for name in self._master}
        connect_master(m, axi, read=reads.axi, write=store.axi)
        wiring.connect(m, load.words, wiring.flipped(self.load))
        wiring.connect(m, store.port, wiring.flipped(self.store))
        for name, engine in (("load", load), ("store", store)):
            port = getattr(control.engines, name)
            wiring.connect(m, port.command, engine.command)
            m.d.comb += [port.done.eq(engine.done), port.fault.eq(engine.fault)]
        for kind in _OUTSIDE:
            name = kind.name.lower()
            wiring.connect(m, getattr(control.engines, name), wiring.flipped(getattr(self, name)))
        m.d.comb += [
            load.stop.eq(control.stop),
            store.stop.eq(control.stop),
            control.bus_idle.eq(load.idle & store.idle),
            control.released.eq(self.released),
            self.reset_units.eq(control.reset_engines),
        ]
        for name, member in lite_ports("s_axil", address_bits=REGISTERS.address_bits).items():
            outer, inner = getattr(self, name), getattr(registers, name)
            m.d.comb += inner.eq(outer) if member.flow == In else outer.eq(inner)
        for name in ("start", "program_address", "program_length", "reset"):
            m.d.comb += getattr(control, name).eq(getattr(registers, name))
        for name in ("busy", "resetting", "done", "failed", "code", "pc", "address", "response"):
            m.d.comb += getattr(registers, name).eq(getattr(control, name))
        m.d.comb += [
            self.interrupt.eq(registers.interrupt),
            registers.nonfinite.eq(self.nonfinite),
            registers.saturated.eq(self.saturated),
            registers.counters.read_beat.eq(self.m_axi_rvalid & self.m_axi_rready),
            registers.counters.write_beat.eq(self.m_axi_wvalid & self.m_axi_wready),
            registers.counters.busy.eq(control.started),
            registers.counters.stalled.eq(control.waiting),
            registers.counters.beats.eq(self.counters.beats),
            registers.counters.slots.eq(self.counters.slots),
            registers.counters.conflicts.eq(self.counters.conflicts),
        ]
        return m
