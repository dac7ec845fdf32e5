"""Round-robin choice among requests."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib.wiring import In, Out

from dstar.rtl.hierarchy import Shared


def lowest(value: Value) -> Value:
    """``value`` with only its lowest set bit left."""
    return value & (~value + 1)[: len(value)]


class RoundRobin(Shared):
    """Grants one of ``count`` requests a cycle, in turns.

    Members
    -------
    requests: a bit for each client.  grant: at most one of them, in the same cycle.

    The client after the last one granted comes first, so a request that stands waits for at most
    ``count - 1`` others.
    """

    def __init__(self, *, count: int) -> None:
        self.count = count
        super().__init__({"requests": In(count), "grant": Out(count)})

    @property
    def module_name(self) -> str:
        """Verilog module name."""
        return f"round_robin_{self.count}"

    def elaborate(self, platform: Any) -> Module:
        """The lowest request above the last one granted, else the lowest of all."""
        m = Module()
        above = Signal(self.count)
        later = self.requests & above
        m.d.comb += self.grant.eq(Mux(later.any(), lowest(later), lowest(self.requests)))
        with m.If(self.requests.any()):
            # Clears the bits up to the one granted.
            m.d.sync += above.eq(~(self.grant | (self.grant - 1)))
        return m
