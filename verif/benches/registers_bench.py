"""cocotb bench of :class:`dstar.rtl.mpc.registers.CoreRegisters`, preset ``tiny``."""

from __future__ import annotations

import random
import warnings
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, FallingEdge, RisingEdge

from dstar.gen.config import PRESETS
from dstar.golden.mpc.register_map import Access
from dstar.golden.mpc.registers import (
    ENGINES,
    IDENTITY,
    READERS,
    REGISTERS,
    VERSION,
    WRITERS,
)
from dstar.verif.benches.axi_memory import pauses

with warnings.catch_warnings():
    # cocotbext-axi 0.1.28 still speaks cocotb's older dialect.
    warnings.simplefilter("ignore", DeprecationWarning)
    from cocotbext.axi import AxiLiteBus, AxiLiteMaster, AxiResp

CFG = PRESETS["tiny"]
INPUTS = (
    "busy", "resetting", "done", "failed", "code", "pc", "address", "response", "nonfinite",
    "saturated",
)  # fmt: skip
COUNTERS = ("busy", "stalled", "read_beat", "write_beat", "beats", "slots", "conflicts")


class Bench:
    """A master with resting channels, and short names for what it does."""

    def __init__(self, dut: Any, rate: float = 0.3) -> None:
        self.dut = dut
        self.noise = random.Random(random.getrandbits(32))
        Clock(dut.clk, 2, unit="ns").start()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            self.master = AxiLiteMaster(AxiLiteBus.from_prefix(dut, "s_axil"), dut.clk, dut.rst)
        channels = (
            self.master.write_if.aw_channel,
            self.master.write_if.w_channel,
            self.master.write_if.b_channel,
            self.master.read_if.ar_channel,
            self.master.read_if.r_channel,
        )
        for number, channel in enumerate(channels):
            channel.set_pause_generator(pauses(rate, self.noise.getrandbits(32) + number))

    async def reset(self) -> None:
        for name in (*INPUTS, *(f"counters__{name}" for name in COUNTERS)):
            getattr(self.dut, name).value = 0
        self.dut.rst.value = 1
        await ClockCycles(self.dut.clk, 3)
        self.dut.rst.value = 0
        await RisingEdge(self.dut.clk)

    async def read(self, name: str) -> int:
        answer = await self.master.read(REGISTERS[name].offset, 4)
        assert answer.resp == AxiResp.OKAY, name
        return int.from_bytes(answer.data, "little")

    async def wide(self, name: str) -> int:
        return await self.read(f"{name}_LOW") | await self.read(f"{name}_HIGH") << 32

    async def write(self, name: str, word: int) -> None:
        answer = await self.master.write(REGISTERS[name].offset, word.to_bytes(4, "little"))
        assert answer.resp == AxiResp.OKAY, name

    async def pulse(self, **values: int) -> None:
        """Drive inputs for one cycle."""
        for name, value in values.items():
            getattr(self.dut, name).value = value
        await RisingEdge(self.dut.clk)
        for name in values:
            getattr(self.dut, name).value = 0
        await RisingEdge(self.dut.clk)

    async def seen(self, port: str) -> list[int]:
        """Cycles, from now on, in which an output is high; the list grows."""
        cycles: list[int] = []

        async def watch() -> None:
            number = 0
            while True:
                await FallingEdge(self.dut.clk)
                if int(getattr(self.dut, port).value):
                    cycles.append(number)
                number += 1

        cocotb.start_soon(watch())
        return cycles


@cocotb.test()
async def after_reset(dut: Any) -> None:
    """Constants, and zeros elsewhere."""
    bench = Bench(dut)
    await bench.reset()
    constants = {
        "ID": IDENTITY,
        "VERSION": VERSION,
        "CONFIG": int(CFG.hash[:8], 16),
        "SHAPE": REGISTERS["SHAPE"].pack(ROWS=CFG.array.rows, COLUMNS=CFG.array.cols),
    }
    for name in REGISTERS:
        assert await bench.read(name) == constants.get(name, 0), name


