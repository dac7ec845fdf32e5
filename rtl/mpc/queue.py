"""Queue of stream words, such as an engine's commands."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Value
from amaranth.lib import stream
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from dstar.rtl.hierarchy import Shared


class StreamQueue(Shared):
    """First-in first-out queue between two streams.

    Parameters
    ----------
    shape: of a word.  depth: words it holds, at least 1.

    Members
    -------
    input, output: streams of the words.
    level: words in the queue, 0 to ``depth``.

    Latency: a word can leave in the cycle after it came.  Throughput: a word a cycle on each side,
    as long as the queue is neither full nor empty; a full queue takes no word in the cycle in
    which one leaves, so there is no path from ``output.ready`` to ``input.ready``.

    The words lie in a memory that is read in the cycle of its address: registers or distributed
    RAM, meant for a few words.
    """

    def __init__(self, shape: Any, *, depth: int) -> None:
        if depth < 1:
            raise ValueError(f"depth must be at least 1, got {depth}")
        self.depth = depth
        super().__init__(
            {
                "input": In(stream.Signature(shape)),
                "output": Out(stream.Signature(shape)),
                "level": Out(range(depth + 1)),
            }
        )

    @property
    def module_name(self) -> str:
        """Verilog module name."""
        return f"queue_{len(Value.cast(self.input.payload))}x{self.depth}"

    def elaborate(self, platform: Any) -> Module:
        """Amaranth's queue with streams."""
        m = Module()
        payload = Value.cast(self.input.payload)
        m.submodules.words = words = SyncFIFO(width=len(payload), depth=max(2, self.depth))
        m.d.comb += [
            words.w_data.eq(payload),
            words.w_en.eq(self.input.valid & self.input.ready),
            self.input.ready.eq(words.level < self.depth),
            Value.cast(self.output.payload).eq(words.r_data),
            self.output.valid.eq(words.r_rdy),
            words.r_en.eq(self.output.ready),
            self.level.eq(words.level),
        ]
        return m
