"""What the output path needs of the buffer: parameters and last step's outputs."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from dstar.gen.config import Config
from dstar.golden.mpc.geometry import PARAMETER_BYTES, Geometry
from dstar.golden.mpc.isa import Engine
from dstar.rtl.mpc.decode import command_layout
from dstar.rtl.mpc.engines.flight import IN_FLIGHT, unfinished
from dstar.rtl.mpc.engines.operands import ItemReader, OperandReader
from dstar.rtl.mpc.engines.ports import join, read_port
from dstar.rtl.mpc.queue import StreamQueue
from dstar.rtl.output.path import channel_layout


class PathOperands(wiring.Component):
    """Reads the parameters and last outputs of each MULTIPLY that ends its sums.

    They are read ahead, but not before what an earlier MULTIPLY writes there.

    Members
    -------
    job: stream of MULTIPLYs.
    parameters_port, before_port: read clients of the buffer.
    channel, before: streams to the output path.
    done: from the engine, a pulse for each job.
    beyond: the oldest job that is not done reaches beyond the buffer.
    """

    def __init__(self, cfg: Config) -> None:
        self.cfg = cfg
        vectors = stream.Signature(data.ArrayLayout(16, cfg.array.rows))
        super().__init__(
            {
                "job": In(stream.Signature(command_layout(cfg, Engine.MULTIPLY))),
                "parameters_port": Out(read_port(cfg)),
                "before_port": Out(read_port(cfg)),
                "channel": Out(stream.Signature(channel_layout())),
                "before": Out(vectors),
                "done": In(1),
                "beyond": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Two readers that start together."""
        m = Module()
        cols, geometry = self.cfg.array.cols, Geometry(self.cfg)
        m.submodules.jobs = jobs = StreamQueue(self.job.payload.shape(), depth=IN_FLIGHT)
        m.submodules.parameters = parameters = ItemReader(
            self.cfg, width=8 * PARAMETER_BYTES, per=geometry.parameters_per_word
        )
        m.submodules.before = before = OperandReader(self.cfg)
        wiring.connect(m, wiring.flipped(self.job), jobs.input)
        wiring.connect(m, wiring.flipped(self.parameters_port), parameters.port)
        wiring.connect(m, wiring.flipped(self.before_port), before.port)
        join(m, before.words, self.before)
        items = parameters.items
        m.d.comb += [
            self.channel.payload.scale.eq(items.payload.data[:16]),
            self.channel.payload.bias.eq(items.payload.data[16:]),
            self.channel.valid.eq(items.valid),
            items.ready.eq(self.channel.ready),
        ]

        job, opens = jobs.output.payload, Signal()
        earlier = unfinished(m, opens, self.done)
        able = parameters.start.ready & before.start.ready
        m.d.comb += [
            opens.eq(
                jobs.output.valid
                & (~job.last | (able & ~self._awaits_outputs(m, job, opens, earlier)))
            ),
            jobs.output.ready.eq(opens),
            self.beyond.eq((parameters.beyond | before.beyond) & (earlier == 1)),
        ]
        for reader, first, count, outer, used in (
            (parameters, job.parameters, cols, geometry.parameter_words, job.last),
            (before, job.before, cols, cols, job.last & ~job.keyframe),
        ):
            loop = reader.start.payload
            m.d.comb += [
                reader.start.valid.eq(opens & used),
                loop.first.eq(first),
                loop.inner.eq(1),
                loop.outer.eq(outer),
                loop.count.eq(count),
                loop.runs.eq(job.tiles),
            ]
        return m

    def _awaits_outputs(self, m: Module, job: Any, opens: Signal, earlier: Signal) -> Signal:
        """Whether a job may read what those before it still write."""
        cols, core = self.cfg.array.cols, self.cfg.core
        words = range(core.words + core.columns + 1)
        first, end, writes = Signal(words), Signal(words), Signal()
        with m.If(opens):
            m.d.sync += [
                first.eq(job.output),
                end.eq(job.output + job.tiles * cols),
                writes.eq(job.last),
            ]

        def overlaps(start: Any, count: Any) -> Any:
            return (start < end) & (first < start + count)

        parameters = overlaps(job.parameters, job.tiles * Geometry(self.cfg).parameter_words)
        before = overlaps(job.before, job.tiles * cols) & ~job.keyframe
        result = Signal()
        # Of those before the last one nothing is known any more, and it is soon done.
        m.d.comb += result.eq((earlier > 1) | ((earlier == 1) & writes & (parameters | before)))
        return result
