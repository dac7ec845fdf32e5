# amaranth: UnusedElaboratable=no
"""Unified buffer: traffic against a model, fairness, faults, the shape of its memories."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from amaranth.sim import Simulator

from dstar.gen.config import PRESETS
from dstar.gen.library import VerilogLibrary
from dstar.rtl.mpc.access import BufferReader
from dstar.rtl.mpc.buffer import COUNTER_BITS, BufferBank, UnifiedBuffer

WIDTH = 12


def simulate(dut: Any, bench: Callable[[Any], Any]) -> None:
    simulation = Simulator(dut)
    simulation.add_clock(1e-6)
    simulation.add_testbench(bench)
    simulation.run()


class Traffic:
    """Random accesses by all clients, each checked in the cycle in which it is taken."""

    def __init__(self, dut: UnifiedBuffer, *, seed: int, rate: float) -> None:
        self.dut = dut
        self.noise = random.Random(seed)
        self.rate = rate
        self.words = dut.banks * dut.bank_words
        self.readers = list(dut.readers)
        self.writers = list(dut.writers)
        self.streams = [*(port.address for port in self.readers), *self.writers]
        self.memory: dict[int, int] = {}
        self.wanted: list[int | None] = [None] * len(self.streams)
        self.data = [0] * len(self.streams)
        self.waits = [0] * len(self.streams)
        self.conflicts = [0] * len(self.streams)
        self.expected: list[int | None] = [None] * len(self.readers)

    def address(self) -> int:
        """Mostly in the first bank, so that clients meet; sometimes beyond the last."""
        outside = self.noise.random() < 0.03 and self.words < 1 << self.dut.address_bits
        if outside:
            return self.noise.randrange(self.words, 1 << self.dut.address_bits)
        busy = self.noise.random() < 0.5
        return self.noise.randrange(self.dut.bank_words if busy else self.words)

    def request(self, ctx: Any) -> None:
        for i, stream in enumerate(self.streams):
            if self.wanted[i] is None and self.noise.random() < self.rate:
                self.wanted[i] = self.address()
                self.data[i] = self.noise.getrandbits(WIDTH)
            ctx.set(stream.valid, self.wanted[i] is not None)
            if i < len(self.readers):
                ctx.set(stream.payload, self.wanted[i] or 0)
            else:
                ctx.set(stream.payload, {"address": self.wanted[i] or 0, "data": self.data[i]})

    def check(self, ctx: Any) -> int:
        """Handshakes of this cycle; returns the faults to see in the next one."""
        for port, expected in zip(self.readers, self.expected, strict=True):
            assert ctx.get(port.valid) == (expected is not None)
            if expected is not None and expected >= 0:
                assert ctx.get(port.data) == expected
        self.expected = [None] * len(self.readers)
        faults = 0
        served: set[int] = set()
        asked: set[int] = set()
        for i, stream in enumerate(self.streams):
            address = self.wanted[i]
            if address is None:
                continue
            bank = address // self.dut.bank_words
            asked.add(bank)
            if not ctx.get(stream.ready):
                self.waits[i] += 1
                self.conflicts[i] += 1
                assert self.waits[i] < len(self.streams), f"client {i} starves"
                continue
            self.waits[i], self.wanted[i] = 0, None
            inside = address < self.words
            assert not (inside and bank in served), "two accesses of a bank in a cycle"
            served.add(bank)
            faults |= (not inside) << i
            if i < len(self.readers):
                # What was never written is unknown: -1.
                self.expected[i] = self.memory.get(address, -1) if inside else 0
            elif inside:
                self.memory[address] = self.data[i]
        assert served == asked, "a bank is idle while a client waits for it"
        return faults


@pytest.mark.parametrize("rate", [0.2, 1.0])
@pytest.mark.parametrize(
    ("banks", "bank_words", "readers", "writers"), [(3, 4, 3, 2), (1, 8, 1, 1), (4, 2, 2, 3)]
)
def test_random_traffic(
    banks: int, bank_words: int, readers: int, writers: int, rate: float, seed: int
) -> None:
    """Every word read is the one last written; no client waits longer than its turn."""
    dut = UnifiedBuffer(
        width=WIDTH, banks=banks, bank_words=bank_words, readers=readers, writers=writers
    )
    traffic = Traffic(dut, seed=seed, rate=rate)

    async def bench(ctx: Any) -> None:
        faults = 0
        for _ in range(600):
            traffic.request(ctx)
            assert ctx.get(dut.fault) == faults
            faults = traffic.check(ctx)
            await ctx.tick()
        assert [ctx.get(count) for count in dut.conflicts] == traffic.conflicts
        ctx.set(dut.clear, 1)
        await ctx.tick()
        assert [ctx.get(count) for count in dut.conflicts] == [0] * (readers + writers)

    simulate(dut, bench)
    assert any(traffic.conflicts)


def test_disjoint_banks_never_wait() -> None:
    dut = UnifiedBuffer(width=WIDTH, banks=4, bank_words=4, readers=2, writers=2)

    async def bench(ctx: Any) -> None:
        for cycle in range(40):
            for i, port in enumerate(dut.readers):
                ctx.set(port.address.payload, i * 4 + cycle % 4)
                ctx.set(port.address.valid, 1)
            for i, port in enumerate(dut.writers, 2):
                ctx.set(port.payload, {"address": i * 4 + cycle % 4, "data": cycle})
                ctx.set(port.valid, 1)
            await ctx.tick()
        assert [ctx.get(count) for count in dut.conflicts] == [0] * 4

    simulate(dut, bench)


def test_conflict_counter_saturates() -> None:
    assert COUNTER_BITS == 32
    dut = UnifiedBuffer(width=WIDTH, banks=1, bank_words=2, readers=2, writers=0)

    async def bench(ctx: Any) -> None:
        for port in dut.readers:
            ctx.set(port.address.valid, 1)
        for count in dut.conflicts:
            ctx.set(count, 2**COUNTER_BITS - 2)
        for _ in range(8):
            await ctx.tick()
        assert [ctx.get(count) for count in dut.conflicts] == [2**COUNTER_BITS - 1] * 2

    simulate(dut, bench)


@pytest.mark.parametrize(("depth", "cycles"), [(3, 1), (2, 2)])
@pytest.mark.parametrize("gap", [0.0, 0.5])
def test_reader_keeps_order_and_pace(depth: int, cycles: int, gap: float, seed: int) -> None:
    """Words come in order under back-pressure, and without it one every ``cycles`` cycles."""
    dut = BufferReader(width=WIDTH, address_bits=8, depth=depth)
    noise = random.Random(seed)
    words: list[int] = []
    taken_at: list[int] = []

    async def bench(ctx: Any) -> None:
        sent, cycle, answer = 0, 0, None
        while len(words) < 60:
            ctx.set(dut.addresses.valid, sent < 60)
            ctx.set(dut.addresses.payload, sent)
            ctx.set(dut.port.address.ready, noise.random() >= gap)
            ctx.set(dut.port.valid, answer is not None)
            ctx.set(dut.port.data, answer or 0)
            ctx.set(dut.words.ready, noise.random() >= gap)
            answer = None
            if ctx.get(dut.port.address.valid) and ctx.get(dut.port.address.ready):
                answer = 3 * ctx.get(dut.port.address.payload) % 2**WIDTH
            if ctx.get(dut.words.valid) and ctx.get(dut.words.ready):
                words.append(ctx.get(dut.words.payload))
                taken_at.append(cycle)
            sent += ctx.get(dut.addresses.valid) and ctx.get(dut.addresses.ready)
            cycle += 1
            await ctx.tick()
            assert cycle < 2_000

    simulate(dut, bench)
    assert words == [3 * i for i in range(60)]
    if not gap:
        assert taken_at[-1] - taken_at[9] <= 50 * cycles


#: A block RAM with a single port that reads or writes: nothing else is on offer.
SINGLE_PORT = """ram block $SINGLE {
    abits 6; width 16; cost 1; init none;
    port srsw "A" { clock posedge; clken; rdwr no_change; }
}
"""


def memory_cells(verilog: Path, top: str, passes: list[str]) -> str:
    """Yosys's statistics after the passes, run in a process of its own."""
    script = (
        "import sys; from pyosys import libyosys as ys; design = ys.Design()\n"
        "for command in sys.argv[1:]: ys.run_pass(command, design)"
    )
    commands = [f"read_verilog {verilog}", f"hierarchy -check -top {top}", *passes, "stat"]
    result = subprocess.run(
        [sys.executable, "-c", script, *commands],
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    return result.stdout.rpartition("Printing statistics")[2]


def bank_verilog(folder: Path) -> Path:
    path = folder / "bank.v"
    bank = BufferBank(width=32, depth=64)
    path.write_text(VerilogLibrary(PRESETS["tiny"]).emit("bank", bank))
    return path


def test_bank_is_one_single_port_memory(tmp_path: Path) -> None:
    """Two memories of 16 bits with one port each hold a bank of 32 bits, and no register does."""
    pytest.importorskip("pyosys")
    library = tmp_path / "single.txt"
    library.write_text(SINGLE_PORT)
    passes = ["proc", "opt", "memory -nomap", "opt", f"memory_libmap -lib {library}"]
    statistics = memory_cells(bank_verilog(tmp_path), "bank", passes)
    assert "2   $SINGLE" in statistics, statistics
    assert "$mem" not in statistics
    assert "dff" not in statistics


def test_bank_is_a_block_ram_of_an_fpga(tmp_path: Path) -> None:
    pytest.importorskip("pyosys")
    statistics = memory_cells(
        bank_verilog(tmp_path), "bank", ["synth_ecp5 -noflatten -run :map_gates"]
    )
    assert "1   DP16KD" in statistics, statistics
    assert "TRELLIS_DPR16X4" not in statistics


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"banks": 0}, "banks must be from 1 to 64, got 0"),
        ({"bank_words": 6}, "bank_words must be a power of two, at least 2, got 6"),
    ],
)
def test_refuses(change: dict[str, int], message: str) -> None:
    sizes = {"width": 8, "banks": 2, "bank_words": 4, "readers": 1, "writers": 1}
    with pytest.raises(ValueError, match=message):
        UnifiedBuffer(**{**sizes, **change})
