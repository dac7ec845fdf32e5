"""An AXI4-Lite slave made from a register map."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from dstar.golden.mpc.register_map import (
    REGISTER_BITS,
    REGISTER_BYTES,
    Access,
    RegisterField,
    RegisterMap,
)
from dstar.rtl.mpc.axi import lite_ports

#: AXI's answers.
OKAY, SLVERR = 0, 2


def port_name(register: str, field: str) -> str:
    """Name of a field's port: ``control_start``."""
    return f"{register}_{field}".lower()


class RegisterBlock(wiring.Component):
    """The registers of a map behind an AXI4-Lite slave.

    Parameters
    ----------
    registers: the map.

    Members
    -------
    s_axil_*: the slave, 32 bits (:func:`~dstar.rtl.mpc.axi.lite_ports`).
    REGISTER_FIELD: for each field an input (READ) or an output (others).
    REGISTER_FIELD_set: for a CLEAR field, the bits to set (input).

    A PULSE field is high for the cycle in which its write is taken.  Writes honour byte strobes;
    an access to no register answers SLVERR and reads 0; the two lowest address bits are ignored.
    All fields are 0 after reset.  Latency: a cycle to the answer.  Throughput: an access a cycle
    in each direction.
    """

    def __init__(self, registers: RegisterMap) -> None:
        self.registers = registers
        members: dict[str, Any] = dict(lite_ports("s_axil", address_bits=registers.address_bits))
        for register in registers.values():
            for field in register.fields:
                name = port_name(register.name, field.name)
                members[name] = (In if field.access is Access.READ else Out)(field.width)
                if field.access is Access.CLEAR:
                    members[f"{name}_set"] = In(field.width)
        super().__init__(members)

    def elaborate(self, platform: Any) -> Module:
        """Write side, read side, a case each for every register."""
        m = Module()
        shift = REGISTER_BYTES.bit_length() - 1
        writing, reading = Signal(), Signal()
        m.d.comb += [
            writing.eq(
                (self.s_axil_awvalid & self.s_axil_wvalid)
                & (~self.s_axil_bvalid | self.s_axil_bready)
            ),
            self.s_axil_awready.eq(writing),
            self.s_axil_wready.eq(writing),
            reading.eq(self.s_axil_arvalid & (~self.s_axil_rvalid | self.s_axil_rready)),
            self.s_axil_arready.eq(~self.s_axil_rvalid | self.s_axil_rready),
        ]
        strobes = Cat(bit.replicate(8) for bit in self.s_axil_wstrb)
        word, known = Signal(REGISTER_BITS), Signal()
        write_known = Signal()
        with m.Switch(self.s_axil_araddr[shift:]):
            for register in self.registers.values():
                with m.Case(register.offset >> shift):
                    m.d.comb += known.eq(1)
                    for field in register.fields:
                        if field.access is not Access.PULSE:
                            port = getattr(self, port_name(register.name, field.name))
                            m.d.comb += word[field.low : field.low + field.width].eq(port)
        for register in self.registers.values():
            selected = Signal(name=f"write_{register.name.lower()}")
            m.d.comb += selected.eq(
                writing & (self.s_axil_awaddr[shift:] == register.offset >> shift)
            )
            with m.If(selected):
                m.d.comb += write_known.eq(1)
            for field in register.fields:
                self._field(m, port_name(register.name, field.name), field, selected, strobes)

        with m.If(writing):
            m.d.sync += [
                self.s_axil_bvalid.eq(1),
                self.s_axil_bresp.eq(Mux(write_known, OKAY, SLVERR)),
            ]
        with m.Elif(self.s_axil_bready):
            m.d.sync += self.s_axil_bvalid.eq(0)
        with m.If(reading):
            m.d.sync += [
                self.s_axil_rvalid.eq(1),
                self.s_axil_rdata.eq(word),
                self.s_axil_rresp.eq(Mux(known, OKAY, SLVERR)),
            ]
        with m.Elif(self.s_axil_rready):
            m.d.sync += self.s_axil_rvalid.eq(0)
        return m

    def _field(
        self, m: Module, name: str, field: RegisterField, selected: Signal, strobes: Value
    ) -> None:
        """What a write does to a field."""
        if field.access is Access.READ:
            return
        port = getattr(self, name)
        bits = slice(field.low, field.low + field.width)
        written, enabled = self.s_axil_wdata[bits], strobes[bits] & selected.replicate(field.width)
        if field.access is Access.PULSE:
            m.d.comb += port.eq(written & enabled)
        elif field.access is Access.WRITE:
            m.d.sync += port.eq((port & ~enabled) | (written & enabled))
        else:
            m.d.sync += port.eq((port & ~(written & enabled)) | getattr(self, f"{name}_set"))
