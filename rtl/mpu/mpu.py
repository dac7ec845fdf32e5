"""Matrix unit: operand buffers, front end, systolic array and drain."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from dstar.gen.config import EXPONENT_BITS, SLICE_BITS, Config
from dstar.rtl.buffers import PingPong, SliceBank, WeightColumn
from dstar.rtl.hierarchy import shared
from dstar.rtl.mpu.array import PEArray, delayed
from dstar.rtl.mpu.drain import Drain
from dstar.rtl.mpu.issue import Issue, count_bits, words_per_tile
from dstar.rtl.streams import (
    codes_layout,
    command_layout,
    metadata_layout,
    slices_layout,
    sums_layout,
    weights_layout,
)


class MPU(wiring.Component):
    """Mixed-precision matrix unit (paper, section 4.2), down to the integers of each tile.

    ``sums[n, r] = sum over slices of value * 2**(exponent_last - exponent) * weight``, exact
    (numerics.md, 6), for ``rows`` tokens and ``cols`` output channels of a tile of up to
    ``k_tile`` channels.

    Encoded activation tiles, weight tiles and commands arrive on three streams, each at its own
    pace; activations and weights are double-buffered, so the next tile loads while this one is
    multiplied.  A command multiplies the oldest activation tile by the oldest weight tile, and
    says whether each of them is released afterwards.

    Parameters
    ----------
    weight_channels: channels of a word of ``weights``, a power of two up to ``k_tile``.

    Members
    -------
    slices: stream of :func:`~dstar.rtl.streams.slices_layout`.
    weights: stream of :func:`~dstar.rtl.streams.weights_layout`, channel 0 first.
    command: stream of :func:`~dstar.rtl.streams.command_layout`.
    output: stream of :func:`~dstar.rtl.streams.sums_layout`, column 0 first.
    perf: ``beats``, compute cycles, and ``slots``, lanes used in them, since reset, modulo 2**32.

    Throughput: ``beats`` of the tile (:mod:`dstar.golden.schedule`) or ``cols`` cycles, whichever
    is more; one slice word and one weight word loaded a cycle.  Back-pressure on the output is
    absorbed by waiting, never by loss.

    Latency: :attr:`latency`.
    """

    def __init__(self, cfg: Config, *, weight_channels: int = 1) -> None:
        most = 1 << max(0, cfg.numeric.channel_bits - 1)
        if weight_channels & (weight_channels - 1) or not 1 <= weight_channels <= most:
            raise ValueError(
                f"weight_channels must be a power of two from 1 to {most}, got {weight_channels}"
            )
        self.cfg = cfg
        self.weight_channels = weight_channels
        self.array = PEArray(cfg)
        super().__init__(
            {
                "slices": In(stream.Signature(slices_layout(cfg))),
                "weights": In(stream.Signature(weights_layout(cfg, channels=weight_channels))),
                "command": In(stream.Signature(command_layout())),
                "output": Out(stream.Signature(sums_layout(cfg))),
                "perf": Out(wiring.Signature({"beats": Out(32), "slots": Out(32)})),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from a job's last beat to its first output word, in an otherwise idle unit.

        One until the capturing beat, one from the front end to the array, the array's capture
        and drain, one to arm the pop and two through the output queue.
        """
        return 5 + self.array.capture_latency + self.array.drain_latency

    def elaborate(self, platform: Any) -> Module:
        """Buffers, front end, array, drain, in the order of the data."""
        m = Module()
        cfg = self.cfg
        m.submodules.issue = issue = Issue(cfg)
        m.submodules.array = array = self.array
        m.submodules.drain = drain = Drain(
            cfg, capture_latency=array.capture_latency, drain_latency=array.drain_latency
        )
        m.submodules.slice_buffers = slice_buffers = PingPong()
        m.submodules.weight_buffers = weight_buffers = PingPong()

        # One job: the oldest activation tile times the oldest weight tile.
        release = Signal(command_layout())
        m.d.comb += [
            slice_buffers.release.eq(issue.done & release.release_slices),
            weight_buffers.release.eq(issue.done & release.release_weights),
            issue.go.eq(
                self.command.valid
                & (slice_buffers.count > slice_buffers.release)
                & (weight_buffers.count > weight_buffers.release)
            ),
            self.command.ready.eq(issue.begin),
        ]
        with m.If(issue.begin):
            m.d.sync += release.eq(self.command.payload)

        records, exponent = self._slices(m, platform, slice_buffers, issue)
        addresses = self._digits(m, issue, array, records, weight_buffers.read_select)
        self._weights(m, platform, weight_buffers, addresses, array)

        # A tile is captured by the beat after its last, which may belong to the next tile.
        finished = Signal.like(exponent)
        with m.If(issue.done):
            m.d.sync += finished.eq(exponent)
        m.d.comb += [
            issue.capture_ready.eq(drain.capture_ready),
            drain.capture.eq(issue.capture),
            drain.exponent.eq(finished),
            array.pop.eq(drain.pop),
            array.start.eq(drain.start),
            drain.sums.eq(array.sums),
        ]
        wiring.connect(m, wiring.flipped(self.output), drain.output)

        slots = sum((issue.active[lane] for lane in range(cfg.array.lanes)), Value.cast(0))
        m.d.sync += [
            self.perf.beats.eq(self.perf.beats + issue.beat),
            self.perf.slots.eq(self.perf.slots + slots),
        ]
        return m

    def _slices(
        self, m: Module, platform: Any, buffers: PingPong, issue: Issue
    ) -> tuple[list[Any], Value]:
        """Load slice words; read the window at the front end's position, a bank a lane."""
        cfg, payload = self.cfg, self.slices.payload
        lanes, words = cfg.array.lanes, words_per_tile(cfg)
        index_bits = max(1, (words - 1).bit_length())
        lane_bits = lanes.bit_length() - 1

        index = Signal(range(max(2, words)))
        load = Signal()
        counts = Signal(data.ArrayLayout(count_bits(cfg), 2))
        exponents = Signal(data.ArrayLayout(EXPONENT_BITS, 2))
        m.d.comb += [
            self.slices.ready.eq(buffers.free),
            load.eq(self.slices.valid & buffers.free),
            buffers.loaded.eq(load & payload.last),
        ]
        with m.If(load):
            m.d.sync += [
                index.eq(Mux(payload.last, 0, index + 1)),
                counts[buffers.write_select].eq(index * lanes + payload.count),
                exponents[buffers.write_select].eq(payload.exponent),
            ]

        # Lane l holds the first slice of the window that lies in bank l.
        select = buffers.read_select ^ buffers.release
        word, rotation = issue.next_position[lane_bits:], issue.next_position[:lane_bits]
        record = data.StructLayout(
            {"codes": codes_layout(cfg).size, "metadata": metadata_layout(cfg)}
        )
        records = []
        for lane in range(lanes):
            bank = SliceBank(cfg, word_bits=record.size, address_bits=1 + index_bits)
            m.submodules[f"slice_bank_{lane}"] = shared(platform, bank)
            passed = rotation > lane if lane < lanes - 1 else Const(0, 1)
            m.d.comb += [
                bank.write.eq(load),
                bank.write_address.eq(Cat(index[:index_bits], buffers.write_select)),
                bank.write_data.eq(Cat(payload.codes[lane], payload.metadata[lane])),
                bank.address.eq(Cat((word + passed)[:index_bits], select)),
                issue.shifts[lane].eq(data.View(record, bank.data).metadata.shift),
            ]
            records.append(data.View(record, bank.data))
        m.d.comb += issue.count.eq(counts[buffers.read_select])
        return records, exponents[buffers.read_select].as_signed()

    def _digits(
        self,
        m: Module,
        issue: Issue,
        array: PEArray,
        records: list[Any],
        select: Value,
    ) -> list[Value]:
        """Turn slices into signed digits; return each lane's weight address."""
        lanes = self.cfg.array.lanes
        codes = [Signal(self.cfg.array.rows * SLICE_BITS, name=f"codes_{i}") for i in range(lanes)]
        offsets = []
        for lane, record in enumerate(records):
            active, unsigned = (Signal(name=f"{name}_{lane}") for name in ("active", "unsigned"))
            # u - 2 in two's complement is u with its top bit inverted.
            flip = Cat(Const(0, 1), unsigned).replicate(self.cfg.array.rows)
            m.d.comb += [
                active.eq(issue.active[lane]),
                unsigned.eq(active & ~record.metadata.signed),
                codes[lane].eq((record.codes & active.replicate(len(flip))) ^ flip),
            ]
            offsets += [Const(0, 1), unsigned]
        m.d.sync += [
            array.digits.eq(
                Cat(
                    code.word_select(row, SLICE_BITS)
                    for row in range(self.cfg.array.rows)
                    for code in codes
                )
            ),
            array.offset.eq(Cat(*offsets)),
        ]
        m.d.sync += [array.keep.eq(issue.keep), array.double.eq(issue.double)]
        return [Cat(record.metadata.channel, select) for record in records]

    def _weights(
        self,
        m: Module,
        platform: Any,
        buffers: PingPong,
        addresses: list[Value],
        array: PEArray,
    ) -> None:
        """Load weight rows; read four a cycle, skewed, a memory a cluster column.

        Rows are written with the same skew as they are read, so a buffer is free for its next
        tile as soon as the last beat has passed its first column.
        """
        cfg, payload = self.cfg, self.weights.payload
        columns = [
            WeightColumn(cfg, channels=self.weight_channels) for _ in range(cfg.array.block_cols)
        ]
        index = Signal(cfg.numeric.channel_bits - columns[0].select_bits)
        load = Signal()
        m.d.comb += [
            self.weights.ready.eq(buffers.free),
            load.eq(self.weights.valid & buffers.free),
            buffers.loaded.eq(load & payload.last),
        ]
        with m.If(load):
            m.d.sync += index.eq(Mux(payload.last, 0, index + 1))

        # The rightmost column drains first, so output channel 0 sits there.
        cols, cluster = cfg.array.cols, cfg.array.cluster
        chain: Any = Cat(*addresses)
        write, write_address = Value.cast(load), Cat(index, buffers.write_select)
        rows = payload.weights.as_value()
        for block, column in enumerate(columns):
            m.submodules[f"weight_column_{block}"] = shared(platform, column)
            physical = range(block * cluster, (block + 1) * cluster)
            given = Cat(
                rows.word_select(row * cols + cols - 1 - c, cfg.numeric.weight_bits)
                for row in range(self.weight_channels)
                for c in physical
            )
            m.d.comb += [
                column.write.eq(write),
                column.write_address.eq(write_address),
                column.write_data.eq(delayed(m, given, block, name=f"given_{block}")),
                column.address_i.eq(chain),
                array.weights.word_select(block, len(column.data)).eq(column.data),
            ]
            chain = column.address_o
            write = delayed(m, write, 1, name=f"write_{block}", reset_less=False)
            write_address = delayed(m, write_address, 1, name=f"write_address_{block}")
