# amaranth: UnusedElaboratable=no
"""The computing engines with their units and a buffer in one component."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from dstar.gen.config import Config
from dstar.golden.mpc.geometry import Geometry
from dstar.golden.mpc.isa import Engine
from dstar.rtl.matrix import MatrixUnit
from dstar.rtl.mpc.buffer import UnifiedBuffer, write_layout
from dstar.rtl.mpc.decode import STATUS_BITS, command_layout
from dstar.rtl.mpc.engines.multiply import MultiplyEngine
from dstar.rtl.mpc.engines.quantize import QuantizeEngine
from dstar.rtl.mpc.engines.vector import VectorEngine
from dstar.rtl.qpu.qpu import QPU
from dstar.rtl.vpu.vpu import VPU

ENGINES = (Engine.QUANTIZE, Engine.MULTIPLY, Engine.VECTOR)
COUNT = 32


def fault_word() -> data.StructLayout:
    """The first fault: number of the engine, status, commands of that engine done before."""
    return data.StructLayout({"engine": 2, "status": unsigned(STATUS_BITS), "number": unsigned(16)})


class EngineBench(wiring.Component):
    """Three engines, their units, a buffer, and streams to fill it and to read it.

    Members
    -------
    load: words into the buffer; the engines start when ``loads`` came.
    quantize, multiply, vector: commands.
    read, word: addresses and words, once ``commands`` commands are done.
    noise: addresses that a further client reads, for conflicts.
    fault: stream of the first fault.
    cycles: from the first command to the last ``done``; busy, stalled: of each engine.
    """

    def __init__(self, cfg: Config) -> None:
        self.cfg = cfg
        geometry = Geometry(cfg)
        self.buffer = UnifiedBuffer(
            width=8 * geometry.word_bytes,
            banks=cfg.core.banks,
            bank_words=cfg.core.bank_words,
            readers=9,
            writers=4,
        )
        bits, width = self.buffer.address_bits, self.buffer.width
        commands = {e.name.lower(): In(stream.Signature(command_layout(cfg, e))) for e in ENGINES}
        super().__init__(
            {
                "load": In(stream.Signature(write_layout(width=width, address_bits=bits))),
                "loads": In(COUNT),
                **commands,
                "commands": In(COUNT),
                "read": In(stream.Signature(bits)),
                "word": Out(stream.Signature(width)),
                "noise": In(stream.Signature(bits)),
                "fault": Out(stream.Signature(fault_word())),
                "cycles": Out(COUNT),
                "busy": Out(data.ArrayLayout(COUNT, 3)),
                "stalled": Out(data.ArrayLayout(COUNT, 3)),
                "freed": Out(COUNT),
                "released": Out(COUNT),
                "beats": Out(COUNT),
                "slots": Out(COUNT),
                "conflicts": Out(COUNT),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        cfg = self.cfg
        m.submodules.buffer = buffer = self.buffer
        m.submodules.quantize = quantize = QuantizeEngine(cfg)
        m.submodules.multiply = multiply = MultiplyEngine(cfg)
        m.submodules.vector = vector = VectorEngine(cfg)
        m.submodules.qpu = qpu = QPU(cfg)
        m.submodules.matrix = matrix = MatrixUnit(
            cfg,
            columns=cfg.core.columns,
            k_tiles=cfg.core.k_tiles,
            weight_channels=Geometry(cfg).weight_channels,
        )
        m.submodules.vpu = vpu = VPU(cfg)
        engines: list[Any] = [quantize, multiply, vector]

        readers = [quantize.buffer.x, quantize.buffer.reference]
        readers += [multiply.buffer.weights, multiply.buffer.parameters, multiply.buffer.before]
        readers += [vector.buffer.input, vector.buffer.scalar]
        for number, port in enumerate(readers):
            wiring.connect(m, port, buffer.readers[number])
        writers = [quantize.buffer.next, multiply.buffer.output, vector.buffer.output]
        for number, port in enumerate(writers):
            wiring.connect(m, port, buffer.writers[number])
        wiring.connect(m, wiring.flipped(self.load), buffer.writers[3])

        wiring.connect(m, quantize.tile, qpu.command)
        wiring.connect(m, quantize.x, qpu.x)
        wiring.connect(m, quantize.reference, qpu.reference)
        wiring.connect(m, qpu.next_reference, quantize.next_reference)
        wiring.connect(m, qpu.slices, matrix.slices)
        wiring.connect(m, quantize.encoded, multiply.encoded)
        for name in ("weights", "command", "store", "channel", "before"):
            wiring.connect(m, getattr(multiply.matrix, name), getattr(matrix, name))
        wiring.connect(m, matrix.output, multiply.matrix.output)
        wiring.connect(m, vector.program, vpu.command)
        wiring.connect(m, vector.input, vpu.input)
        wiring.connect(m, vector.scalar, vpu.scalar)
        wiring.connect(m, vpu.output, vector.output)
        m.d.comb += [
            qpu.header.ready.eq(1),
            multiply.beats.eq(matrix.perf.beats[0]),
            self.beats.eq(matrix.perf.beats),
            self.slots.eq(matrix.perf.slots),
            self.conflicts.eq(sum(buffer.conflicts, Const(0, COUNT))),
        ]

        # Commands after the last word is loaded, reads after the last command is done.
        loaded, done = Signal(COUNT), Signal(COUNT)
        m.d.sync += loaded.eq(loaded + (self.load.valid & self.load.ready))
        m.d.sync += done.eq(done + sum((e.done for e in engines), Const(0, 3)))
        active, over = Signal(), Signal()
        m.d.comb += [active.eq(loaded == self.loads), over.eq(active & (done == self.commands))]
        counts = []
        for number, engine in enumerate(engines):
            given = getattr(self, ENGINES[number].name.lower())
            count = Signal(16, name=f"done_{number}")
            counts.append(count)
            m.d.comb += [
                engine.command.payload.eq(given.payload),
                engine.command.valid.eq(given.valid & active),
                given.ready.eq(engine.command.ready & active),
            ]
            m.d.sync += [
                count.eq(count + engine.done),
                self.busy[number].eq(self.busy[number] + engine.busy),
                self.stalled[number].eq(self.stalled[number] + engine.stalled),
            ]
        m.d.sync += [
            self.freed.eq(self.freed + multiply.freed),
            self.released.eq(self.released + multiply.released),
        ]
        with m.If(active & ~over):
            m.d.sync += self.cycles.eq(self.cycles + 1)

        # Reading: one word at a time is enough.
        for number, source in ((7, self.read), (8, self.noise)):
            port = buffer.readers[number].address
            m.d.comb += port.payload.eq(source.payload)
        port, waiting = buffer.readers[7], Signal()
        free = over & ~waiting & (~self.word.valid | self.word.ready)
        m.d.comb += [
            port.address.valid.eq(self.read.valid & free),
            self.read.ready.eq(port.address.ready & free),
            buffer.readers[8].address.valid.eq(self.noise.valid & active),
            self.noise.ready.eq(buffer.readers[8].address.ready & active),
        ]
        m.d.sync += waiting.eq(port.address.valid & port.address.ready)
        with m.If(self.word.ready):
            m.d.sync += self.word.valid.eq(0)
        with m.If(port.valid):
            m.d.sync += [self.word.valid.eq(1), self.word.payload.eq(port.data)]

        told = Signal()
        any_fault = Cat(e.fault.valid for e in engines).any()
        with m.If(any_fault & ~told):
            m.d.sync += [told.eq(1), self.fault.valid.eq(1)]
            for number, engine in reversed(list(enumerate(engines))):
                with m.If(engine.fault.valid):
                    m.d.sync += [
                        self.fault.payload.engine.eq(number),
                        self.fault.payload.status.eq(engine.fault.status),
                        self.fault.payload.number.eq(counts[number] + Mux(engine.done, 1, 0)),
                    ]
        with m.Elif(self.fault.ready):
            m.d.sync += self.fault.valid.eq(0)
        return m
