"""The MPU's output path: inverse quantization and accumulation of drained columns."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from dstar.gen.config import EXPONENT_BITS, Config
from dstar.rtl.hierarchy import shared
from dstar.rtl.output.lane import SCALE_BIAS, SCALE_EXPONENT, SCALE_FRACTION, OutputLane
from dstar.rtl.streams import sums_layout


def output_command_layout(columns: int) -> data.StructLayout:
    """One tile product on its way out.

    ``first``, ``last``: of the k tiles that are added up.  ``keyframe``: add the channel's bias,
    not last step's output.  ``finest``: exponent of the common unit, that of the step's bin
    table.  ``base``: where the tile's column sums are kept.
    """
    return data.StructLayout(
        {
            "first": unsigned(1),
            "last": unsigned(1),
            "keyframe": unsigned(1),
            "finest": signed(EXPONENT_BITS),
            "base": unsigned(max(1, (columns - 1).bit_length())),
        }
    )


def channel_layout() -> data.StructLayout:
    """An output channel's weight scale (bfloat16 without sign) and bias (binary16)."""
    return data.StructLayout(
        {"scale": unsigned(SCALE_FRACTION + SCALE_EXPONENT), "bias": unsigned(16)}
    )


class OutputPath(wiring.Component):
    """Inverse quantization and accumulation (paper, section 4.2; :mod:`dstar.golden.output`).

    Column sums of a tile are added to those of the k tiles before, exactly, in a memory; with the
    last k tile they are multiplied by the channel's scale, rounded to binary16, and last step's
    output or the bias is added.

    Parameters
    ----------
    cfg: array and widths.
    columns: column sums kept between k tiles, at least ``array.cols``: those of one column tile
        if k tiles follow each other, all of a layer's if column tiles do.
    k_tiles: most k tiles of a layer; widens the sums.

    Members
    -------
    command: stream of :func:`output_command_layout`, one for each tile product.
    sums: stream of :func:`~dstar.rtl.streams.sums_layout`, from the MPU.
    channel: stream of :func:`channel_layout`, one for each column of a last k tile.
    before: stream of token vectors (``rows`` binary16 values), last step's output, one for each
        column of a last k tile that is no keyframe.
    output: stream of token vectors.
    saturated: some output left binary16's range since reset or ``clear`` (sticky).

    Latency: :attr:`latency`.  Throughput: one column a cycle.

    Raises
    ------
    ValueError
        If a parameter is out of range.
    """

    def __init__(self, cfg: Config, *, columns: int | None = None, k_tiles: int = 64) -> None:
        columns = cfg.array.cols if columns is None else columns
        if columns < cfg.array.cols:
            raise ValueError(f"columns must be at least {cfg.array.cols}, got {columns}")
        if k_tiles < 1:
            raise ValueError(f"k_tiles must be at least 1, got {k_tiles}")
        self.cfg, self.columns, self.k_tiles = cfg, columns, k_tiles
        vectors = stream.Signature(data.ArrayLayout(16, cfg.array.rows))
        super().__init__(
            {
                "command": In(stream.Signature(output_command_layout(columns))),
                "sums": In(stream.Signature(sums_layout(cfg))),
                "channel": In(stream.Signature(channel_layout())),
                "before": In(vectors),
                "output": Out(vectors),
                "saturated": Out(1),
                "clear": In(1),
            }
        )

    @property
    def width(self) -> int:
        """Bits of a sum over all k tiles: proof of no overflow."""
        return int((self.k_tiles * self.cfg.numeric.acc_bound).bit_length() + 1)

    @property
    def latency(self) -> int:
        """Cycles from a column's sums to its output: memory, add, multiply, round, and add."""
        return 5

    def elaborate(self, platform: Any) -> Module:
        """A pipeline that stands still while its output waits."""
        m = Module()
        rows, cols, width = self.cfg.array.rows, self.cfg.array.cols, self.width
        m.submodules.memory = memory = Memory(shape=rows * width, depth=self.columns, init=[])
        write, read = memory.write_port(), memory.read_port()
        command, sums = self.command.payload, self.sums.payload

        # Stage 0: take a column with all that belongs to it, and read its partial sums.
        enable, take = Signal(), Signal()
        column = Signal(range(cols))
        needs_before = command.last & ~command.keyframe
        m.d.comb += [
            enable.eq(~self.output.valid | self.output.ready),
            take.eq(
                enable
                & self.command.valid
                & self.sums.valid
                & (self.channel.valid | ~command.last)
                & (self.before.valid | ~needs_before)
            ),
            self.sums.ready.eq(take),
            self.channel.ready.eq(take & command.last),
            self.before.ready.eq(take & needs_before),
            self.command.ready.eq(take & (column == cols - 1)),
        ]
        with m.If(take):
            m.d.sync += column.eq(Mux(column == cols - 1, 0, column + 1))
        address = Signal.like(read.addr)
        m.d.comb += [read.addr.eq(command.base + column), read.en.eq(enable)]

        bias = self.channel.payload.bias
        kept_sums = Signal.like(sums.sums.as_value(), reset_less=True)
        gap = Signal(range(self.cfg.numeric.max_shift + 1), reset_less=True)
        first = Signal(reset_less=True)
        scale = Signal(SCALE_FRACTION + SCALE_EXPONENT, reset_less=True)
        finest = Signal(signed(EXPONENT_BITS), reset_less=True)
        addend = Signal(16 * rows, reset_less=True)
        storing, leaving = Signal(), Signal()
        with m.If(enable):
            m.d.sync += [
                kept_sums.eq(sums.sums.as_value()),
                # An empty tile has sums of zero and any exponent.
                gap.eq(command.finest - sums.exponent),
                first.eq(command.first),
                scale.eq(self.channel.payload.scale),
                finest.eq(command.finest),
                addend.eq(
                    Mux(command.keyframe, bias.replicate(rows), self.before.payload.as_value())
                ),
                address.eq(read.addr),
                storing.eq(take & ~command.last),
                leaving.eq(take & command.last),
            ]

        # Stages 1 to 4 are in the lanes; what they need later travels beside them.
        power = Signal(signed(SCALE_EXPONENT + 2), reset_less=True)
        significand = Signal(SCALE_FRACTION + 1, reset_less=True)
        addends = [addend, *(Signal.like(addend, name=f"addend{i}") for i in (2, 3, 4))]
        valid = [leaving, *(Signal(name=f"valid{i}") for i in (2, 3, 4))]
        with m.If(enable):
            m.d.sync += [
                significand.eq(Cat(scale[:SCALE_FRACTION], Const(1, 1))),
                power.eq(scale[SCALE_FRACTION:] - finest - (SCALE_BIAS + SCALE_FRACTION)),
                *(after.eq(before) for before, after in pairwise(addends)),
                *(after.eq(before) for before, after in pairwise(valid)),
            ]
        m.d.comb += [write.en.eq(storing & enable), write.addr.eq(address)]
        overs = []
        for row in range(rows):
            lane = OutputLane(self.cfg, width=width)
            m.submodules[f"lane{row}"] = shared(platform, lane)
            m.d.comb += [
                lane.enable.eq(enable),
                lane.sum.eq(kept_sums.word_select(row, self.cfg.numeric.acc_width)),
                lane.gap.eq(gap),
                lane.kept.eq(read.data.word_select(row, width)),
                lane.first.eq(first),
                write.data.word_select(row, width).eq(lane.total),
                lane.scale.eq(significand),
                lane.exponent.eq(power),
                lane.addend.eq(addends[3].word_select(row, 16)),
            ]
            overs.append(lane.over)
            with m.If(enable):
                m.d.sync += self.output.payload[row].eq(lane.half)
        with m.If(self.clear):
            m.d.sync += self.saturated.eq(0)
        with m.If(enable):
            m.d.sync += self.output.valid.eq(valid[3])
            with m.If(valid[3] & Cat(*overs).any()):
                m.d.sync += self.saturated.eq(1)
        return m
