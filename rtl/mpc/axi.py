"""AXI4 as the core speaks it: channel payloads, and the flat ports of a master and a slave.

Inside, every channel is a stream; only a top-level component has ports with AXI's own names.
All bursts are INCR, of full-width beats, and never cross a 4 KB boundary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amaranth.hdl import Module, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

#: Bytes of the address range that a burst must stay in.
BOUNDARY = 4096
#: Widths of AXI's own fields.
LENGTH_BITS = 8
RESPONSE_BITS = 2
#: AxCACHE of normal, non-cacheable, bufferable memory, and the code of an INCR burst.
CACHE = 0b0011
INCR = 0b01


def address_layout(*, address_bits: int, id_bits: int) -> data.StructLayout:
    """A burst: byte address, beats less one, and the client it belongs to."""
    return data.StructLayout(
        {
            "address": unsigned(address_bits),
            "length": unsigned(LENGTH_BITS),
            "id": unsigned(id_bits),
        }
    )


def read_layout(*, data_bits: int, id_bits: int) -> data.StructLayout:
    """A beat read; bit 1 of ``response`` tells an error."""
    return data.StructLayout(
        {
            "data": unsigned(data_bits),
            "response": unsigned(RESPONSE_BITS),
            "last": unsigned(1),
            "id": unsigned(id_bits),
        }
    )


def write_layout(*, data_bits: int) -> data.StructLayout:
    """A beat written; ``strobe`` has a bit for each byte."""
    return data.StructLayout(
        {"data": unsigned(data_bits), "strobe": unsigned(data_bits // 8), "last": unsigned(1)}
    )


def read_signature(*, address_bits: int, data_bits: int, id_bits: int) -> wiring.Signature:
    """AR and R as a master sees them."""
    return wiring.Signature(
        {
            "address": Out(
                stream.Signature(address_layout(address_bits=address_bits, id_bits=id_bits))
            ),
            "data": In(stream.Signature(read_layout(data_bits=data_bits, id_bits=id_bits))),
        }
    )


def write_signature(*, address_bits: int, data_bits: int) -> wiring.Signature:
    """AW, W and B as a master with one ID sees them."""
    return wiring.Signature(
        {
            "address": Out(stream.Signature(address_layout(address_bits=address_bits, id_bits=1))),
            "data": Out(stream.Signature(write_layout(data_bits=data_bits))),
            "response": In(stream.Signature(RESPONSE_BITS)),
        }
    )


def _address_ports(letter: str, address_bits: int, id_bits: int) -> dict[str, Any]:
    widths = {"id": id_bits, "addr": address_bits, "len": LENGTH_BITS, "size": 3, "burst": 2}
    widths |= {"cache": 4, "prot": 3, "valid": 1}
    ports = {f"a{letter}{name}": Out(width) for name, width in widths.items()}
    return {**ports, f"a{letter}ready": In(1)}


def master_ports(
    prefix: str, *, address_bits: int, data_bits: int, id_bits: int
) -> dict[str, wiring.Member]:
    """Members of a component that is an AXI4 master, named ``PREFIX_araddr`` and so on."""
    ports = {
        **_address_ports("r", address_bits, id_bits),
        "rid": In(id_bits),
        "rdata": In(data_bits),
        "rresp": In(RESPONSE_BITS),
        "rlast": In(1),
        "rvalid": In(1),
        "rready": Out(1),
        **_address_ports("w", address_bits, 1),
        "wdata": Out(data_bits),
        "wstrb": Out(data_bits // 8),
        "wlast": Out(1),
        "wvalid": Out(1),
        "wready": In(1),
        "bid": In(1),
        "bresp": In(RESPONSE_BITS),
        "bvalid": In(1),
        "bready": Out(1),
    }
    return {f"{prefix}_{name}": member for name, member in ports.items()}


def forward_ports(m: Module, outer: Any, inner: Any, ports: Mapping[str, wiring.Member]) -> None:
    """Make flat ports of a component those of the same names of a part of it."""
    for name, member in ports.items():
        outside, inside = getattr(outer, name), getattr(inner, name)
        m.d.comb += inside.eq(outside) if member.flow == In else outside.eq(inside)


def connect_master(m: Module, ports: Mapping[str, Any], *, read: Any, write: Any) -> None:
    """Drive a master's flat ports from its channels.

    ``ports``: AXI's own name (``araddr``) to the signal.  ``read``, ``write``: interfaces of
    :func:`read_signature` and :func:`write_signature` that belong to the master's units.
    """
    size = (len(ports["rdata"]) // 8).bit_length() - 1
    for letter, address in (("r", read.address), ("w", write.address)):
        m.d.comb += [
            ports[f"a{letter}id"].eq(address.payload.id),
            ports[f"a{letter}addr"].eq(address.payload.address),
            ports[f"a{letter}len"].eq(address.payload.length),
            ports[f"a{letter}size"].eq(size),
            ports[f"a{letter}burst"].eq(INCR),
            ports[f"a{letter}cache"].eq(CACHE),
            ports[f"a{letter}prot"].eq(0),
            ports[f"a{letter}valid"].eq(address.valid),
            address.ready.eq(ports[f"a{letter}ready"]),
        ]
    m.d.comb += [
        read.data.payload.id.eq(ports["rid"]),
        read.data.payload.data.eq(ports["rdata"]),
        read.data.payload.response.eq(ports["rresp"]),
        read.data.payload.last.eq(ports["rlast"]),
        read.data.valid.eq(ports["rvalid"]),
        ports["rready"].eq(read.data.ready),
        ports["wdata"].eq(write.data.payload.data),
        ports["wstrb"].eq(write.data.payload.strobe),
        ports["wlast"].eq(write.data.payload.last),
        ports["wvalid"].eq(write.data.valid),
        write.data.ready.eq(ports["wready"]),
        write.response.payload.eq(ports["bresp"]),
        write.response.valid.eq(ports["bvalid"]),
        ports["bready"].eq(write.response.ready),
    ]


def lite_ports(prefix: str, *, address_bits: int) -> dict[str, wiring.Member]:
    """Members of a component that is a 32-bit AXI4-Lite slave: ``PREFIX_awaddr`` and so on."""
    ports = {
        "awaddr": In(address_bits),
        "awprot": In(3),
        "awvalid": In(1),
        "awready": Out(1),
        "wdata": In(32),
        "wstrb": In(4),
        "wvalid": In(1),
        "wready": Out(1),
        "bresp": Out(RESPONSE_BITS),
        "bvalid": Out(1),
        "bready": In(1),
        "araddr": In(address_bits),
        "arprot": In(3),
        "arvalid": In(1),
        "arready": Out(1),
        "rdata": Out(32),
        "rresp": Out(RESPONSE_BITS),
        "rvalid": Out(1),
        "rready": In(1),
    }
    return {f"{prefix}_{name}": member for name, member in ports.items()}
