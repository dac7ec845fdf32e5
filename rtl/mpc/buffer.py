"""Unified buffer: single-port banks behind a crossbar of read and write clients."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Signal, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from dstar.rtl.hierarchy import Shared, shared
from dstar.rtl.mpc.arbiter import RoundRobin
from dstar.rtl.mpc.crossbar import choose, crossbars

#: Width of a client's conflict counter, which stays at its largest value.
COUNTER_BITS = 32


def write_layout(*, width: int, address_bits: int) -> data.StructLayout:
    """A word and where to write it."""
    return data.StructLayout({"address": unsigned(address_bits), "data": unsigned(width)})


def read_signature(*, width: int, address_bits: int) -> wiring.Signature:
    """A read client's port, as seen by the client.

    ``address``: stream of addresses.  ``data``, ``valid``: the word, for one cycle, in the cycle
    after its address was taken; the client must have room for it.
    """
    return wiring.Signature(
        {
            "address": Out(stream.Signature(address_bits)),
            "data": In(width),
            "valid": In(1),
        }
    )


class BufferBank(Shared):
    """One single-port memory: a read or a write a cycle.

    Members
    -------
    enable, write, address, write_data: the access; without ``write`` a read.
    data: the word read, from the next cycle until the next read.

    The one address serves a write and a read enable that exclude each other: the shape that Yosys
    merges into one port of a block RAM, and that a single-port SRAM macro replaces pin by pin.
    """

    def __init__(self, *, width: int, depth: int) -> None:
        self.width = width
        self.depth = depth
        super().__init__(
            {
                "enable": In(1),
                "write": In(1),
                "address": In(range(depth)),
                "write_data": In(width),
                "data": Out(width),
            }
        )

    @property
    def module_name(self) -> str:
        """Verilog module name."""
        return f"buffer_bank_{self.width}x{self.depth}"

    def elaborate(self, platform: Any) -> Module:
        """One memory."""
        m = Module()
        m.submodules.memory = memory = Memory(shape=self.width, depth=self.depth, init=[])
        write, read = memory.write_port(), memory.read_port()
        m.d.comb += [
            write.addr.eq(self.address),
            write.data.eq(self.write_data),
            write.en.eq(self.enable & self.write),
            read.addr.eq(self.address),
            read.en.eq(self.enable & ~self.write),
            self.data.eq(read.data),
        ]
        return m


class BufferTurn(Shared):
    """A bank with the choice among its clients.

    Members
    -------
    requests: a bit for each client that wants this bank, readers first.
    rows: of each client's word.  write_data: the word of the writer that is granted.
    grant: whose access is taken in this cycle; one-hot, or none.
    data: the word read, from the next cycle until the next read.
    """

    def __init__(self, *, width: int, depth: int, readers: int, writers: int) -> None:
        self.width, self.depth = width, depth
        self.readers, self.writers = readers, writers
        clients = readers + writers
        super().__init__(
            {
                "requests": In(clients),
                "rows": In(data.ArrayLayout(depth.bit_length() - 1, clients)),
                "write_data": In(width),
                "grant": Out(clients),
                "data": Out(width),
            }
        )

    @property
    def module_name(self) -> str:
        """Verilog module name."""
        return f"buffer_turn_{self.width}x{self.depth}_{self.readers}r{self.writers}w"

    def elaborate(self, platform: Any) -> Module:
        """Arbiter, selection of a row by its one-hot grants, memory."""
        m = Module()
        turn = RoundRobin(count=self.readers + self.writers)
        bank = BufferBank(width=self.width, depth=self.depth)
        m.submodules.turn, m.submodules.bank = shared(platform, turn), shared(platform, bank)
        m.d.comb += [
            turn.requests.eq(self.requests),
            self.grant.eq(turn.grant),
            bank.enable.eq(self.requests.any()),
            bank.write.eq(turn.grant[self.readers :].any()),
            bank.address.eq(choose(turn.grant, self.rows)),
            bank.write_data.eq(self.write_data),
            self.data.eq(bank.data),
        ]
        return m


class UnifiedBuffer(wiring.Component):
    """``banks x bank_words`` words behind ports of their own for each client (paper, section 4.2).

    Parameters
    ----------
    width: bits of a word.
    banks: single-port memories, 1 to 64.
    bank_words: words of each, a power of two, at least 2.
    readers, writers: number of clients that read and that write.

    Members
    -------
    readers: array of :func:`read_signature`.
    writers: array of streams of :func:`write_layout`.
    conflicts: for each client, readers first, cycles in which it had to wait for its bank.
    clear: sets ``conflicts`` to 0.
    fault: a bit for each client whose access in the last cycle had an address beyond the last
        bank: it was taken, wrote nothing and read zeros.

    Word ``a`` lies in bank ``a // bank_words``, so streams in different banks never meet.

    Latency: an address is taken in the cycle in which its bank is free; data follow a cycle later.
    A write is readable in the next cycle.  Throughput: an access a cycle and bank; a client has
    one access a cycle.

    Each bank grants in turns (:class:`~dstar.rtl.mpc.arbiter.RoundRobin`).  With fixed priorities
    an engine that reads every cycle would shut out the one that feeds it or empties it; in turns,
    every access waits at most for one of each other client, which also bounds how long the memory
    bus waits for the load engine.
    """

    def __init__(
        self, *, width: int, banks: int, bank_words: int, readers: int, writers: int
    ) -> None:
        if not 1 <= banks <= 64:
            raise ValueError(f"banks must be from 1 to 64, got {banks}")
        if bank_words < 2 or bank_words & (bank_words - 1):
            raise ValueError(f"bank_words must be a power of two, at least 2, got {bank_words}")
        self.width = width
        self.banks = banks
        self.bank_words = bank_words
        self.address_bits = (banks * bank_words - 1).bit_length()
        port = read_signature(width=width, address_bits=self.address_bits)
        words = stream.Signature(write_layout(width=width, address_bits=self.address_bits))
        clients = readers + writers
        super().__init__(
            {
                "readers": In(port).array(readers),
                "writers": In(words).array(writers),
                "conflicts": Out(COUNTER_BITS).array(clients),
                "clear": In(1),
                "fault": Out(clients),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """A choice for each bank, a selection for each reader."""
        m = Module()
        row_bits = self.bank_words.bit_length() - 1
        readers, writers = list(self.readers), list(self.writers)
        requests = [*(port.address for port in readers), *writers]
        addresses = [port.address.payload for port in readers]
        addresses += [port.payload.address for port in writers]

        outside = Signal(len(requests))
        m.d.comb += [
            outside[i].eq(address >= self.banks * self.bank_words)
            for i, address in enumerate(addresses)
        ]
        turns = []
        for number in range(self.banks):
            turn = BufferTurn(
                width=self.width,
                depth=self.bank_words,
                readers=len(readers),
                writers=len(writers),
            )
            m.submodules[f"bank_{number}"] = shared(platform, turn)
            wanted = (
                request.valid & ~outside[i] & (addresses[i][row_bits:] == number)
                for i, request in enumerate(requests)
            )
            m.d.comb += [
                turn.requests.eq(Cat(*wanted)),
                turn.rows.eq(Cat(*(address[:row_bits] for address in addresses))),
            ]
            turns.append(turn)
        grants = [turn.grant for turn in turns]
        written = crossbars(
            m,
            platform,
            "write",
            [grant[len(readers) :] for grant in grants],
            [writer.payload.data for writer in writers],
            self.width,
        )
        m.d.comb += [turn.write_data.eq(word) for turn, word in zip(turns, written, strict=True)]

        faults = Signal(len(requests))
        for i, request in enumerate(requests):
            waiting = Signal(name=f"waiting_{i}")
            m.d.comb += [
                request.ready.eq(outside[i] | Cat(grant[i] for grant in grants).any()),
                faults[i].eq(request.valid & outside[i]),
                waiting.eq(request.valid & ~request.ready),
            ]
            count = self.conflicts[i]
            with m.If(self.clear):
                m.d.sync += count.eq(0)
            with m.Elif(waiting & ~count.all()):
                m.d.sync += count.eq(count + 1)
        m.d.sync += self.fault.eq(faults)

        sources = []
        for i, port in enumerate(readers):
            source = Signal(self.banks, name=f"source_{i}", reset_less=True)
            m.d.sync += [
                source.eq(Cat(grant[i] for grant in grants)),
                port.valid.eq(port.address.valid & port.address.ready),
            ]
            sources.append(source)
        words = crossbars(m, platform, "read", sources, [turn.data for turn in turns], self.width)
        m.d.comb += [port.data.eq(word) for port, word in zip(readers, words, strict=True)]
        return m