@cocotb.test()
async def written_fields(dut: Any) -> None:
    """Random writes with random strobes, to every register: only writable fields keep them."""
    bench = Bench(dut)
    await bench.reset()
    names = [name for name in REGISTERS if name != "CONTROL"]
    writable = [n for n in names if REGISTERS[n].fields[0].access is Access.WRITE]
    model = {name: await bench.read(name) for name in REGISTERS}
    for _ in range(150):
        name = bench.noise.choice(bench.noise.choice((names, writable, writable)))
        at = bench.noise.randrange(4)
        data = bench.noise.randbytes(bench.noise.randint(1, 4 - at))
        answer = await bench.master.write(REGISTERS[name].offset + at, data)
        assert answer.resp == AxiResp.OKAY
        for i, byte in enumerate(data, at):
            for field in REGISTERS[name].fields:
                if field.access is Access.WRITE:
                    mask = field.mask & 0xFF << 8 * i
                    model[name] = model[name] & ~mask | byte << 8 * i & mask
        check = bench.noise.choice((name, bench.noise.choice(names)))
        assert await bench.read(check) == model[check], check
    assert int(dut.program_address.value) == (
        (model["PROGRAM_ADDRESS_HIGH"] << 32 | model["PROGRAM_ADDRESS_LOW"])
        % (1 << CFG.core.address_bits)
    )
    assert int(dut.program_length.value) == model["PROGRAM_LENGTH"]


@cocotb.test()
async def no_such_register(dut: Any) -> None:
    bench = Bench(dut)
    await bench.reset()
    for address in range(0, 1 << REGISTERS.address_bits, 4):
        if address not in {register.offset for register in REGISTERS.values()}:
            answer = await bench.master.read(address, 4)
            assert (answer.resp, answer.data) == (AxiResp.SLVERR, bytes(4))
            assert (await bench.master.write(address, b"\xff" * 4)).resp == AxiResp.SLVERR
    assert int(dut.interrupt.value) == 0


@cocotb.test()
async def start_and_reset(dut: Any) -> None:
    """Each acts for one cycle; a start only while the core is at rest."""
    bench = Bench(dut)
    await bench.reset()
    starts, resets = await bench.seen("start"), await bench.seen("reset")
    control = REGISTERS["CONTROL"]
    await bench.write("CONTROL", control.pack(START=1))
    assert (len(starts), len(resets)) == (1, 0)
    for state in ("busy", "resetting"):
        getattr(dut, state).value = 1
        await bench.write("CONTROL", control.pack(START=1))
        status = REGISTERS["STATUS"].unpack(await bench.read("STATUS"))
        assert [name for name, value in status.items() if value] == [state.upper()]
        getattr(dut, state).value = 0
    await bench.write("CONTROL", control.pack(RESET=1))
    assert (len(starts), len(resets)) == (1, 1)
    # The byte that holds the fields is not enabled.
    await bench.master.write(control.offset + 1, b"\xff")
    assert (len(starts), len(resets)) == (1, 1)


