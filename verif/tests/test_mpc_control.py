# amaranth: UnusedElaboratable=no
"""Small parts of the core's control: queue, semaphores, word and beat conversion."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from amaranth.sim import Simulator
from hypothesis import given, settings
from hypothesis import strategies as st

from dstar.rtl.mpc.convert import Collect, Cut
from dstar.rtl.mpc.queue import StreamQueue
from dstar.rtl.mpc.semaphores import Semaphores


def simulate(dut: Any, bench: Callable[[Any], Any]) -> None:
    simulation = Simulator(dut)
    simulation.add_clock(1e-6)
    simulation.add_testbench(bench)
    simulation.run()


def pass_through(
    dut: Any, words: Sequence[int], count: int, *, gap: float, seed: int
) -> tuple[list[int], int]:
    """Send words through ``input`` and ``output``; the words received and the cycles it took."""
    noise = random.Random(seed)
    received: list[int] = []
    cycles = 0

    async def bench(ctx: Any) -> None:
        nonlocal cycles
        sent, valid = 0, False
        while len(received) < count:
            valid = sent < len(words) and (valid or noise.random() >= gap)
            ctx.set(dut.input.valid, valid)
            ctx.set(dut.input.payload, words[sent] if valid else 0)
            ctx.set(dut.output.ready, noise.random() >= gap)
            if ctx.get(dut.output.valid) and ctx.get(dut.output.ready):
                received.append(ctx.get(dut.output.payload))
            if valid and ctx.get(dut.input.ready):
                sent, valid = sent + 1, False
            await ctx.tick()
            cycles += 1
            assert cycles < 50 * (count + 10), "it hangs"

    simulate(dut, bench)
    return received, cycles


@pytest.mark.parametrize("gap", [0.0, 0.5])
@pytest.mark.parametrize("depth", [1, 2, 5])
def test_queue(depth: int, gap: float, seed: int) -> None:
    words = [random.Random(seed + i).getrandbits(9) for i in range(40)]
    received, cycles = pass_through(StreamQueue(9, depth=depth), words, 40, gap=gap, seed=seed)
    assert received == words
    if not gap:
        assert cycles == (41 if depth > 1 else 80)


@pytest.mark.parametrize("gap", [0.0, 0.5])
@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_collect_and_cut(count: int, gap: float, seed: int) -> None:
    """Order and values both ways, a beat a cycle."""
    noise = random.Random(seed)
    beats = [noise.getrandbits(5) for _ in range(12 * count)]
    words = [
        sum(beat << 5 * i for i, beat in enumerate(beats[at : at + count]))
        for at in range(0, len(beats), count)
    ]
    collected, into = pass_through(Collect(width=5, count=count), beats, 12, gap=gap, seed=seed)
    assert collected == words
    cut, out = pass_through(Cut(width=5, count=count), words, len(beats), gap=gap, seed=seed)
    assert cut == beats
    if not gap:
        assert (into, out) == (len(beats) + 1, len(beats))


class Model:
    """Semaphores by their contract."""

    def __init__(self, *, count: int, limit: int) -> None:
        self.values = [0] * count
        self.limit = limit

    def step(
        self, waits: Sequence[int], requests: Sequence[bool], signals: Sequence[int]
    ) -> tuple[list[bool], int]:
        """Grants of this cycle, and the overflows to see in the next."""
        grants, taken = [], 0
        for wait, request in zip(waits, requests, strict=True):
            present = sum((value > 0) << i for i, value in enumerate(self.values))
            grant = request and not wait & ~(present & ~taken)
            taken |= wait if grant else 0
            grants.append(grant)
        overflow = 0
        for i, value in enumerate(self.values):
            total = value + sum(signal >> i & 1 for signal in signals) - (taken >> i & 1)
            overflow |= (total > self.limit) << i
            self.values[i] = min(total, self.limit)
        return grants, overflow


@settings(max_examples=20)
@given(data=st.data())
def test_semaphores(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 6), "count")
    limit = data.draw(st.integers(1, 4), "limit")
    clients = data.draw(st.integers(1, 4), "clients")
    sources = data.draw(st.integers(1, 4), "sources")
    noise = random.Random(data.draw(st.integers(0, 2**16), "seed"))
    dut = Semaphores(count=count, limit=limit, clients=clients, signals=sources)
    model = Model(count=count, limit=limit)

    async def bench(ctx: Any) -> None:
        overflow = 0
        for _ in range(60):
            waits = [noise.getrandbits(count) & noise.getrandbits(count) for _ in range(clients)]
            requests = [noise.random() < 0.7 for _ in range(clients)]
            signals = [noise.getrandbits(count) & noise.getrandbits(count) for _ in range(sources)]
            clear = noise.random() < 0.02
            ctx.set(dut.clear, clear)
            for client, wait, request in zip(dut.clients, waits, requests, strict=True):
                ctx.set(client.wait, wait)
                ctx.set(client.request, request)
            for port, signal in zip(dut.signals, signals, strict=True):
                ctx.set(port, signal)
            assert [ctx.get(value) for value in dut.values] == model.values
            assert ctx.get(dut.overflow) == overflow
            grants, overflow = model.step(waits, requests, signals)
            assert [bool(ctx.get(client.grant)) for client in dut.clients] == grants
            if clear:
                model.values, overflow = [0] * count, 0
            await ctx.tick()

    simulate(dut, bench)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: StreamQueue(4, depth=0), "depth must be at least 1, got 0"),
        (
            lambda: Semaphores(count=4, limit=0, clients=2, signals=2),
            "limit must be at least 1, got 0",
        ),
    ],
)
def test_refuses(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()
