"""Multiply engine: weights, parameters and last outputs from the buffer through MPU and path."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from dstar.gen.config import Config
from dstar.golden.mpc.fields import Status
from dstar.golden.mpc.geometry import Geometry
from dstar.golden.mpc.isa import Engine
from dstar.rtl.mpc.engines.flight import IN_FLIGHT
from dstar.rtl.mpc.engines.operands import FULL_RATE, ItemReader, ResultWriter, job_layout
from dstar.rtl.mpc.engines.path_operands import PathOperands
from dstar.rtl.mpc.engines.ports import engine_members, join, read_port, tile_layout, write_port
from dstar.rtl.mpc.engines.products import Products
from dstar.rtl.mpc.queue import StreamQueue
from dstar.rtl.output.path import channel_layout, output_command_layout
from dstar.rtl.streams import command_layout, weights_layout

#: Bits of a weight in memory.
_BYTE = 8


class MultiplyEngine(wiring.Component):
    """Carries out MULTIPLY (docs/isa.md) with a :class:`~dstar.rtl.matrix.MatrixUnit`.

    Members
    -------
    command, done, fault, busy, stalled: :func:`~dstar.rtl.mpc.engines.ports.engine_members`;
        ``stalled``: the array does not compute.
    freed: one pulse for each command, in order, when its weights are in the MPU.
    released: a pulse when the last product with an encoded tile begins, if its command releases
        it; the tile's place is free when that product ends.
    buffer: ports ``weights``, ``parameters``, ``before`` (reads) and ``output`` (writes).
    encoded: stream of :func:`~dstar.rtl.mpc.engines.ports.tile_layout`, from the quantize engine.
    matrix: streams to and from the matrix unit, by its names; ``weights`` are
        :attr:`~dstar.golden.mpc.geometry.Geometry.weight_channels` channels wide.
    beats: the lowest bit of the MPU's counter of compute cycles.

    Throughput: the MPU's, while a weight word, a word of last outputs and an output have their
    banks each cycle.  Up to :data:`~dstar.rtl.mpc.engines.flight.IN_FLIGHT` commands overlap.
    Weights are read ahead; parameters and last outputs that the command before writes are waited
    for.

    Errors: ``TILES``, ``TABLE``; ``RANGE`` when an address or a column is reached.
    """

    def __init__(self, cfg: Config) -> None:
        self.cfg = cfg
        vectors = stream.Signature(data.ArrayLayout(16, cfg.array.rows))
        rows = weights_layout(cfg, channels=Geometry(cfg).weight_channels)
        matrix = {
            "weights": Out(stream.Signature(rows)),
            "command": Out(stream.Signature(command_layout())),
            "store": Out(stream.Signature(output_command_layout(cfg.core.columns))),
            "channel": Out(stream.Signature(channel_layout())),
            "before": Out(vectors),
            "output": In(vectors),
        }
        reads = {name: Out(read_port(cfg)) for name in ("weights", "parameters", "before")}
        super().__init__(
            {
                **engine_members(cfg, Engine.MULTIPLY),
                "freed": Out(1),
                "released": Out(1),
                "buffer": Out(wiring.Signature({**reads, "output": Out(write_port(cfg))})),
                "encoded": In(stream.Signature(tile_layout(cfg))),
                "matrix": Out(wiring.Signature(matrix)),
                "beats": In(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """A command goes four ways: weights, products, operands of the path, outputs."""
        m = Module()
        cfg, matrix = self.cfg, self.matrix
        m.submodules.stage = stage = StreamQueue(self.command.payload.shape(), depth=1)
        m.submodules.weights = weights = ItemReader(
            cfg,
            width=_BYTE * cfg.array.cols,
            per=Geometry(cfg).rows_per_word,
            group=Geometry(cfg).weight_channels,
            depth=FULL_RATE,
        )
        m.submodules.products = products = Products(cfg)
        m.submodules.operands = operands = PathOperands(cfg)
        m.submodules.jobs = jobs = StreamQueue(
            data.StructLayout({"job": job_layout(cfg), "last": unsigned(1)}), depth=IN_FLIGHT
        )
        wiring.connect(m, wiring.flipped(self.command), stage.input)
        wiring.connect(m, wiring.flipped(self.encoded), products.encoded)
        wiring.connect(m, products.command, wiring.flipped(matrix.command))
        wiring.connect(m, products.store, wiring.flipped(matrix.store))
        wiring.connect(m, operands.channel, wiring.flipped(matrix.channel))
        wiring.connect(m, operands.before, wiring.flipped(matrix.before))
        wiring.connect(m, wiring.flipped(self.buffer.weights), weights.port)
        wiring.connect(m, wiring.flipped(self.buffer.parameters), operands.parameters_port)
        wiring.connect(m, wiring.flipped(self.buffer.before), operands.before_port)

        command, begin = stage.output.payload, Signal()
        ways = (weights.start, products.job, operands.job, jobs.input)
        m.d.comb += begin.eq(stage.output.valid & Cat(way.ready for way in ways).all())
        m.d.comb += [way.valid.eq(begin) for way in ways]
        m.d.comb += [
            stage.output.ready.eq(begin),
            products.job.payload.eq(command),
            operands.job.payload.eq(command),
            products.done.eq(self.done),
            operands.done.eq(self.done),
            self.released.eq(products.released),
        ]
        self._weights(m, weights, command)
        output_beyond = self._outputs(m, jobs, command, products.summed)

        # Weights beyond the buffer are those of the newest command.
        beyond, turned = Signal(), Signal()
        m.d.sync += turned.eq(self.beats)
        m.d.comb += [
            beyond.eq(output_beyond | operands.beyond | (weights.beyond & (jobs.level == 1))),
            self.fault.valid.eq(~self.done & (beyond | (products.status != Status.OK))),
            self.fault.status.eq(Mux(beyond, Status.RANGE, products.status)),
            self.busy.eq(stage.output.valid | jobs.output.valid | self.done),
            self.stalled.eq(self.busy & (turned == self.beats)),
        ]
        return m

    def _weights(self, m: Module, reader: ItemReader, command: Any) -> None:
        """Weight rows into the MPU; ``freed`` with the last."""
        loop, items, sink = reader.start.payload, reader.items, self.matrix.weights
        bits = self.cfg.numeric.weight_bits
        word = items.payload.data
        weights = range(len(word) // _BYTE)
        m.d.comb += [
            loop.first.eq(command.weights),
            loop.inner.eq(1),
            loop.outer.eq(command.weight_step),
            loop.count.eq(command.channels),
            loop.runs.eq(command.tiles),
            sink.payload.weights.as_value().eq(
                Cat(word.word_select(i, _BYTE)[:bits] for i in weights)
            ),
            sink.payload.last.eq(items.payload.last),
            sink.valid.eq(items.valid),
            items.ready.eq(sink.ready),
        ]
        m.d.sync += self.freed.eq(items.valid & items.ready & items.payload.final)

    def _outputs(self, m: Module, jobs: StreamQueue, command: Any, summed: Any) -> Any:
        """Outputs into the buffer; ``done``, also of commands that have none."""
        given, job = jobs.input.payload, jobs.output.payload
        m.submodules.results = results = StreamQueue(8 * Geometry(self.cfg).word_bytes, depth=2)
        m.submodules.writer = writer = ResultWriter(self.cfg)
        join(m, self.matrix.output, results.input)
        join(m, results.output, writer.words)
        wiring.connect(m, wiring.flipped(self.buffer.output), writer.port)
        kept, settles = Signal(range(IN_FLIGHT + 1)), Signal()
        m.d.comb += [
            given.job.first.eq(command.output),
            given.job.count.eq(command.tiles * self.cfg.array.cols),
            given.job.write.eq(1),
            given.last.eq(command.last),
            writer.job.payload.eq(job.job),
            writer.job.valid.eq(jobs.output.valid & job.last),
            settles.eq(jobs.output.valid & ~job.last & (kept != 0)),
            jobs.output.ready.eq(Mux(job.last, writer.job.ready, settles)),
        ]
        m.d.sync += [
            kept.eq(kept + summed - settles),
            self.done.eq(jobs.output.valid & jobs.output.ready),
        ]
        return writer.beyond
