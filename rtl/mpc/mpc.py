"""The mixed-precision processing core: engines around a unified buffer, run by programs."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import ClockDomain, ClockSignal, DomainRenamer, Module, ResetSignal, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import Out

from dstar.gen.config import Config
from dstar.golden.mpc.geometry import Geometry
from dstar.golden.mpc.registers import READERS, REGISTERS, WRITERS
from dstar.rtl.matrix import MatrixUnit
from dstar.rtl.mpc.axi import connect_master, lite_ports, master_ports
from dstar.rtl.mpc.buffer import UnifiedBuffer
from dstar.rtl.mpc.bus import BusShape
from dstar.rtl.mpc.control import ENGINES, Control
from dstar.rtl.mpc.engines.multiply import MultiplyEngine
from dstar.rtl.mpc.engines.quantize import QuantizeEngine
from dstar.rtl.mpc.engines.vector import VectorEngine
from dstar.rtl.mpc.move import LoadEngine, StoreEngine
from dstar.rtl.mpc.read_mux import ReadMux
from dstar.rtl.mpc.registers import CoreRegisters
from dstar.rtl.mpu.mpu import MPU
from dstar.rtl.qpu.qpu import QPU
from dstar.rtl.vpu.vpu import VPU

#: Read clients of the memory bus; their order is that of their IDs.
FETCH, LOAD = 0, 1


class MPC(wiring.Component):
    """Mixed-precision processing core (paper, sections 4.2 and 4.3; docs/mpc.md).

    QPU, MPU with its output path, and VPU work on a unified buffer of token vectors, which load and
    store engines fill from and empty to memory; instructions (docs/isa.md) drive them all.

    Members
    -------
    s_axil_*: AXI4-Lite slave, the registers (docs/registers.md).
    m_axi_*: AXI4 master, to memory.
    interrupt: high while an enabled event is pending.

    A soft reset and a reset after an error are those of the engines and units; buffer and
    registers keep their contents.
    """

    #: Class of the MPU; simulators look into it with one of their own.
    _mpu = MPU

    def __init__(self, cfg: Config) -> None:
        self.cfg = cfg
        self.geometry = Geometry(cfg)
        self.shape = BusShape.of(cfg)
        shape = self.shape
        super().__init__(
            {
                **lite_ports("s_axil", address_bits=REGISTERS.address_bits),
                **master_ports(
                    "m_axi",
                    address_bits=shape.address_bits,
                    data_bits=shape.data_bits,
                    id_bits=shape.id_bits,
                ),
                "interrupt": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Memory - load - buffer - quantize, multiply, vector - buffer - store - memory."""
        m = Module()
        cfg = self.cfg
        m.submodules.registers = registers = CoreRegisters(cfg)
        m.submodules.control = control = Control(cfg)
        m.submodules.buffer = buffer = UnifiedBuffer(
            width=8 * self.geometry.word_bytes,
            banks=cfg.core.banks,
            bank_words=cfg.core.bank_words,
            readers=len(READERS),
            writers=len(WRITERS),
        )

        # All that a soft reset resets.
        asynchronous = cfg.clock.reset == "async_low"
        m.domains.engines = ClockDomain(local=True, async_reset=asynchronous)
        m.d.comb += [
            ClockSignal("engines").eq(ClockSignal()),
            ResetSignal("engines").eq(ResetSignal() | control.reset_engines),
        ]
        load = LoadEngine(cfg, identifier=LOAD)
        store = StoreEngine(cfg)
        quantize, qpu = QuantizeEngine(cfg), QPU(cfg)
        multiply, matrix = MultiplyEngine(cfg), self._matrix()
        vector, vpu = VectorEngine(cfg), VPU(cfg)
        parts = {
            "load": load,
            "store": store,
            "quantize": quantize,
            "qpu": qpu,
            "multiply": multiply,
            "matrix": matrix,
            "vector": vector,
            "vpu": vpu,
        }
        for name, part in parts.items():
            m.submodules[name] = DomainRenamer("engines")(part)

        # Memory.
        m.submodules.reads = reads = ReadMux(self.shape, clients=2)
        wiring.connect(m, control.axi, reads.clients[FETCH])
        wiring.connect(m, load.axi, reads.clients[LOAD])
        axi = {name: getattr(self, f"m_axi_{name}") for name in _axi_names(self.shape)}
        connect_master(m, axi, read=reads.axi, write=store.axi)

        # The buffer's clients, in the order of their counters.
        readers = {
            "STORE": store.port,
            "QUANTIZE_X": quantize.buffer.x,
            "QUANTIZE_REFERENCE": quantize.buffer.reference,
            "MULTIPLY_WEIGHTS": multiply.buffer.weights,
            "MULTIPLY_PARAMETERS": multiply.buffer.parameters,
            "MULTIPLY_BEFORE": multiply.buffer.before,
            "VECTOR_INPUT": vector.buffer.input,
            "VECTOR_SCALAR": vector.buffer.scalar,
        }
        writers = {
            "LOAD": load.words,
            "QUANTIZE_NEXT": quantize.buffer.next,
            "MULTIPLY_OUTPUT": multiply.buffer.output,
            "VECTOR_OUTPUT": vector.buffer.output,
        }
        for number, name in enumerate(READERS):
            wiring.connect(m, readers[name], buffer.readers[number])
        for number, name in enumerate(WRITERS):
            wiring.connect(m, writers[name], buffer.writers[number])

        # Engines and the units they use.
        wiring.connect(m, quantize.tile, qpu.command)
        wiring.connect(m, quantize.x, qpu.x)
        wiring.connect(m, quantize.reference, qpu.reference)
        wiring.connect(m, qpu.next_reference, quantize.next_reference)
        wiring.connect(m, qpu.slices, matrix.slices)
        m.d.comb += qpu.header.ready.eq(1)
        wiring.connect(m, quantize.encoded, multiply.encoded)
        for name in ("weights", "command", "store", "channel", "before"):
            wiring.connect(m, getattr(multiply.matrix, name), getattr(matrix, name))
        wiring.connect(m, matrix.output, multiply.matrix.output)
        m.d.comb += multiply.beats.eq(matrix.perf.beats)
        wiring.connect(m, vector.program, vpu.command)
        wiring.connect(m, vector.input, vpu.input)
        wiring.connect(m, vector.scalar, vpu.scalar)
        wiring.connect(m, vpu.output, vector.output)

        # Control.
        engines: tuple[Any, ...] = (load, quantize, multiply, vector, store)
        for kind, engine in zip(ENGINES, engines, strict=True):
            port = getattr(control.engines, kind.name.lower())
            wiring.connect(m, port.command, engine.command)
            m.d.comb += [port.done.eq(engine.done), port.fault.eq(engine.fault)]
        m.d.comb += [
            control.engines.multiply.freed.eq(multiply.freed),
            control.released.eq(multiply.released),
            load.stop.eq(control.stop),
            store.stop.eq(control.stop),
            control.bus_idle.eq(load.idle & store.idle),
        ]
        self._registers(m, registers, control, buffer, qpu, matrix)
        return m

    def _matrix(self) -> MatrixUnit:
        """MPU and output path for whole rows of column tiles."""
        core = self.cfg.core
        return MatrixUnit(
            self.cfg,
            columns=core.columns,
            k_tiles=core.k_tiles,
            weight_channels=self.geometry.weight_channels,
            mpu=self._mpu,
        )

    def _registers(
        self,
        m: Module,
        registers: CoreRegisters,
        control: Control,
        buffer: UnifiedBuffer,
        qpu: QPU,
        matrix: MatrixUnit,
    ) -> None:
        """What software sees and does."""
        for name, member in lite_ports("s_axil", address_bits=REGISTERS.address_bits).items():
            outer, inner = getattr(self, name), getattr(registers, name)
            m.d.comb += inner.eq(outer) if member.flow == wiring.In else outer.eq(inner)
        m.d.comb += self.interrupt.eq(registers.interrupt)
        for name in ("start", "program_address", "program_length", "reset"):
            m.d.comb += getattr(control, name).eq(getattr(registers, name))
        for name in ("busy", "resetting", "done", "failed", "code", "pc", "address", "response"):
            m.d.comb += getattr(registers, name).eq(getattr(control, name))

        # The units' flags are sticky; registers keep them, so each is cleared as it is seen.
        m.d.comb += [
            registers.nonfinite.eq(qpu.status.nonfinite),
            registers.saturated.eq(qpu.status.saturated | matrix.saturated),
            qpu.clear.eq(qpu.status.nonfinite | qpu.status.saturated),
            matrix.clear.eq(matrix.saturated),
        ]

        counters = registers.counters
        m.d.comb += [
            counters.busy.eq(control.started),
            counters.stalled.eq(control.waiting),
            counters.read_beat.eq(self.m_axi_rvalid & self.m_axi_rready),
            counters.write_beat.eq(self.m_axi_wvalid & self.m_axi_wready),
            buffer.clear.eq(registers.clear),
        ]
        for number, count in enumerate(buffer.conflicts):
            m.d.comb += counters.conflicts[number].eq(count)
        # The MPU counts since its reset, the registers since the start.
        for name in ("beats", "slots"):
            now, before = getattr(matrix.perf, name), Signal(32, name=f"{name}_before")
            total = Signal(32, name=name)
            step = (now - before)[: self.cfg.array.lanes.bit_length()]
            m.d.comb += getattr(counters, name).eq(total)
            m.d.sync += [before.eq(now), total.eq(total + step)]
            with m.If(registers.start):
                m.d.sync += total.eq(0)
            with m.If(control.reset_engines):
                m.d.sync += [before.eq(0), total.eq(total)]


def _axi_names(shape: BusShape) -> list[str]:
    """AXI's own names of the master's ports."""
    ports = master_ports(
        "m", address_bits=shape.address_bits, data_bits=shape.data_bits, id_bits=shape.id_bits
    )
    return [name.removeprefix("m_") for name in ports]
