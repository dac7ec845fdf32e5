"""Several read clients on one AXI read port."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from dstar.rtl.mpc.bus import BusShape


class ReadMux(wiring.Component):
    """Joins the bursts of ``clients`` and hands beats back by their ID.

    Parameters
    ----------
    shape: the bus.  clients: number of clients, at most ``2**shape.id_bits``.

    Members
    -------
    clients: array of :attr:`~dstar.rtl.mpc.bus.BusShape.read`; client ``i`` must use the ID ``i``.
    axi: :attr:`~dstar.rtl.mpc.bus.BusShape.read`.

    The lowest client that asks goes first and keeps the port until its address is taken.  A client
    before the last must therefore limit itself, as the instruction fetch does by its room.
    Latency: none.
    """

    def __init__(self, shape: BusShape, *, clients: int) -> None:
        if not 1 <= clients <= 1 << shape.id_bits:
            raise ValueError(f"clients must be from 1 to {1 << shape.id_bits}, got {clients}")
        super().__init__({"clients": In(shape.read).array(clients), "axi": Out(shape.read)})

    def elaborate(self, platform: Any) -> Module:
        """Choice of an address, distribution of the beats."""
        m = Module()
        clients, axi = list(self.clients), self.axi
        owner, held = Signal(range(max(2, len(clients)))), Signal()
        chosen: Any = len(clients) - 1
        for number in reversed(range(len(clients) - 1)):
            chosen = Mux(clients[number].address.valid, number, chosen)
        select = Signal.like(owner)
        m.d.comb += select.eq(Mux(held, owner, chosen))
        m.d.sync += [owner.eq(select), held.eq(axi.address.valid & ~axi.address.ready)]
        for number, client in enumerate(clients):
            with m.If(select == number):
                m.d.comb += [
                    axi.address.payload.eq(client.address.payload),
                    axi.address.valid.eq(client.address.valid),
                    client.address.ready.eq(axi.address.ready),
                ]
            m.d.comb += client.data.payload.eq(axi.data.payload)
            with m.If(axi.data.payload.id == number):
                m.d.comb += [
                    client.data.valid.eq(axi.data.valid),
                    axi.data.ready.eq(client.data.ready),
                ]
        return m
