"""A memory with one write port and one read port that can hold its word."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from dstar.rtl.hierarchy import Shared


class Store(Shared):
    """``depth`` words of ``width`` bits.

    Members
    -------
    write, write_address, write_data: write a word.
    enable, address: read a word; ``data`` shows it from the next cycle until the next ``enable``.

    A word may be read one cycle after it was written.
    """

    def __init__(self, *, width: int, depth: int) -> None:
        self.width = width
        self.depth = depth
        address = range(max(2, depth))
        super().__init__(
            {
                "write": In(1),
                "write_address": In(address),
                "write_data": In(width),
                "enable": In(1),
                "address": In(address),
                "data": Out(width),
            }
        )

    @property
    def module_name(self) -> str:
        """Verilog module name."""
        return f"store_{self.width}x{self.depth}"

    def elaborate(self, platform: Any) -> Module:
        """One memory."""
        m = Module()
        m.submodules.memory = memory = Memory(shape=self.width, depth=max(2, self.depth), init=[])
        write, read = memory.write_port(), memory.read_port()
        m.d.comb += [
            write.en.eq(self.write),
            write.addr.eq(self.write_address),
            write.data.eq(self.write_data),
            read.en.eq(self.enable),
            read.addr.eq(self.address),
            self.data.eq(read.data),
        ]
        return m
