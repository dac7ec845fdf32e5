"""Products of encoded tiles with column tiles of weights."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from dstar.gen.config import Config
from dstar.golden.mpc.fields import Status
from dstar.golden.mpc.isa import Engine
from dstar.rtl.mpc.decode import STATUS_BITS, command_layout
from dstar.rtl.mpc.engines.flight import IN_FLIGHT, unfinished
from dstar.rtl.mpc.engines.ports import tile_layout
from dstar.rtl.mpc.queue import StreamQueue
from dstar.rtl.output.path import output_command_layout
from dstar.rtl.streams import command_layout as mpu_command_layout


class Products(wiring.Component):
    """For each MULTIPLY a command a column tile, to the MPU and to the output path.

    Members
    -------
    job: stream of MULTIPLYs.
    encoded: stream of :func:`~dstar.rtl.mpc.engines.ports.tile_layout`.
    command, store: streams to MPU and output path.
    released: a pulse when the last product with an encoded tile begins.
    summed: a pulse for each job that keeps its sums, with the last of them.
    done: from the engine, a pulse for each job.
    status: of the oldest job that is not done, if it does not fit its tile or the kept sums.
    """

    def __init__(self, cfg: Config) -> None:
        self.cfg = cfg
        super().__init__(
            {
                "job": In(stream.Signature(command_layout(cfg, Engine.MULTIPLY))),
                "encoded": In(stream.Signature(tile_layout(cfg))),
                "command": Out(stream.Signature(mpu_command_layout())),
                "store": Out(stream.Signature(output_command_layout(cfg.core.columns))),
                "released": Out(1),
                "summed": Out(1),
                "done": In(1),
                "status": Out(STATUS_BITS),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """A job against its tile; a counter of column tiles; a queue on the way to the path."""
        m = Module()
        cfg, cols = self.cfg, self.cfg.array.cols
        m.submodules.jobs = jobs = StreamQueue(self.job.payload.shape(), depth=IN_FLIGHT)
        wiring.connect(m, wiring.flipped(self.job), jobs.input)
        job, tile = jobs.output.payload, self.encoded.payload

        number = Signal.like(job.tiles)
        offset, column = (Signal(range(2 * cfg.core.columns)) for _ in range(2))
        status, ends, issues = Signal(STATUS_BITS), Signal(), Signal()
        m.d.comb += [
            column.eq(job.base + offset),
            ends.eq(number == job.tiles - 1),
        ]
        with m.If(column > cfg.core.columns - cols):
            m.d.comb += status.eq(Status.RANGE)
        with m.Elif(job.channels != tile.channels):
            m.d.comb += status.eq(Status.TILES)
        with m.Elif(job.finest != tile.finest):
            m.d.comb += status.eq(Status.TABLE)

        # What the path gets, and whether it is the last of its job.
        layout = data.StructLayout({"store": self.store.payload.shape(), "ends": unsigned(1)})
        m.submodules.stores = stores = StreamQueue(layout, depth=IN_FLIGHT)
        store, known = stores.input.payload.store, Signal()
        m.d.comb += [
            known.eq(jobs.output.valid & self.encoded.valid),
            self.command.valid.eq(known & (status == Status.OK) & stores.input.ready),
            self.command.payload.release_weights.eq(1),
            self.command.payload.release_slices.eq(ends & job.release),
            issues.eq(self.command.valid & self.command.ready),
            jobs.output.ready.eq(issues & ends),
            self.encoded.ready.eq(issues & ends & job.release),
            stores.input.valid.eq(issues),
            stores.input.payload.ends.eq(ends),
            store.base.eq(column),
        ]
        for name in ("first", "last", "keyframe", "finest"):
            m.d.comb += store[name].eq(job[name])
        m.d.sync += self.released.eq(self.encoded.ready)
        with m.If(issues):
            m.d.sync += [
                number.eq(Mux(ends, 0, number + 1)),
                offset.eq(Mux(ends, 0, offset + cols)),
            ]

        leaving = stores.output
        before = unfinished(m, issues & ends, self.done)
        m.d.comb += [
            self.store.payload.eq(leaving.payload.store),
            self.store.valid.eq(leaving.valid),
            leaving.ready.eq(self.store.ready),
            self.summed.eq(
                leaving.valid & leaving.ready & leaving.payload.ends & ~leaving.payload.store.last
            ),
            self.status.eq(Mux(known & (before == 0), status, Status.OK)),
        ]
        return m
