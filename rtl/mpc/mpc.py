"""The mixed-precision processing core: engines around a unified buffer, run by programs."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import ClockDomain, ClockSignal, DomainRenamer, Module, ResetSignal
from amaranth.lib import wiring

from dstar.gen.config import Config
from dstar.golden.mpc.geometry import Geometry
from dstar.golden.mpc.registers import READERS, WRITERS
from dstar.rtl.matrix import MatrixUnit
from dstar.rtl.mpc.axi import forward_ports
from dstar.rtl.mpc.buffer import UnifiedBuffer
from dstar.rtl.mpc.core_control import CoreControl, core_ports
from dstar.rtl.mpc.engines.multiply import MultiplyEngine
from dstar.rtl.mpc.engines.quantize import QuantizeEngine
from dstar.rtl.mpc.engines.vector import VectorEngine
from dstar.rtl.mpu.mpu import MPU
from dstar.rtl.qpu.qpu import QPU
from dstar.rtl.vpu.vpu import VPU


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
        super().__init__(core_ports(cfg))

    def elaborate(self, platform: Any) -> Module:
        """Memory - load - buffer - quantize, multiply, vector - buffer - store - memory."""
        m = Module()
        cfg = self.cfg
        m.submodules.control = control = CoreControl(cfg)
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
        quantize, qpu = QuantizeEngine(cfg), QPU(cfg)
        multiply, matrix = MultiplyEngine(cfg), self._matrix()
        vector, vpu = VectorEngine(cfg), VPU(cfg)
        parts = {
            "quantize": quantize,
            "qpu": qpu,
            "multiply": multiply,
            "matrix": matrix,
            "vector": vector,
            "vpu": vpu,
        }
        for name, part in parts.items():
            m.submodules[name] = DomainRenamer("engines")(part)

        forward_ports(m, self, control, core_ports(cfg))

        # The buffer's clients, in the order of their counters.
        readers = {
            "STORE": control.store,
            "QUANTIZE_X": quantize.buffer.x,
            "QUANTIZE_REFERENCE": quantize.buffer.reference,
            "MULTIPLY_WEIGHTS": multiply.buffer.weights,
            "MULTIPLY_PARAMETERS": multiply.buffer.parameters,
            "MULTIPLY_BEFORE": multiply.buffer.before,
            "VECTOR_INPUT": vector.buffer.input,
            "VECTOR_SCALAR": vector.buffer.scalar,
        }
        writers = {
            "LOAD": control.load,
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
        for name, engine in (("quantize", quantize), ("multiply", multiply), ("vector", vector)):
            port: Any = getattr(control, name)
            wiring.connect(m, port.command, engine.command)
            m.d.comb += [port.done.eq(engine.done), port.fault.eq(engine.fault)]
        m.d.comb += [
            control.multiply.freed.eq(multiply.freed),
            control.released.eq(multiply.released),
            control.beats.eq(matrix.perf.beats),
            control.slots.eq(matrix.perf.slots),
            buffer.clear.eq(control.clear),
            # The units' flags are sticky; registers keep them, so each is cleared as it is seen.
            control.nonfinite.eq(qpu.status.nonfinite),
            control.saturated.eq(qpu.status.saturated | matrix.saturated),
            qpu.clear.eq(qpu.status.nonfinite | qpu.status.saturated),
            matrix.clear.eq(matrix.saturated),
        ]
        for number, count in enumerate(buffer.conflicts):
            m.d.comb += control.conflicts[number].eq(count)
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
