"""Drivers and model of the DMA bench: memory, buffer, transfers, programs."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Mapping
from typing import Any

import cocotb
from amaranth.hdl import Value
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, FallingEdge, RisingEdge

from dstar.rtl.mpc.bus import BusShape
from dstar.rtl.mpc.fetch import program_layout
from dstar.verif.benches.axi_memory import BusMonitor, Memory, attach
from dstar.verif.benches.memory_top import CLIENTS, INSTRUCTION_BITS

#: The lower half of the memory is read, the upper half written; so it is with the buffer.
HALF = 1 << 15

Transfer = dict[str, int]


class Bench:
    """The memory, the buffer as it should be, and the drivers."""

    def __init__(
        self, dut: Any, *, rate: float = 0.3, latency: int = 20, reset: Any = None
    ) -> None:
        settings = json.loads(os.environ["DSTAR_BUS"])
        self.shape = BusShape(**settings)
        self.dut = dut
        self.noise = random.Random(random.getrandbits(32))
        Clock(dut.clk, 2, unit="ns").start()
        self.word_bytes = self.shape.word_bits // 8
        self.words = 1 << self.shape.buffer_bits
        self.memory = Memory(2 * HALF, dut.clk, latency=latency, seed=random.getrandbits(32))
        attach(dut, "m_axi", self.memory, rate=rate, reset=reset, seed=random.getrandbits(32))
        self.bus = BusMonitor(dut, "m_axi", outstanding=self.shape.outstanding)
        self.done = {"load": 0, "store": 0}
        self.buffer: dict[int, bytes] = {}
        cocotb.start_soon(self._count())

    async def reset(self) -> None:
        """Reset the design, not the memory."""
        for name in ("load", "store", "program", "noise"):
            getattr(self.dut, f"{name}__valid").value = 0
        self.dut.instructions__ready.value = 1
        self.dut.stop.value = 0
        self.dut.rst.value = 1
        await ClockCycles(self.dut.clk, 3)
        self.dut.rst.value = 0
        await RisingEdge(self.dut.clk)
        self.done = dict.fromkeys(self.done, 0)

    async def _count(self) -> None:
        while True:
            await FallingEdge(self.dut.clk)
            if not int(self.dut.rst.value):
                for name in self.done:
                    self.done[name] += int(getattr(self.dut, f"{name}_done").value)

    async def send(self, name: str, layout: Any, fields: Mapping[str, int]) -> None:
        """Put one word into a stream."""
        word: Any = Value.cast(layout.const(fields))
        getattr(self.dut, f"{name}__payload").value = word.value
        getattr(self.dut, f"{name}__valid").value = 1
        while True:
            await FallingEdge(self.dut.clk)
            taken = int(getattr(self.dut, f"{name}__ready").value)
            await RisingEdge(self.dut.clk)
            if taken:
                break
        getattr(self.dut, f"{name}__valid").value = 0

    async def transfer(self, name: str, transfer: Transfer) -> None:
        await self.send(name, self.shape.transfer, transfer)

    async def until(self, what: Any, *, cycles: int = 20_000) -> None:
        """Wait for a condition."""
        for _ in range(cycles):
            await RisingEdge(self.dut.clk)
            if what():
                return
        raise AssertionError("it hangs")

    def random_transfer(self, name: str) -> Transfer:
        """Rows within one half of memory and buffer, often across a 4 KB boundary."""
        half = self.words // 2
        rows = self.noise.randint(1, 4)
        step = self.noise.randint(1, half // rows)
        length = self.noise.randint(1, step)
        span = (rows - 1) * step + length
        place = self.noise.randint(0, half - span)
        size = self.word_bytes
        room = HALF // size - length
        if rows > 1:
            stride = self.noise.randint(0, room // (rows - 1))
            room -= stride * (rows - 1)
        else:
            stride = self.noise.randint(0, 2**32 // size - 1)
        address = self.noise.randint(0, room)
        if self.noise.random() < 0.5:
            near = 4096 * self.noise.randint(1, HALF // 4096 - 1) // size
            address = min(room, max(0, near - self.noise.randint(0, length)))
        upper = name == "store"
        return {
            "address": address * size + upper * HALF,
            "stride": stride * size,
            "buffer": place,
            "step": step,
            "length": length,
            "rows": rows,
        }

    def apply(self, name: str, transfer: Transfer, memory: bytearray) -> None:
        """Do to the model what the DMA should do."""
        size = self.word_bytes
        for row in range(transfer["rows"]):
            for i in range(transfer["length"]):
                at = transfer["address"] + row * transfer["stride"] + i * size
                place = transfer["buffer"] + row * transfer["step"] + i
                if name == "load":
                    self.buffer[place] = bytes(memory[at : at + size])
                else:
                    memory[at : at + size] = self.buffer[place]

    def row(self, transfer: Transfer, number: int) -> Transfer:
        """One row as a transfer of its own."""
        address = transfer["address"] + number * transfer["stride"]
        place = transfer["buffer"] + number * transfer["step"]
        return {**transfer, "address": address, "buffer": place, "rows": 1}

    async def make_noise(self) -> None:
        """Read the buffer at random addresses, forever."""
        while True:
            self.dut.noise__payload.value = self.noise.randrange(self.words)
            self.dut.noise__valid.value = self.noise.random() < 0.7
            await RisingEdge(self.dut.clk)

    async def run_program(self, address: int, length: int, *, rate: float) -> list[bytes]:
        """Fetch a program; take instructions in a share ``1 - rate`` of the cycles."""
        program = program_layout(address_bits=self.shape.address_bits)
        cocotb.start_soon(self.send("program", program, {"address": address, "length": length}))
        received: list[bytes] = []
        for _ in range(20_000):
            await RisingEdge(self.dut.clk)
            self.dut.instructions__ready.value = self.noise.random() >= rate
            await FallingEdge(self.dut.clk)
            if int(self.dut.instructions__valid.value) and int(self.dut.instructions__ready.value):
                word = int(self.dut.instructions__payload.value)
                received.append(word.to_bytes(INSTRUCTION_BITS // 8, "little"))
            if len(received) == length:
                await RisingEdge(self.dut.clk)
                self.dut.instructions__ready.value = 0
                return received
        raise AssertionError("the fetch hangs")

    async def fill(self) -> None:
        """Load every word of the buffer."""
        half = self.words // 2
        for upper in (0, half):
            whole = {"address": 0, "stride": 0, "buffer": upper, "step": 0}
            whole |= {"length": half, "rows": 1}
            await self.transfer("load", whole)
            self.apply("load", whole, self.memory.data)
        await self.until(lambda: self.done["load"] == 2)
        self.done["load"] = 0

    async def rounds(self, count: int, each: int) -> None:
        """Loads into the lower half, stores from the upper half, and a program, all at once."""
        for _ in range(count):
            expected = bytearray(self.memory.data)
            jobs = {name: [self.random_transfer(name) for _ in range(each)] for name in self.done}
            for job in jobs["store"]:
                job["buffer"] += self.words // 2
            before = dict(self.done)
            tasks = [cocotb.start_soon(self._all(name, jobs[name])) for name in jobs]
            length = self.noise.randint(1, 40)
            alignment = max(self.shape.beat_bytes, 1)
            address = alignment * self.noise.randrange((HALF - 40 * 32) // alignment)
            received = await self.run_program(address, length, rate=self.noise.choice((0, 0.7)))
            for task in tasks:
                await task
            size = INSTRUCTION_BITS // 8
            assert b"".join(received) == self.memory.data[address : address + length * size]
            await self.until(
                lambda before=before: all(self.done[n] == before[n] + each for n in self.done)
            )
            for name in ("store", "load"):
                for job in jobs[name]:
                    self.apply(name, job, expected)
            assert self.memory.data == expected
            # The lower half's words become the upper half's: the loads are checked by storing them.
            await self.swap()
        assert self.bus.quiet
        for client in CLIENTS:
            assert int(getattr(self.dut, f"{client}_idle").value)
            assert not int(getattr(self.dut, f"{client}_error").value)

    async def _all(self, name: str, jobs: list[Transfer]) -> None:
        for job in jobs:
            await self.transfer(name, job)

    async def swap(self) -> None:
        """Store the lower half of the buffer, check it, and load it into the upper half."""
        half = self.words // 2
        whole = {"address": HALF, "stride": 0, "buffer": 0, "step": 0, "length": half, "rows": 1}
        before = dict(self.done)
        await self.transfer("store", whole)
        await self.until(lambda: self.done["store"] == before["store"] + 1)
        got = self.memory.data[HALF : HALF + half * self.word_bytes]
        assert got == b"".join(self.buffer[i] for i in range(half))
        whole["buffer"] = half
        await self.transfer("load", whole)
        self.apply("load", whole, self.memory.data)
        await self.until(lambda: self.done["load"] == before["load"] + 1)
