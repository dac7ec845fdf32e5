"""Everything between the memory bus and the unified buffer, as one component for its bench."""

from __future__ import annotations

import dataclasses
from typing import Any

from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from dstar.rtl.mpc.axi import connect_master, master_ports
from dstar.rtl.mpc.buffer import UnifiedBuffer
from dstar.rtl.mpc.bus import BusShape
from dstar.rtl.mpc.dma_read import ReadDMA
from dstar.rtl.mpc.dma_write import WriteDMA
from dstar.rtl.mpc.fetch import Fetch, program_layout
from dstar.rtl.mpc.read_mux import ReadMux

#: Bits of an instruction.  Longest burst of the fetch, and beats that it reads ahead.
INSTRUCTION_BITS = 256
FETCH_BEATS = 2
AHEAD_BEATS = 6
#: Who is on the bus; the names of the status ports begin with them.
CLIENTS = ("fetch", "load", "store")


class MemoryTop(wiring.Component):
    """Fetch, read DMA and write DMA on one AXI master, and a buffer with a third reader.

    Members
    -------
    m_axi_*: the master.  load, store: transfers.  program, instructions: of the fetch.
    noise: addresses of the third reader.  stop: to all.  load_done, store_done: pulses.
    CLIENT_idle, CLIENT_error, CLIENT_error_address, CLIENT_error_response: their status.
    """

    def __init__(self, shape: BusShape, *, banks: int, bank_words: int) -> None:
        self.shape = shape
        self.banks = banks
        self.bank_words = bank_words
        members: dict[str, Any] = {
            "load": In(stream.Signature(shape.transfer)),
            "store": In(stream.Signature(shape.transfer)),
            "program": In(stream.Signature(program_layout(address_bits=shape.address_bits))),
            "instructions": Out(stream.Signature(INSTRUCTION_BITS)),
            "noise": In(stream.Signature(shape.buffer_bits)),
            "stop": In(1),
            "load_done": Out(1),
            "store_done": Out(1),
        }
        for client in CLIENTS:
            members |= {
                f"{client}_idle": Out(1),
                f"{client}_error": Out(1),
                f"{client}_error_address": Out(shape.address_bits),
                f"{client}_error_response": Out(2),
            }
        members |= master_ports(
            "m_axi",
            address_bits=shape.address_bits,
            data_bits=shape.data_bits,
            id_bits=shape.id_bits,
        )
        super().__init__(members)

    def elaborate(self, platform: Any) -> Module:
        """Wires only."""
        m = Module()
        shape = self.shape
        m.submodules.fetch = fetch = Fetch(
            dataclasses.replace(shape, max_beats=FETCH_BEATS),
            instruction_bits=INSTRUCTION_BITS,
            ahead_beats=AHEAD_BEATS,
        )
        m.submodules.read = read = ReadDMA(shape, identifier=1)
        m.submodules.write = write = WriteDMA(shape)
        m.submodules.mux = mux = ReadMux(shape, clients=2)
        m.submodules.buffer = buffer = UnifiedBuffer(
            width=shape.word_bits,
            banks=self.banks,
            bank_words=self.bank_words,
            readers=2,
            writers=1,
        )
        wiring.connect(m, fetch.axi, mux.clients[0])
        wiring.connect(m, read.axi, mux.clients[1])
        wiring.connect(m, write.port, buffer.readers[0])
        wiring.connect(m, wiring.flipped(self.noise), buffer.readers[1].address)
        wiring.connect(m, read.words, buffer.writers[0])
        wiring.connect(m, wiring.flipped(self.load), read.transfer)
        wiring.connect(m, wiring.flipped(self.store), write.transfer)
        wiring.connect(m, wiring.flipped(self.program), fetch.program)
        wiring.connect(m, wiring.flipped(self.instructions), fetch.instructions)
        m.d.comb += [self.load_done.eq(read.done), self.store_done.eq(write.done)]
        units: tuple[Any, ...] = (fetch, read, write)
        for client, unit in zip(CLIENTS, units, strict=True):
            m.d.comb += unit.status.stop.eq(self.stop)
            for name in ("idle", "error", "error_address", "error_response"):
                m.d.comb += getattr(self, f"{client}_{name}").eq(getattr(unit.status, name))
        prefix = "m_axi_"
        ports = {
            name.removeprefix(prefix): getattr(self, name)
            for name in self.signature.members
            if name.startswith(prefix)
        }
        connect_master(m, ports, read=mux.axi, write=write.axi)
        return m
