"""Vector unit: lanes, their shared coefficient tables, and the sequencer."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, Cat, Const, Module, Mux, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from dstar.gen.config import Config
from dstar.golden.vpu.generate import generate
from dstar.golden.vpu.isa import Op
from dstar.golden.vpu.steps import latency
from dstar.golden.vpu.tables import DEGREE, TABLES, build_table
from dstar.rtl.hierarchy import shared
from dstar.rtl.vpu.float import from_half, wire
from dstar.rtl.vpu.lane import VPULane
from dstar.rtl.vpu.sequencer import VPUSequencer, command_layout


class VPU(wiring.Component):
    """Vector processing unit (paper, section 4.2): runs programs on streams of token vectors.

    ``rows`` lanes, each with four registers (private floats, :mod:`dstar.golden.vpu.float`) and
    an exact fixed-point accumulator, take the same step at the same time.  Programs are those of
    :mod:`dstar.golden.vpu.programs`; softmax over any number of keys and LayerNorm over any number
    of channels are programs.

    Members
    -------
    command: stream of :func:`~dstar.rtl.vpu.sequencer.command_layout`, an instruction a word.
    input: stream of vectors, ``rows`` binary16 values.
    scalar: stream of binary16 values, each for all lanes.
    output: stream of vectors, ``rows`` binary16 values, rounded to nearest even.

    Latency: :attr:`latencies`.  Throughput: one vector in the cycles of a program's body,
    :func:`dstar.golden.vpu.steps.body_cycles`; it waits for streams and is never overrun.

    Raises
    ------
    ConfigError
        If the tables of ``vector`` miss their bound (:mod:`dstar.golden.vpu.generate`).
    """

    def __init__(self, cfg: Config) -> None:
        self.cfg = cfg
        generate(cfg.vector)
        vectors = stream.Signature(data.ArrayLayout(16, cfg.array.rows))
        super().__init__(
            {
                "command": In(stream.Signature(command_layout())),
                "input": In(vectors),
                "scalar": In(stream.Signature(16)),
                "output": Out(vectors),
            }
        )

    @property
    def latencies(self) -> dict[str, int]:
        """Cycles of an instruction of each operation."""
        return {op.name.lower(): latency(op, self.cfg.array.rows) for op in Op}

    def elaborate(self, platform: Any) -> Module:
        """Tables once for all lanes: a lane only selects among a bus of segments."""
        m = Module()
        vector, rows = self.cfg.vector, self.cfg.array.rows
        m.submodules.sequencer = sequencer = VPUSequencer(vector, lanes=rows)
        wiring.connect(m, wiring.flipped(self.command), sequencer.command)
        m.d.comb += [
            sequencer.input_valid.eq(self.input.valid),
            self.input.ready.eq(sequencer.input_ready),
            sequencer.scalar_valid.eq(self.scalar.valid),
            self.scalar.ready.eq(sequencer.scalar_ready),
            self.output.valid.eq(sequencer.output_valid),
            sequencer.output_ready.eq(self.output.ready),
        ]
        scalar = wire(m, "scalar_private", from_half(m, "scalar", self.scalar.payload))
        broadcast = wire(m, "broadcast", Mux(sequencer.from_scalar, scalar, sequencer.constant))
        tables = [
            build_table(name, segments=vector.segments, width=vector.width) for name in TABLES
        ]
        # A power of two of entries, so that every number of a table names one.
        padded = [*tables, *[tables[-1]] * (-len(tables) % (1 << len(sequencer.table)))]
        rows_of = Array(
            Array(
                Cat(Const(int(c), signed(vector.width)) for c in table.coefficients[:, power])
                for power in range(DEGREE + 1)
            )
            for table in padded
        )
        bus = wire(
            m,
            "coefficients",
            rows_of[sequencer.table][sequencer.power],
            vector.segments * vector.width,
        )
        lanes = [VPULane(vector) for _ in range(rows)]
        for number, lane in enumerate(lanes):
            m.submodules[f"lane{number}"] = shared(platform, lane)
            m.d.comb += [
                lane.control.eq(sequencer.control),
                lane.coefficients.eq(bus),
                lane.vector.eq(self.input.payload[number]),
                lane.broadcast.eq(broadcast),
                lane.shared.eq(lanes[0].result),
                # A lane without a partner keeps its value: the maximum with itself, the sum with 0.
                lane.fold_operand.eq(Mux(sequencer.control.maximum, lane.operand, 0)),
                self.output.payload[number].eq(lane.half),
            ]
            for bit in range(len(sequencer.fold)):
                stride = 1 << bit
                if number < stride and number + stride < rows:
                    other = lanes[number + stride]
                    with m.If(sequencer.fold[bit]):
                        m.d.comb += lane.fold_operand.eq(other.operand)
        return m
