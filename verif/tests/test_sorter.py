# amaranth: UnusedElaboratable=no
"""Both builds of the bitonic sorter: order, stability, the 0-1 principle, streams."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest
from amaranth.sim import Simulator
from hypothesis import given, settings
from hypothesis import strategies as st

from dstar.rtl.sorter import BUILDS, sorter
from dstar.rtl.sorter_network import SorterShape

Item = tuple[int, int]


def simulate(
    build: str,
    tasks: Sequence[Sequence[Item]],
    *,
    key_bits: int,
    payload_bits: int,
    gap: float = 0.0,
    seed: int = 0,
) -> tuple[list[list[Item]], list[int], list[int]]:
    """Sort each task; return the results and the cycles in which each went in and came out."""
    size = len(tasks[0])
    dut = sorter(size=size, key_bits=key_bits, payload_bits=payload_bits, build=build)
    width = key_bits + payload_bits
    results: list[list[Item]] = []
    entered: list[int] = []
    left: list[int] = []

    def pack(items: Sequence[Item]) -> int:
        word = 0
        for i, (key, payload) in enumerate(items):
            word |= (key | payload << key_bits) << i * width
        return word

    def unpack(word: int, task: Sequence[Item]) -> list[Item]:
        places = dut.shape.levels
        step = width + places
        items = [word >> i * step & (1 << step) - 1 for i in range(size)]
        pairs = [
            (item >> places & (1 << key_bits) - 1, item >> places + key_bits) for item in items
        ]
        assert [task[item & (1 << places) - 1] for item in items] == pairs
        return pairs

    async def bench(ctx: Any) -> None:
        noise = random.Random(seed)
        cycle, sent = 0, 0
        valid = False
        while len(results) < len(tasks):
            if not valid:
                valid = sent < len(tasks) and noise.random() >= gap
            ctx.set(dut.items.valid, valid)
            if valid:
                ctx.set(dut.items.payload.as_value(), pack(tasks[sent]))
            ctx.set(dut.sorted.ready, noise.random() >= gap)
            if ctx.get(dut.sorted.valid) and ctx.get(dut.sorted.ready):
                word = ctx.get(dut.sorted.payload.as_value())
                results.append(unpack(word, tasks[len(results)]))
                left.append(cycle)
            if valid and ctx.get(dut.items.ready):
                entered.append(cycle)
                sent += 1
                valid = False
            await ctx.tick()
            cycle += 1
            assert cycle < 10_000, "the sorter hangs"

    simulation = Simulator(dut)
    simulation.add_clock(1e-6)
    simulation.add_testbench(bench)
    simulation.run()
    return results, entered, left


def stable(items: Sequence[Item]) -> list[Item]:
    """What a sorter must give."""
    return sorted(items, key=lambda item: item[0])


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("size", [2, 3, 4, 5, 8])
def test_zero_one_principle(build: str, size: int) -> None:
    """All sequences of zeros and ones; a network that sorts these sorts everything.

    Payloads are positions, so every result also proves stability.
    """
    tasks = [[(bits >> i & 1, i) for i in range(size)] for bits in range(1 << size)]
    results, _, _ = simulate(build, tasks, key_bits=1, payload_bits=3)
    assert results == [stable(task) for task in tasks]


@pytest.mark.parametrize("build", BUILDS)
@settings(max_examples=15)
@given(data=st.data())
def test_sorts_stably(build: str, data: st.DataObject) -> None:
    size = data.draw(st.integers(2, 20), "size")
    key_bits = data.draw(st.integers(1, 5), "key bits")
    items = st.lists(st.integers(0, 2**key_bits - 1), min_size=size, max_size=size)
    tasks = [list(zip(data.draw(items), range(size), strict=True)) for _ in range(3)]
    gap = data.draw(st.sampled_from([0.0, 0.4]), "gap")
    results, _, _ = simulate(build, tasks, key_bits=key_bits, payload_bits=5, gap=gap, seed=size)
    assert results == [stable(task) for task in tasks]


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("size", [2, 8, 13])
def test_latency_and_interval(build: str, size: int, seed: int) -> None:
    noise = random.Random(seed)
    tasks = [[(noise.randrange(8), i) for i in range(size)] for _ in range(4)]
    _, entered, left = simulate(build, tasks, key_bits=3, payload_bits=4)
    dut = BUILDS[build](size=size, key_bits=3, payload_bits=4)
    assert [b - a for a, b in zip(entered, left, strict=True)] == [dut.latency] * len(tasks)
    assert [b - a for a, b in itertools.pairwise(entered)] == [dut.interval] * 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 1, "key_bits": 1}, "size must be from 2 to 4096, got 1"),
        ({"size": 4, "key_bits": 0}, "key_bits must be from 1 to 64, got 0"),
        ({"size": 4, "key_bits": 1, "payload_bits": -1}, "payload_bits must be from 0 to 1024"),
    ],
)
def test_refuses_shape(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SorterShape(**arguments)


def test_refuses_build() -> None:
    with pytest.raises(ValueError, match="build must be one of iterative, pipelined, got 'fast'"):
        sorter(size=2, key_bits=1, build="fast")
