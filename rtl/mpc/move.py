"""Load and store engines: commands to the DMAs."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from dstar.gen.config import Config
from dstar.golden.mpc.fields import Status
from dstar.golden.mpc.isa import Engine
from dstar.rtl.mpc.axi import write_signature
from dstar.rtl.mpc.bus import BusShape
from dstar.rtl.mpc.dma_read import ReadDMA
from dstar.rtl.mpc.dma_write import WriteDMA
from dstar.rtl.mpc.engines.ports import engine_members, read_port, write_port

#: Cycles that words read before an error have to reach the buffer.
DRAIN_CYCLES = 15


def _connect(m: Module, engine: Any, dma: Any) -> None:
    """A command is a transfer; errors of the bus become the engine's fault."""
    command, transfer = engine.command.payload, dma.transfer.payload
    for name in ("address", "stride", "buffer", "step", "length", "rows"):
        m.d.comb += getattr(transfer, name).eq(getattr(command, name))
    m.d.comb += [
        dma.transfer.valid.eq(engine.command.valid),
        engine.command.ready.eq(dma.transfer.ready),
        engine.done.eq(dma.done),
        dma.status.stop.eq(engine.stop),
        engine.idle.eq(dma.status.idle),
        engine.fault.address.eq(dma.status.error_address),
        engine.fault.response.eq(dma.status.error_response),
    ]


class LoadEngine(wiring.Component):
    """Carries out LOAD (docs/isa.md).

    Members
    -------
    command, done, fault: :func:`~dstar.rtl.mpc.engines.ports.engine_members`.
    axi: :attr:`~dstar.rtl.mpc.bus.BusShape.read`.  words: writes to the buffer.
    stop, idle: of the DMA's :func:`~dstar.rtl.mpc.bus.status_signature`.
    """

    def __init__(self, cfg: Config, *, identifier: int) -> None:
        self.shape = BusShape.of(cfg)
        self.identifier = identifier
        members = engine_members(cfg, Engine.LOAD)
        super().__init__(
            {
                **{name: members[name] for name in ("command", "done", "fault")},
                "axi": Out(self.shape.read),
                "words": Out(write_port(cfg)),
                "stop": In(1),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """The DMA; an error counts when what was read before it is in the buffer."""
        m = Module()
        m.submodules.dma = dma = ReadDMA(self.shape, identifier=self.identifier)
        _connect(m, self, dma)
        wiring.connect(m, dma.axi, wiring.flipped(self.axi))
        wiring.connect(m, dma.words, wiring.flipped(self.words))
        drained = Signal(range(DRAIN_CYCLES + 1))
        with m.If(~dma.status.error | dma.words.valid | dma.done):
            m.d.sync += drained.eq(0)
        with m.Elif(drained != DRAIN_CYCLES):
            m.d.sync += drained.eq(drained + 1)
        m.d.comb += [
            self.fault.valid.eq(drained == DRAIN_CYCLES),
            self.fault.status.eq(Status.READ),
        ]
        return m


class StoreEngine(wiring.Component):
    """Carries out STORE (docs/isa.md).

    Members
    -------
    command, done, fault: :func:`~dstar.rtl.mpc.engines.ports.engine_members`.
    axi: :func:`~dstar.rtl.mpc.axi.write_signature`.  port: reads of the buffer.
    stop, idle: of the DMA's :func:`~dstar.rtl.mpc.bus.status_signature`.
    """

    def __init__(self, cfg: Config) -> None:
        self.shape = BusShape.of(cfg)
        members = engine_members(cfg, Engine.STORE)
        shape = self.shape
        super().__init__(
            {
                **{name: members[name] for name in ("command", "done", "fault")},
                "axi": Out(
                    write_signature(address_bits=shape.address_bits, data_bits=shape.data_bits)
                ),
                "port": Out(read_port(cfg)),
                "stop": In(1),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """The DMA; answers come in order, so an error belongs to the oldest transfer."""
        m = Module()
        m.submodules.dma = dma = WriteDMA(self.shape)
        _connect(m, self, dma)
        wiring.connect(m, dma.axi, wiring.flipped(self.axi))
        wiring.connect(m, dma.port, wiring.flipped(self.port))
        m.d.comb += [
            self.fault.valid.eq(dma.status.error & ~dma.done),
            self.fault.status.eq(Status.WRITE),
        ]
        return m
