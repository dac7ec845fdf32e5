"""Operand memories of the MPU: two tiles of weights, two of slices, each loaded while read."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from dstar.gen.config import Config
from dstar.rtl.hierarchy import Shared


class PingPong(wiring.Component):
    """Bookkeeping of two buffers between one writer and one reader.

    Members
    -------
    loaded: the writer finished its buffer (pulse).  free: it may write on.
    release: the reader is done with its buffer (pulse).
    count: loaded buffers not yet released, 0..2.
    write_select, read_select: buffer in use on each side.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "loaded": In(1),
                "free": Out(1),
                "release": In(1),
                "count": Out(2),
                "write_select": Out(1),
                "read_select": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Two counters and two pointers."""
        m = Module()
        free = Signal(2, init=2)
        m.d.comb += self.free.eq(free != 0)
        m.d.sync += [
            free.eq(free + self.release - self.loaded),
            self.count.eq(self.count + self.loaded - self.release),
            self.write_select.eq(self.write_select ^ self.loaded),
            self.read_select.eq(self.read_select ^ self.release),
        ]
        return m


class WeightColumn(Shared):
    """Weights of one cluster column: a memory with a read port a lane.

    A beat needs ``lanes`` weight rows at unrelated addresses.  The memory is replicated once a
    lane (each copy one write, one read port; the loader writes all copies together), so any four
    rows can be read in any cycle: there is no conflict to arbitrate, and no scheduling
    constraint.  The copies cost ``lanes`` times a tile's bytes: 4 x 8 KB at ``paper``, twice for
    double buffering.

    Columns form a systolic chain: the *addresses* move right, one register a column, so the
    weights come out skewed as the array needs them without a triangle of weight registers.

    Parameters
    ----------
    channels: rows that are written at once, a power of two; a word of the memory holds them, and
        a selection behind it finds the one that a lane reads.

    Members
    -------
    write, write_address, write_data: loader, as skewed as the addresses; counts words.
    address_i / address_o: ``lanes`` read addresses, one cycle apart.
    data: the weights at the addresses of the previous cycle, in column, then lane order.
    """

    def __init__(self, cfg: Config, *, channels: int = 1) -> None:
        self.cfg = cfg
        self.channels = channels
        cluster, bits = cfg.array.cluster, cfg.numeric.weight_bits
        address = data.ArrayLayout(1 + cfg.numeric.channel_bits, cfg.array.lanes)
        super().__init__(
            {
                "write": In(1),
                "write_address": In(1 + cfg.numeric.channel_bits - self.select_bits),
                "write_data": In(channels * cluster * bits),
                "address_i": In(address),
                "address_o": Out(address),
                "data": Out(cluster * cfg.array.lanes * bits),
            }
        )

    @property
    def select_bits(self) -> int:
        """Bits of an address that choose a row of a word."""
        return self.channels.bit_length() - 1

    @property
    def module_name(self) -> str:
        """Verilog module name."""
        return "weight_column"

    def elaborate(self, platform: Any) -> Module:
        """Replicated memory and the address register."""
        m = Module()
        array, bits = self.cfg.array, self.cfg.numeric.weight_bits
        chain = Signal(self.address_i.shape(), reset_less=True)
        m.d.sync += chain.eq(self.address_i)
        words = []
        for lane in range(array.lanes):
            m.submodules[f"copy_{lane}"] = memory = Memory(
                shape=len(self.write_data), depth=1 << len(self.write_address), init=[]
            )
            write, read = memory.write_port(), memory.read_port()
            m.d.comb += [
                write.en.eq(self.write),
                write.addr.eq(self.write_address),
                write.data.eq(self.write_data),
                read.addr.eq(self.address_i[lane][self.select_bits :]),
            ]
            # The chain's register holds the address whose word the memory shows.
            row = chain[lane][: self.select_bits] if self.select_bits else 0
            words.append(read.data.word_select(row, array.cluster * bits))
        m.d.comb += [
            self.address_o.eq(chain),
            self.data.eq(
                Cat(*(word.word_select(c, bits) for c in range(array.cluster) for word in words))
            ),
        ]
        return m


class SliceBank(Shared):
    """Slices of one lane, with their metadata: one write, one read port.

    The slices of a tile lie in issue order, slice ``i`` in bank ``i mod lanes``; a window of
    ``lanes`` consecutive slices therefore touches every bank once, wherever it begins.

    Members
    -------
    write, write_address, write_data / address, data (of the previous cycle's address).
    """

    def __init__(self, cfg: Config, *, word_bits: int, address_bits: int) -> None:
        self.word_bits = word_bits
        self.address_bits = address_bits
        super().__init__(
            {
                "write": In(1),
                "write_address": In(address_bits),
                "write_data": In(word_bits),
                "address": In(address_bits),
                "data": Out(word_bits),
            }
        )

    @property
    def module_name(self) -> str:
        """Verilog module name."""
        return "slice_bank"

    def elaborate(self, platform: Any) -> Module:
        """One memory."""
        m = Module()
        m.submodules.memory = memory = Memory(
            shape=self.word_bits, depth=1 << self.address_bits, init=[]
        )
        write, read = memory.write_port(), memory.read_port()
        m.d.comb += [
            write.en.eq(self.write),
            write.addr.eq(self.write_address),
            write.data.eq(self.write_data),
            read.addr.eq(self.address),
            self.data.eq(read.data),
        ]
        return m
