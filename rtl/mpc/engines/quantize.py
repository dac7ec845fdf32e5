"""Quantize engine: activations and references from the buffer through the QPU."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from dstar.gen.config import Config
from dstar.golden.mpc.fields import Status
from dstar.golden.mpc.geometry import Geometry
from dstar.golden.mpc.isa import HELD_TILES, Engine, Opcode
from dstar.rtl.mpc.engines.operands import OperandReader, ResultWriter, job_layout
from dstar.rtl.mpc.engines.ports import engine_members, join, read_port, tile_layout, write_port
from dstar.rtl.mpc.engines.table import TableCheck
from dstar.rtl.mpc.queue import StreamQueue
from dstar.rtl.qpu.streams import qpu_command_layout, vector_layout


class QuantizeEngine(wiring.Component):
    """Carries out TABLE and QUANTIZE (docs/isa.md) with a :class:`~dstar.rtl.qpu.qpu.QPU`.

    Members
    -------
    command, done, fault, busy, stalled: :func:`~dstar.rtl.mpc.engines.ports.engine_members`;
        ``stalled``: the QPU takes no activations.
    buffer: ports ``x``, ``reference`` (reads) and ``next`` (writes).
    tile, x, reference, next_reference: to and from the QPU, ``tile`` being its commands.
    encoded: stream of :func:`~dstar.rtl.mpc.engines.ports.tile_layout`: tiles begun, in order.

    Throughput: a channel a cycle, three accesses of the buffer, also from tile to tile: the next
    one's activations are read while the references of the last are still being written.  An
    instruction that reads those waits for them, so to a program each comes after the other.

    Errors: ``TABLE``; ``RANGE`` when an address is reached.
    """

    def __init__(self, cfg: Config) -> None:
        self.cfg = cfg
        vectors = stream.Signature(vector_layout(cfg))
        ports = {"x": Out(read_port(cfg)), "reference": Out(read_port(cfg))}
        super().__init__(
            {
                **engine_members(cfg, Engine.QUANTIZE),
                "buffer": Out(wiring.Signature({**ports, "next": Out(write_port(cfg))})),
                "tile": Out(stream.Signature(qpu_command_layout(cfg))),
                "x": Out(vectors),
                "reference": Out(vectors),
                "next_reference": In(vectors),
                "encoded": Out(stream.Signature(tile_layout(cfg))),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Command, then what it starts: operands, QPU, results."""
        m = Module()
        m.submodules.stage = stage = StreamQueue(self.command.payload.shape(), depth=1)
        m.submodules.x = x = OperandReader(self.cfg)
        m.submodules.reference = reference = OperandReader(self.cfg)
        m.submodules.tiles = tiles = StreamQueue(self.tile.payload.shape(), depth=2)
        m.submodules.encoded = encoded = StreamQueue(tile_layout(self.cfg), depth=HELD_TILES)
        m.submodules.results = results = StreamQueue(8 * Geometry(self.cfg).word_bytes, depth=2)
        m.submodules.jobs = jobs = StreamQueue(job_layout(self.cfg), depth=2)
        m.submodules.writer = writer = ResultWriter(self.cfg)
        m.submodules.table = table = TableCheck(self.cfg)
        wiring.connect(m, wiring.flipped(self.command), stage.input)
        for reader, port, vectors in (
            (x, self.buffer.x, self.x),
            (reference, self.buffer.reference, self.reference),
        ):
            wiring.connect(m, wiring.flipped(port), reader.port)
            join(m, reader.words, vectors)
        wiring.connect(m, tiles.output, wiring.flipped(self.tile))
        wiring.connect(m, encoded.output, wiring.flipped(self.encoded))
        join(m, self.next_reference, results.input)
        join(m, results.output, writer.words)
        join(m, jobs.output, writer.job)
        wiring.connect(m, wiring.flipped(self.buffer.next), writer.port)

        # What the oldest command needs before it starts.
        command, programs = stage.output.payload, Signal()
        able, begin, write_row = Signal(), Signal(), Signal()
        m.d.comb += [
            programs.eq(command.opcode == Opcode.TABLE),
            table.check.eq(stage.output.valid & ~programs),
            able.eq(stage.output.valid & jobs.input.ready & tiles.input.ready),
            write_row.eq(able & programs & ~jobs.output.valid),
            begin.eq(
                able
                & ~programs
                & table.known
                & table.legal
                & x.start.ready
                & reference.start.ready
                & encoded.input.ready
                & ~self._awaits_references(m, command, begin, jobs.output.valid)
            ),
            stage.output.ready.eq(begin | write_row),
        ]
        m.d.comb += [
            table.write.eq(write_row),
            table.index.eq(command.index),
            table.row.threshold.eq(command.threshold),
            table.row.slices.eq(command.slices),
            table.row.exponent.eq(command.exponent),
            tiles.input.valid.eq(begin | write_row),
            tiles.input.payload.program.eq(programs),
            tiles.input.payload.index.eq(command.index),
            tiles.input.payload.row.eq(table.row),
            tiles.input.payload.keyframe.eq(command.keyframe),
            tiles.input.payload.previous.eq(command.previous),
            tiles.input.payload.last_channel.eq(command.channels - 1),
            jobs.input.valid.eq(begin | write_row),
            jobs.input.payload.first.eq(command.next),
            jobs.input.payload.count.eq(Mux(programs, 0, command.channels)),
            jobs.input.payload.write.eq(command.write),
            encoded.input.valid.eq(begin),
            encoded.input.payload.channels.eq(command.channels),
            encoded.input.payload.finest.eq(table.finest),
        ]
        for reader, first, used in (
            (x, command.x, begin),
            (reference, command.reference, begin & ~command.keyframe),
        ):
            loop = reader.start.payload
            m.d.comb += [
                reader.start.valid.eq(used),
                loop.first.eq(first),
                loop.inner.eq(1),
                loop.count.eq(command.channels),
                loop.runs.eq(1),
            ]

        # A walk that ends beyond the buffer belongs to the newest job.
        oldest = jobs.level == 1
        refused = table.check & table.known & ~table.legal & ~jobs.output.valid
        m.d.comb += [
            self.fault.valid.eq(
                ~self.done & (refused | writer.beyond | ((x.beyond | reference.beyond) & oldest))
            ),
            self.fault.status.eq(Mux(refused, Status.TABLE, Status.RANGE)),
            self.busy.eq(stage.output.valid | jobs.output.valid | self.done),
            self.stalled.eq(self.busy & ~(self.x.valid & self.x.ready)),
        ]
        m.d.sync += self.done.eq(jobs.output.valid & jobs.output.ready)
        return m

    def _awaits_references(self, m: Module, command: Any, begin: Signal, writing: Any) -> Signal:
        """Whether the command reads what the one before still writes."""
        words = range(self.cfg.core.words + self.cfg.numeric.k_tile + 1)
        first, end, writes = Signal(words), Signal(words), Signal()
        with m.If(begin):
            m.d.sync += [
                first.eq(command.next),
                end.eq(command.next + command.channels),
                writes.eq(command.write),
            ]
        result = Signal()

        def overlaps(start: Any) -> Any:
            return (start < end) & (first < start + command.channels)

        m.d.comb += result.eq(
            writing
            & writes
            & (overlaps(command.x) | (overlaps(command.reference) & ~command.keyframe))
        )
        return result
