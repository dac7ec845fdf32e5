"""Multiply engine: weights, parameters and last outputs from the buffer through MPU and path."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from dstar.gen.config import Config
from dstar.golden.mpc.fields import Status
from dstar.golden.mpc.geometry import PARAMETER_BYTES, Geometry
from dstar.golden.mpc.isa import Engine
from dstar.rtl.mpc.engines.operands import (
    FULL_RATE,
    ItemReader,
    OperandReader,
    ResultWriter,
    job_layout,
)
from dstar.rtl.mpc.engines.ports import engine_members, join, read_port, tile_layout, write_port
from dstar.rtl.mpc.queue import StreamQueue
from dstar.rtl.output.path import channel_layout, output_command_layout
from dstar.rtl.streams import command_layout, weights_layout

#: Commands that may be on their way, each in another part of the engine.
IN_FLIGHT = 4
#: Bits of a weight in memory.
_BYTE = 8


def weight_channels(cfg: Config) -> int:
    """Channels whose weights the MPU takes at once: a buffer's word, or a part without rest."""
    rows = Geometry(cfg).rows_per_word
    return min(rows & -rows, 1 << max(0, cfg.numeric.channel_bits - 1))


def _products_layout(cfg: Config) -> data.StructLayout:
    """A command on its way to the MPU."""
    columns = cfg.core.columns
    return data.StructLayout(
        {
            "tiles": unsigned(Geometry(cfg).column_tiles.bit_length()),
            "tile": tile_layout(cfg),
            "output": output_command_layout(columns),
            "release": unsigned(1),
        }
    )


