"""Memory and bus monitor for benches with an AXI4 master."""

from __future__ import annotations

import itertools
import random
import warnings
from collections.abc import Iterator
from typing import Any

import cocotb
from cocotb.triggers import ClockCycles, FallingEdge

with warnings.catch_warnings():
    # cocotbext-axi 0.1.28 still speaks cocotb's older dialect.
    warnings.simplefilter("ignore", DeprecationWarning)
    from cocotbext.axi import AxiBus, AxiSlave


class Memory:
    """Bytes behind the bus, some of which answer with an error.

    ``bad``: addresses (of any byte of a beat) that fail.  ``latency``: most cycles that a beat
    takes, drawn for one beat in eight.
    """

    def __init__(self, size: int, clock: Any, *, latency: int, seed: int) -> None:
        self.noise = random.Random(seed)
        self.data = bytearray(self.noise.randbytes(size))
        self.clock = clock
        self.latency = latency
        self.bad: set[int] = set()

    async def _access(self, address: int, length: int) -> None:
        if self.latency and self.noise.random() < 0.125:
            await ClockCycles(self.clock, self.noise.randint(1, self.latency))
        if self.bad and not self.bad.isdisjoint(range(address, address + length)):
            raise OSError(f"no memory at {address:#x}")

    async def read(self, address: int, length: int) -> bytes:
        """A beat read."""
        await self._access(address, length)
        assert address + length <= len(self.data), f"read beyond the memory, {address:#x}"
        return bytes(self.data[address : address + length])

    async def write(self, address: int, data: bytes) -> None:
        """Bytes written: those of a beat whose strobes are set."""
        await self._access(address, len(data))
        assert address + len(data) <= len(self.data), f"write beyond the memory, {address:#x}"
        self.data[address : address + len(data)] = data


def pauses(rate: float, seed: int) -> Iterator[bool]:
    """Cycles in which a channel rests."""
    noise = random.Random(seed)
    return (noise.random() < rate for _ in itertools.count())


def attach(dut: Any, prefix: str, memory: Memory, *, rate: float, reset: Any, seed: int) -> None:
    """A memory on a master's ports; each channel rests in a share ``rate`` of the cycles."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        slave = AxiSlave(AxiBus.from_prefix(dut, prefix), dut.clk, reset, target=memory)
    if rate:
        channels = (
            slave.write_if.aw_channel,
            slave.write_if.w_channel,
            slave.write_if.b_channel,
            slave.read_if.ar_channel,
            slave.read_if.r_channel,
        )
        for number, channel in enumerate(channels):
            channel.set_pause_generator(pauses(rate, seed + number))


#: What must not change while a word is offered.
PAYLOADS = {
    "ar": ("arid", "araddr", "arlen", "arsize", "arburst"),
    "aw": ("awid", "awaddr", "awlen", "awsize", "awburst"),
    "w": ("wdata", "wstrb", "wlast"),
}


class BusMonitor:
    """Checks AXI's rules on a master's ports and counts what passes.

    Checked: an offered word stays as it is until taken; no burst crosses 4 KB; as many data beats
    as announced, ``last`` on the last; no more than ``outstanding`` bursts on the way.

    ``reads``, ``writes``: bursts as (id, address, beats).  ``read_open``, ``write_open``: bursts
    on the way.  ``read_waits``: cycles in which R was offered and not taken.
    """

    def __init__(self, dut: Any, prefix: str, *, outstanding: int) -> None:
        self.dut = dut
        self.prefix = prefix
        self.outstanding = outstanding
        self.reads: list[tuple[int, int, int]] = []
        self.writes: list[tuple[int, int, int]] = []
        self.read_open: dict[int, int] = {}
        self.write_open = 0
        self.announced: list[int] = []
        self.written: list[int] = []
        self.beat = 0
        self.read_beats = self.read_waits = self.most_open = 0
        cocotb.start_soon(self._watch())

    def _value(self, name: str) -> int:
        return int(getattr(self.dut, f"{self.prefix}_{name}").value)

    def _moves(self, channel: str) -> bool:
        return bool(self._value(f"{channel}valid") and self._value(f"{channel}ready"))

    def _burst(self, letter: str) -> tuple[int, int, int]:
        address, beats = self._value(f"a{letter}addr"), self._value(f"a{letter}len") + 1
        size = 1 << self._value(f"a{letter}size")
        assert size * 8 == len(getattr(self.dut, f"{self.prefix}_wdata"))
        assert address % size == 0, f"unaligned burst at {address:#x}"
        assert address // 4096 == (address + beats * size - 1) // 4096, f"4 KB at {address:#x}"
        return self._value(f"a{letter}id"), address, beats

    @property
    def quiet(self) -> bool:
        """Whether nothing is on the way."""
        open_writes = self.write_open or self.announced or self.written or self.beat
        return not any(self.read_open.values()) and not open_writes

    async def _watch(self) -> None:
        offered: dict[str, tuple[int, ...]] = {}
        while True:
            await FallingEdge(self.dut.clk)
            if int(self.dut.rst.value):
                offered.clear()
                self.read_open.clear()
                self.announced.clear()
                self.written.clear()
                self.write_open = self.beat = 0
                continue
            for channel, names in PAYLOADS.items():
                if not self._value(f"{channel}valid"):
                    assert channel not in offered, f"{channel} was withdrawn"
                    continue
                payload = tuple(self._value(name) for name in names)
                assert offered.get(channel, payload) == payload, f"{channel} changed"
                if self._value(f"{channel}ready"):
                    offered.pop(channel, None)
                else:
                    offered[channel] = payload
            self._count()

    def _count(self) -> None:
        if self._moves("ar"):
            self.reads.append(self._burst("r"))
            client = self.reads[-1][0]
            self.read_open[client] = self.read_open.get(client, 0) + 1
            assert self.read_open[client] <= self.outstanding
            self.most_open = max(self.most_open, self.read_open[client])
        if self._moves("aw"):
            self.writes.append(self._burst("w"))
            self.announced.append(self.writes[-1][2])
            self.write_open += 1
            assert self.write_open <= self.outstanding
        if self._moves("w"):
            self.beat += 1
            if self._value("wlast"):
                self.written.append(self.beat)
                self.beat = 0
        # Data may come before their address.
        while self.announced and self.written:
            assert self.written.pop(0) == self.announced.pop(0), "burst of another length"
        if self._moves("b"):
            self.write_open -= 1
        self.read_beats += self._moves("r")
        self.read_waits += self._value("rvalid") and not self._value("rready")
        if self._moves("r") and self._value("rlast"):
            self.read_open[self._value("rid")] -= 1
