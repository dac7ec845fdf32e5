"""Drain control: pops finished columns out of the array into a queue, without ever stalling it."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from dstar.gen.config import EXPONENT_BITS, Config
from dstar.rtl.mpu.array import delayed
from dstar.rtl.streams import sums_layout


class Queue(wiring.Component):
    """First-in first-out queue of any depth over a memory with one write and one read port.

    Members
    -------
    push, payload: write a word; the producer counts credits, there is no ready.
    output: stream of the words in order.  Latency: two cycles through an empty queue.
    """

    def __init__(self, shape: Any, *, depth: int) -> None:
        self.shape = shape
        self.depth = depth
        super().__init__(
            {"push": In(1), "payload": In(shape), "output": Out(stream.Signature(shape))}
        )

    def elaborate(self, platform: Any) -> Module:
        """Memory, two pointers, a word count."""
        m = Module()
        payload = self.payload if isinstance(self.shape, int) else self.payload.as_value()
        output = (
            self.output.payload if isinstance(self.shape, int) else (self.output.payload.as_value())
        )
        m.submodules.memory = memory = Memory(shape=len(payload), depth=self.depth, init=[])
        write, read = memory.write_port(), memory.read_port()
        level = Signal(range(self.depth + 1))
        pop = Signal()
        m.d.comb += [
            write.en.eq(self.push),
            write.data.eq(payload),
            output.eq(read.data),
            pop.eq(self.output.valid & self.output.ready),
        ]

        def following(pointer: Signal) -> Any:
            wraps = pointer == self.depth - 1
            return Cat((pointer + 1)[: len(pointer)]) & (~wraps).replicate(len(pointer))

        # The memory is always read at the next word, so its data stand as long as needed.
        head = Signal(range(max(2, self.depth)))
        with m.If(pop):
            m.d.comb += read.addr.eq(following(head))
        with m.Else():
            m.d.comb += read.addr.eq(head)
        m.d.sync += head.eq(read.addr)
        with m.If(self.push):
            m.d.sync += write.addr.eq(following(write.addr))

        # A word written in this cycle can be read in the next one at the earliest.
        m.d.sync += [
            level.eq(level + self.push - pop),
            self.output.valid.eq(level > pop),
        ]
        return m


class Drain(wiring.Component):
    """Pops every column of a captured tile and queues the sums.

    The array never stalls: a column is popped only when the queue has a place for it, counting
    those still on their way, and a tile may be captured only when the one before is sure to have
    left its columns by the time the capture reaches them.

    Members
    -------
    capture, exponent: a tile is being captured (pulse) and its last exponent.
    capture_ready: a capture in this cycle overwrites nothing.
    pop, start: to the array.
    sums: from the array, ``drain_latency`` after ``pop``.
    output: stream of :func:`dstar.rtl.streams.sums_layout`, column 0 first.

    Throughput: one column a cycle; a tile of ``cols`` columns occupies exactly ``cols`` cycles.
    """

    def __init__(self, cfg: Config, *, capture_latency: int, drain_latency: int) -> None:
        self.cfg = cfg
        self.capture_latency = capture_latency
        self.drain_latency = drain_latency
        super().__init__(
            {
                "capture": In(1),
                "exponent": In(signed(EXPONENT_BITS)),
                "capture_ready": Out(1),
                "pop": Out(1),
                "start": Out(1),
                "sums": In(data.ArrayLayout(cfg.numeric.acc_width, cfg.array.rows)),
                "output": Out(stream.Signature(sums_layout(cfg))),
            }
        )

    @property
    def overlap(self) -> int:
        """Columns of a tile that may still have to leave when the next one is captured.

        A capture passes the block columns one a cycle from the left, after two cycles of operand
        registers; the columns still in use are the rightmost.
        """
        return self.cfg.array.block_cols + 2

    @property
    def depth(self) -> int:
        """Queue depth: what is in flight at full rate, and what an issued capture relies on."""
        return self.drain_latency + 4 + min(self.cfg.array.cols, self.overlap)

    def elaborate(self, platform: Any) -> Module:
        """Count a capture's way through the array, then its columns, against credits."""
        m = Module()
        cols = self.cfg.array.cols
        m.submodules.queue = queue = Queue(sums_layout(self.cfg), depth=self.depth)

        credits = Signal(range(self.depth + 1), init=self.depth)
        returned = Signal()
        m.d.comb += returned.eq(self.output.valid & self.output.ready)
        m.d.sync += credits.eq(credits + returned - self.pop)

        travelling = Signal(range(self.capture_latency + 1))
        exponent = Signal(signed(EXPONENT_BITS))
        columns = Signal(range(cols + 1))
        fresh = Signal()
        draining_exponent = Signal(signed(EXPONENT_BITS))
        m.d.comb += [
            self.pop.eq((columns != 0) & (credits != 0)),
            self.start.eq(self.pop & fresh),
            self.capture_ready.eq(
                (travelling == 0) & (columns <= self.overlap) & (columns <= credits)
            ),
        ]
        with m.If(self.capture):
            m.d.sync += [travelling.eq(self.capture_latency), exponent.eq(self.exponent)]
        with m.Elif(travelling != 0):
            m.d.sync += travelling.eq(travelling - 1)
        with m.If(self.pop):
            m.d.sync += [columns.eq(columns - 1), fresh.eq(0)]
        with m.If(travelling == 1):
            m.d.sync += [columns.eq(cols), fresh.eq(1), draining_exponent.eq(exponent)]

        arrived = delayed(m, self.pop, self.drain_latency, name="popped", reset_less=False)
        tag = Cat(draining_exponent, columns == 1)
        tag = delayed(m, tag, self.drain_latency, name="tag")
        m.d.comb += [
            queue.push.eq(arrived),
            queue.payload.sums.eq(self.sums),
            queue.payload.exponent.eq(tag[:EXPONENT_BITS].as_signed()),
            queue.payload.last.eq(tag[EXPONENT_BITS]),
        ]
        wiring.connect(m, wiring.flipped(self.output), queue.output)
        return m