class MultiplyEngine(wiring.Component):
    """Carries out MULTIPLY (docs/isa.md) with a :class:`~dstar.rtl.matrix.MatrixUnit`.

    Members
    -------
    command, done, fault, busy, stalled: :func:`~dstar.rtl.mpc.engines.ports.engine_members`;
        ``stalled``: the array does not compute.
    freed: one pulse for each command, in order, when its weights are in the MPU.
    released: a pulse when the last product with an encoded tile begins, if its command releases
        it; the tile's place is free soon after.
    buffer: ports ``weights``, ``parameters``, ``before`` (reads) and ``output`` (writes).
    encoded: stream of :func:`~dstar.rtl.mpc.engines.ports.tile_layout`, from the quantize engine.
    matrix: streams to and from the matrix unit, by its names; ``weights`` are
        :func:`weight_channels` channels wide.
    beats: the lowest bit of the MPU's counter of compute cycles.

    Throughput: the MPU's, while a weight word, a word of last outputs and an output have their
    banks each cycle.  Up to :data:`IN_FLIGHT` commands overlap.  Their weights are read ahead;
    parameters and last outputs that the command before writes are waited for.

    Errors: ``TILES``, ``TABLE``; ``RANGE`` when an address or a column is reached.
    """

    def __init__(self, cfg: Config) -> None:
        self.cfg = cfg
        vectors = stream.Signature(data.ArrayLayout(16, cfg.array.rows))
        rows = weights_layout(cfg, channels=weight_channels(cfg))
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
        cfg, cols = self.cfg, self.cfg.array.cols
        m.submodules.stage = stage = StreamQueue(self.command.payload.shape(), depth=1)
        wiring.connect(m, wiring.flipped(self.command), stage.input)
        command, begin = stage.output.payload, Signal()

        weights_ready, weights_beyond = self._weights(m, command, begin)
        products_ready, summed, misfit = self._products(m, command, begin)
        operands_ready, operands_beyond = self._operands(m, command, begin)
        m.submodules.jobs = jobs = StreamQueue(
            data.StructLayout({"job": job_layout(cfg), "last": unsigned(1)}), depth=IN_FLIGHT
        )
        m.d.comb += [
            begin.eq(
                stage.output.valid
                & weights_ready
                & products_ready
                & operands_ready
                & jobs.input.ready
            ),
            stage.output.ready.eq(begin),
            jobs.input.valid.eq(begin),
            jobs.input.payload.job.first.eq(command.output),
            jobs.input.payload.job.count.eq(command.tiles * cols),
            jobs.input.payload.job.write.eq(1),
            jobs.input.payload.last.eq(command.last),
        ]
        output_beyond = self._outputs(m, jobs, summed)

        # A walk that ends beyond the buffer belongs to the newest command of its part.
        oldest = jobs.level == 1
        beyond = output_beyond | operands_beyond | (weights_beyond & oldest)
        turned = Signal()
        m.d.sync += turned.eq(self.beats)
        m.d.comb += [
            self.fault.valid.eq(~self.done & (beyond | (misfit != Status.OK))),
            self.fault.status.eq(Mux(beyond, Status.RANGE, misfit)),
            self.busy.eq(stage.output.valid | jobs.output.valid | self.done),
            self.stalled.eq(self.busy & (turned == self.beats)),
        ]
        return m

    def _weights(self, m: Module, command: Any, begin: Signal) -> tuple[Any, Any]:
        """Weight rows into the MPU; ``freed`` with the last."""
        cfg, stream_ = self.cfg, self.matrix.weights
        m.submodules.weights = reader = ItemReader(
            cfg,
            width=_BYTE * cfg.array.cols,
            per=Geometry(cfg).rows_per_word,
            group=weight_channels(cfg),
            depth=FULL_RATE,
        )
        wiring.connect(m, wiring.flipped(self.buffer.weights), reader.port)
        loop, items = reader.start.payload, reader.items
        bits = cfg.numeric.weight_bits
        count = len(items.payload.data) // _BYTE
        m.d.comb += [
            reader.start.valid.eq(begin),
            loop.first.eq(command.weights),
            loop.inner.eq(1),
            loop.outer.eq(command.weight_step),
            loop.count.eq(command.channels),
            loop.runs.eq(command.tiles),
            stream_.payload.weights.as_value().eq(
                Cat(items.payload.data.word_select(i, _BYTE)[:bits] for i in range(count))
            ),
            stream_.payload.last.eq(items.payload.last),
            stream_.valid.eq(items.valid),
            items.ready.eq(stream_.ready),
        ]
        m.d.sync += self.freed.eq(items.valid & items.ready & items.payload.final)
        return reader.start.ready, reader.beyond

    def _products(self, m: Module, command: Any, begin: Signal) -> tuple[Any, Any, Signal]:
        """One command a column tile, to the MPU and to the output path.

        Returns
        -------
        Whether a command can come; a pulse for each command that keeps its sums, with the last of
        them; the status of the oldest command.
        """
        cfg, cols = self.cfg, self.cfg.array.cols
        m.submodules.products = products = StreamQueue(_products_layout(cfg), depth=IN_FLIGHT)
        path = output_command_layout(cfg.core.columns)
        m.submodules.stores = stores = StreamQueue(
            data.StructLayout({"output": path, "ends": unsigned(1)}), depth=IN_FLIGHT
        )
        given = products.input.payload
        m.d.comb += [
            products.input.valid.eq(begin),
            given.tiles.eq(command.tiles),
            given.tile.channels.eq(command.channels),
            given.tile.finest.eq(command.finest),
            given.output.first.eq(command.first),
            given.output.last.eq(command.last),
            given.output.keyframe.eq(command.keyframe),
            given.output.finest.eq(command.finest),
            given.output.base.eq(command.base),
            given.release.eq(command.release),
        ]

        job, tile = products.output.payload, self.encoded.payload
        number = Signal.like(job.tiles)
        column, offset = Signal(range(2 * cfg.core.columns)), Signal(range(2 * cfg.core.columns))
        able, issues, ends, fits = Signal(), Signal(), Signal(), Signal()
        status = Signal(Status)
        m.d.comb += [
            column.eq(job.output.base + offset),
            fits.eq(column <= cfg.core.columns - cols),
            ends.eq(number == job.tiles - 1),
            able.eq(products.output.valid & self.encoded.valid & (status == Status.OK)),
        ]
        with m.If(~fits):
            m.d.comb += status.eq(Status.RANGE)
        with m.Elif(job.tile.channels != tile.channels):
            m.d.comb += status.eq(Status.TILES)
        with m.Elif(job.tile.finest != tile.finest):
            m.d.comb += status.eq(Status.TABLE)
        out = self.matrix.command
        m.d.comb += [
            out.valid.eq(able & stores.input.ready),
            out.payload.release_weights.eq(1),
            out.payload.release_slices.eq(ends & job.release),
            issues.eq(out.valid & out.ready),
            products.output.ready.eq(issues & ends),
            self.encoded.ready.eq(issues & ends & job.release),
            stores.input.valid.eq(issues),
            stores.input.payload.output.eq(job.output),
            stores.input.payload.output.base.eq(column),
            stores.input.payload.ends.eq(ends),
        ]
        m.d.sync += self.released.eq(self.encoded.ready)
        with m.If(issues):
            m.d.sync += [
                number.eq(Mux(ends, 0, number + 1)),
                offset.eq(Mux(ends, 0, offset + cols)),
            ]

        left = stores.output.payload
        store = self.matrix.store
        summed = Signal()
        m.d.comb += [
            store.payload.eq(left.output),
            store.valid.eq(stores.output.valid),
            stores.output.ready.eq(store.ready),
            summed.eq(store.valid & store.ready & left.ends & ~left.output.last),
        ]
        before = self._unfinished(m, "begun", issues & ends)
        misfit = Signal(Status)
        with m.If(products.output.valid & self.encoded.valid & (before == 0)):
            m.d.comb += misfit.eq(status)
        return products.input.ready, summed, misfit

    def _operands(self, m: Module, command: Any, begin: Signal) -> tuple[Any, Any]:
        """Parameters and last outputs for the output path."""
        cfg, cols, geometry = self.cfg, self.cfg.array.cols, Geometry(self.cfg)
        m.submodules.parameters = parameters = ItemReader(
            cfg, width=8 * PARAMETER_BYTES, per=geometry.parameters_per_word
        )
        m.submodules.before = before = OperandReader(cfg)
        wiring.connect(m, wiring.flipped(self.buffer.parameters), parameters.port)
        wiring.connect(m, wiring.flipped(self.buffer.before), before.port)
        join(m, before.words, self.matrix.before)
        channel, items = self.matrix.channel, parameters.items
        m.d.comb += [
            channel.payload.scale.eq(items.payload.data[:16]),
            channel.payload.bias.eq(items.payload.data[16:]),
            channel.valid.eq(items.valid),
            items.ready.eq(channel.ready),
        ]

        m.submodules.operands = operands = StreamQueue(command.shape(), depth=IN_FLIGHT)
        job, opens = operands.output.payload, Signal()
        unfinished = self._unfinished(m, "opened", opens)
        m.d.comb += [
            operands.input.valid.eq(begin),
            operands.input.payload.eq(command),
            opens.eq(
                operands.output.valid
                & (
                    ~job.last
                    | (
                        parameters.start.ready
                        & before.start.ready
                        & ~self._awaits_outputs(m, job, opens, unfinished)
                    )
                )
            ),
            operands.output.ready.eq(opens),
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
        return operands.input.ready, (parameters.beyond | before.beyond) & (unfinished == 1)

    def _awaits_outputs(self, m: Module, job: Any, opens: Signal, unfinished: Signal) -> Signal:
        """Whether a command reads what commands before it still write."""
        cfg, cols = self.cfg, self.cfg.array.cols
        words = range(cfg.core.words + cfg.core.columns + 1)
        first, end, writes = Signal(words), Signal(words), Signal()
        with m.If(opens):
            m.d.sync += [
                first.eq(job.output),
                end.eq(job.output + job.tiles * cols),
                writes.eq(job.last),
            ]
        result = Signal()

        def overlaps(start: Any, count: Any) -> Any:
            return (start < end) & (first < start + count)

        reads = overlaps(job.parameters, job.tiles * Geometry(cfg).parameter_words) | (
            overlaps(job.before, job.tiles * cols) & ~job.keyframe
        )
        m.d.comb += result.eq((unfinished > 1) | ((unfinished == 1) & writes & reads))
        return result

    def _unfinished(self, m: Module, name: str, entered: Any) -> Signal:
        """Commands that entered a part of the engine and are not done."""
        count = Signal(range(IN_FLIGHT + 2), name=name)
        m.d.sync += count.eq(count + entered - self.done)
        return count

    def _outputs(self, m: Module, jobs: StreamQueue, summed: Any) -> Any:
        """Outputs into the buffer; ``done``, also of commands that have none."""
        cfg = self.cfg
        word_bits = 8 * Geometry(cfg).word_bytes
        m.submodules.results = results = StreamQueue(word_bits, depth=2)
        m.submodules.writer = writer = ResultWriter(cfg)
        join(m, self.matrix.output, results.input)
        join(m, results.output, writer.words)
        wiring.connect(m, wiring.flipped(self.buffer.output), writer.port)
        job, kept = jobs.output.payload, Signal(range(IN_FLIGHT + 1))
        settles = Signal()
        m.d.comb += [
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