@cocotb.test()
async def ends_and_interrupts(dut: Any) -> None:
    bench = Bench(dut)
    await bench.reset()
    status, error = REGISTERS["STATUS"], REGISTERS["ERROR"]
    pending, enable = REGISTERS["INTERRUPT_PENDING"], REGISTERS["INTERRUPT_ENABLE"]
    await bench.pulse(done=1)
    assert status.unpack(await bench.read("STATUS"))["DONE"] == 1
    assert await bench.read("INTERRUPT_PENDING") == pending.pack(DONE=1)
    assert int(dut.interrupt.value) == 0
    await bench.write("INTERRUPT_ENABLE", enable.pack(FAILED=1))
    assert int(dut.interrupt.value) == 0
    await bench.write("INTERRUPT_ENABLE", enable.pack(DONE=1, FAILED=1))
    assert int(dut.interrupt.value) == 1
    await bench.write("INTERRUPT_PENDING", pending.pack(FAILED=1))
    assert int(dut.interrupt.value) == 1
    await bench.write("INTERRUPT_PENDING", pending.pack(DONE=1))
    assert int(dut.interrupt.value) == 0

    await bench.write("CONTROL", REGISTERS["CONTROL"].pack(START=1))
    assert await bench.read("STATUS") == 0
    address = (1 << CFG.core.address_bits) - 8
    await bench.pulse(failed=1, code=5, response=3, pc=77, address=address)
    await bench.pulse(failed=1, code=1, response=2, pc=78, address=16)
    assert int(dut.interrupt.value) == 1
    assert await bench.read("STATUS") == status.pack(FAILED=1)
    assert await bench.read("ERROR") == error.pack(CODE=5, RESPONSE=3)
    assert await bench.read("ERROR_PC") == 77
    assert await bench.wide("ERROR_ADDRESS") == address
    await bench.write("CONTROL", REGISTERS["CONTROL"].pack(START=1))
    assert await bench.read("STATUS") == await bench.read("ERROR") == 0
    assert await bench.wide("ERROR_ADDRESS") == await bench.read("ERROR_PC") == 0
    # Events outlive the start.
    assert await bench.read("INTERRUPT_PENDING") == pending.pack(FAILED=1)


@cocotb.test()
async def set_beats_clear(dut: Any) -> None:
    """An event in the very cycle of its clearing is not lost."""
    bench = Bench(dut)
    await bench.reset()
    dut.nonfinite.value = 1
    dut.saturated.value = 1
    await bench.write("NUMERIC", REGISTERS["NUMERIC"].pack(NONFINITE=1))
    dut.nonfinite.value = 0
    dut.saturated.value = 0
    assert await bench.read("NUMERIC") == REGISTERS["NUMERIC"].pack(NONFINITE=1, SATURATED=1)
    await bench.write("NUMERIC", REGISTERS["NUMERIC"].pack(NONFINITE=1))
    assert await bench.read("NUMERIC") == REGISTERS["NUMERIC"].pack(SATURATED=1)


@cocotb.test()
async def counters(dut: Any) -> None:
    """Random events while busy; nothing is counted at rest, and a start sets all to zero."""
    bench = Bench(dut)
    await bench.reset()
    for _ in range(2):
        await bench.write("CONTROL", REGISTERS["CONTROL"].pack(START=1))
        want = dict.fromkeys(("CYCLES", "BYTES_READ", "BYTES_WRITTEN"), 0)
        each = {f"{k}_{e}": 0 for k in ("BUSY", "STALLED") for e in ENGINES}
        for _ in range(200):
            busy = bench.noise.random() < 0.8
            masks = {name: bench.noise.getrandbits(len(ENGINES)) for name in ("busy", "stalled")}
            read, write = bench.noise.getrandbits(1), bench.noise.getrandbits(1)
            dut.busy.value = busy
            dut.counters__busy.value = masks["busy"]
            dut.counters__stalled.value = masks["stalled"]
            dut.counters__read_beat.value = read
            dut.counters__write_beat.value = write
            if busy:
                want["CYCLES"] += 1
                want["BYTES_READ"] += read * CFG.core.axi_bytes
                want["BYTES_WRITTEN"] += write * CFG.core.axi_bytes
                for kind, mask in masks.items():
                    for i, engine in enumerate(ENGINES):
                        each[f"{kind.upper()}_{engine}"] += mask >> i & 1
            await RisingEdge(dut.clk)
        dut.busy.value = 0
        clients = READERS + WRITERS
        conflicts = [bench.noise.getrandbits(32) for _ in clients]
        dut.counters__conflicts.value = sum(n << 32 * i for i, n in enumerate(conflicts))
        dut.counters__beats.value = 123
        dut.counters__slots.value = 456
        assert {name: await bench.wide(name) for name in want} == want
        assert {name: await bench.read(name) for name in each} == each
        assert [await bench.read(f"CONFLICTS_{client}") for client in clients] == conflicts
        assert (await bench.read("BEATS"), await bench.read("SLOTS")) == (123, 456)
