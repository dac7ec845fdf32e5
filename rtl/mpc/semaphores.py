"""Counting semaphores that order the engines' commands."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Const, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out


def client_signature(count: int) -> wiring.Signature:
    """How an engine waits, as seen by the engine.

    ``wait``: the semaphores that its next command waits for.  ``request``: it has a command.
    ``grant``: all of them were above zero and each is now one less; the command starts.
    """
    return wiring.Signature(
        {
            "wait": Out(count),
            "request": Out(1),
            "grant": In(1),
        }
    )


class Semaphores(wiring.Component):
    """``count`` counters from 0 to ``limit``, all 0 after reset.

    Parameters
    ----------
    count: semaphores.  limit: their largest value.  clients: engines that wait.
    signals: sources of signals; an engine that signals at two times has two.

    Members
    -------
    clients: array of :func:`client_signature`.
    signals: from each source the semaphores to raise by one in this cycle.
    clear: sets all to 0, whatever else happens in this cycle.
    overflow: a bit for each semaphore that was raised beyond ``limit`` in the last cycle; it
        keeps ``limit``.  The core treats it as an error: a lost token would become a deadlock.
    values: the counters, for inspection.

    Latency: ``grant`` comes in the cycle of the request; what is signalled counts from the next
    cycle.  Of several clients that wait for one semaphore in one cycle the lowest goes first, even
    when there are tokens for all.  A command without waits is granted at once.
    """

    def __init__(self, *, count: int, limit: int, clients: int, signals: int) -> None:
        for name, size in (("count", count), ("limit", limit), ("clients", clients)):
            if size < 1:
                raise ValueError(f"{name} must be at least 1, got {size}")
        self.count = count
        self.limit = limit
        super().__init__(
            {
                "clients": In(client_signature(count)).array(clients),
                "signals": In(count).array(signals),
                "clear": In(1),
                "overflow": Out(count),
                "values": Out(limit.bit_length()).array(count),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Grants in client order, then one adder a semaphore."""
        m = Module()
        present = Signal(self.count)
        m.d.comb += [present[i].eq(value != 0) for i, value in enumerate(self.values)]
        free: Any = Const(~0, self.count)
        taken: Any = Const(0, self.count)
        for number, client in enumerate(self.clients):
            grant = Signal(name=f"grant_{number}")
            m.d.comb += [
                grant.eq(client.request & ~(client.wait & ~(present & free)).any()),
                client.grant.eq(grant),
            ]
            mask = Signal(self.count, name=f"taken_{number}")
            m.d.comb += mask.eq(client.wait & grant.replicate(self.count))
            free = free & ~mask
            taken = taken | mask
        for i, value in enumerate(self.values):
            total = Signal(range(self.limit + len(self.signals) + 1), name=f"total_{i}")
            raised = sum((signal[i] for signal in self.signals), Const(0, 1))
            m.d.comb += total.eq(value + raised - taken[i])
            beyond = total > self.limit
            m.d.sync += self.overflow[i].eq(beyond & ~self.clear)
            with m.If(self.clear):
                m.d.sync += value.eq(0)
            with m.Elif(beyond):
                m.d.sync += value.eq(self.limit)
            with m.Else():
                m.d.sync += value.eq(total)
        return m
