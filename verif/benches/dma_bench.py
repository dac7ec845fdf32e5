"""cocotb bench of :class:`dstar.verif.benches.memory_top.MemoryTop`.

``$DSTAR_BUS`` holds the fields of its bus as JSON.
"""

from __future__ import annotations

import itertools
from typing import Any

import cocotb
from cocotb.triggers import ClockCycles

from dstar.rtl.mpc.fetch import program_layout
from dstar.verif.benches.dma_driver import HALF, Bench
from dstar.verif.benches.memory_top import CLIENTS, INSTRUCTION_BITS

ERROR = 2  # SLVERR


@cocotb.test()
async def random_transfers(dut: Any) -> None:
    """Random latency, resting channels, bank conflicts."""
    bench = Bench(dut)
    await bench.reset()
    await bench.fill()
    noise = cocotb.start_soon(bench.make_noise())
    await bench.rounds(4, 6)
    noise.cancel()
    assert bench.bus.most_open > 1
    # Some transfer was cut at a 4 KB boundary.
    loads = [(address, beats) for client, address, beats in bench.bus.reads if client == 1]
    assert any(
        end == start and start % 4096 == 0
        for end, start in (
            (a + beats * bench.shape.beat_bytes, b)
            for (a, beats), (b, _) in itertools.pairwise(loads)
        )
    )


@cocotb.test()
async def full_speed(dut: Any) -> None:
    """Without conflicts R waits for one cycle a transfer at most; transfers overlap."""
    bench = Bench(dut, rate=0.0, latency=0)
    await bench.reset()
    half = bench.words // 2
    for place in (0, half):
        job = {"address": 0, "stride": 0, "buffer": place, "step": 0, "length": half, "rows": 1}
        await bench.transfer("load", job)
    await bench.until(lambda: bench.done["load"] == 2)
    assert bench.bus.read_waits <= 1
    assert bench.bus.read_beats == bench.words * bench.shape.word_beats
    assert bench.bus.most_open == bench.shape.outstanding


async def _error(bench: Bench, client: str, bad: int) -> None:
    """The client ends its bursts, tells the place, and finishes nothing that comes later."""
    dut, bus = bench.dut, bench.bus
    await bench.until(lambda: int(getattr(dut, f"{client}_error").value))
    await bench.until(lambda: all(int(getattr(dut, f"{c}_idle").value) for c in CLIENTS))
    assert bus.quiet
    address = int(getattr(dut, f"{client}_error_address").value)
    assert int(getattr(dut, f"{client}_error_response").value) == ERROR
    if client == "store":
        bursts = {start: start + beats * bench.shape.beat_bytes for _, start, beats in bus.writes}
        assert address <= bad < bursts[address]
    else:
        assert address == bad // bench.shape.beat_bytes * bench.shape.beat_bytes
    count = len(bus.reads) + len(bus.writes)
    await ClockCycles(dut.clk, 50)
    assert len(bus.reads) + len(bus.writes) == count
    assert bench.done.get(client, 0) == 0


@cocotb.test()
async def errors(dut: Any) -> None:
    """An error at any beat of a load, a store, a fetch; then reset and a good run."""
    bench = Bench(dut)
    await bench.reset()
    await bench.fill()
    length = bench.words // 4
    beats = length * bench.shape.word_beats
    for beat in {0, 1, beats - 1, bench.noise.randrange(beats)}:
        for client, start in (("load", 0x1F80), ("store", HALF + 0x2F80), ("fetch", 0x3F80)):
            start = start // bench.word_bytes * bench.word_bytes
            bad = start + beat * bench.shape.beat_bytes
            bench.memory.bad = {bad}
            if client == "fetch":
                program = program_layout(address_bits=bench.shape.address_bits)
                count = -(-beats * bench.shape.data_bits // INSTRUCTION_BITS)
                await bench.send("program", program, {"address": start, "length": count})
            else:
                job = {"address": start, "stride": 0, "step": 0, "rows": 1}
                await bench.transfer(client, {**job, "buffer": 0, "length": length})
            await _error(bench, client, bad)
            bench.memory.bad.clear()
            await bench.reset()
    bench.buffer.clear()
    await bench.fill()
    await bench.rounds(1, 3)


@cocotb.test()
async def stop_and_restart(dut: Any) -> None:
    """Stopped in mid-transfer, everything ends by the rules; what was not written stays."""
    bench = Bench(dut)
    await bench.reset()
    await bench.fill()
    for _ in range(6):
        before = bytes(bench.memory.data)
        jobs = {}
        for name in ("load", "store"):
            jobs[name] = bench.random_transfer(name)
            jobs[name]["buffer"] += (name == "store") * bench.words // 2
            await bench.transfer(name, jobs[name])
        program = program_layout(address_bits=bench.shape.address_bits)
        await bench.send("program", program, {"address": 0, "length": 30})
        await ClockCycles(dut.clk, bench.noise.randint(1, 120))
        dut.stop.value = 1
        await bench.until(lambda: all(int(getattr(dut, f"{c}_idle").value) for c in CLIENTS))
        assert bench.bus.quiet
        # Every byte of the memory is what it was, or what one of the rows would have written.
        images = [bytearray(before)]
        for row in range(jobs["store"]["rows"]):
            images.append(bytearray(before))
            bench.apply("store", bench.row(jobs["store"], row), images[-1])
        assert all(now in may for now, *may in zip(bench.memory.data, *images, strict=True))
        await bench.reset()
        bench.buffer.clear()
        await bench.fill()
    await bench.rounds(1, 3)


@cocotb.test()
async def reset_in_mid_transfer(dut: Any) -> None:
    """Design and memory reset together, at any time."""
    bench = Bench(dut, reset=dut.rst)
    await bench.reset()
    for _ in range(5):
        for name in ("load", "store"):
            await bench.transfer(name, bench.random_transfer(name))
        await ClockCycles(dut.clk, bench.noise.randint(1, 60))
        await bench.reset()
    bench.buffer.clear()
    await bench.fill()
    await bench.rounds(1, 3)
