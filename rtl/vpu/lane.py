"""One lane of the VPU: registers, adder, rounding stage, and the parts they serve."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import data
from amaranth.lib.wiring import In, Out

from dstar.gen.config import VectorConfig
from dstar.golden.vpu.float import WIDTH
from dstar.golden.vpu.isa import REGISTERS, Op
from dstar.golden.vpu.steps import Magnitude
from dstar.rtl.hierarchy import Shared, shared
from dstar.rtl.vpu.accumulator import VPUAccumulator
from dstar.rtl.vpu.control import accumulator_layout, control_layout, unrounded_layout
from dstar.rtl.vpu.float import Fields, add, from_half, maximum, round_magnitude, to_half, wire
from dstar.rtl.vpu.function import VPUFunction


class VPULane(Shared):
    """One lane of the VPU (paper, section 4.2: 64 parallel non-linear units, and the rest).

    All lanes take the same step at the same time, told by ``control``.

    Members
    -------
    control: :func:`~dstar.rtl.vpu.control.control_layout`.
    coefficients: those of one power of one table, one for each segment.
    vector, scalar, constant: operands (binary16, private float, private float).
    fold_accumulator, fold_operand: of the lane that a reduction takes in.
    shared: lane 0's result.
    accumulator, operand, result: this lane's accumulator, operand a and result of this cycle.
    half: the last result in binary16.
    """

    def __init__(self, cfg: VectorConfig) -> None:
        self.cfg = cfg
        accumulator = accumulator_layout(cfg)
        super().__init__(
            {
                "control": In(control_layout()),
                "coefficients": In(data.ArrayLayout(signed(cfg.width), cfg.segments)),
                "vector": In(16),
                "scalar": In(WIDTH),
                "constant": In(WIDTH),
                "fold_accumulator": In(accumulator),
                "fold_operand": In(WIDTH),
                "shared": In(WIDTH),
                "accumulator": Out(accumulator),
                "operand": Out(WIDTH),
                "result": Out(WIDTH),
                "half": Out(16),
            }
        )

    @property
    def module_name(self) -> str:
        """Verilog module name."""
        return "vpu_lane"

    def elaborate(self, platform: Any) -> Module:
        """Fetch, compute, round, write."""
        m = Module()
        control = self.control
        function, accumulator = VPUFunction(self.cfg), VPUAccumulator(self.cfg)
        m.submodules.function = shared(platform, function)
        m.submodules.accumulator = shared(platform, accumulator)

        # Fetch.  The order of sources is that of dstar.golden.vpu.isa.Source.
        registers = Array(Signal(WIDTH, name=f"r{i}", reset_less=True) for i in range(REGISTERS))
        a_bits, b_bits = (Signal(WIDTH, name=f"operand_{k}", reset_less=True) for k in "ab")
        sources = Array(
            [*registers, from_half(m, "vector", self.vector), self.scalar, self.constant]
        )
        negate = Cat(Const(0, WIDTH - 1), control.op == Op.SUBTRACT)
        a, b = Fields(m, "a", a_bits), Fields(m, "b", b_bits)
        other = Fields(m, "other", Mux(control.fold, self.fold_operand, b_bits))
        larger = wire(m, "larger", maximum(m, "maximum", a, other), WIDTH)
        with m.If(control.load):
            m.d.sync += [a_bits.eq(sources[control.a]), b_bits.eq(sources[control.b] ^ negate)]
        with m.Elif(control.fold & control.maximum):
            m.d.sync += a_bits.eq(larger)

        # Compute.
        m.d.comb += [
            function.control.eq(control),
            function.coefficients.eq(self.coefficients),
            function.a.eq(a_bits),
            function.b.eq(b_bits),
        ]
        layout = unrounded_layout(self.cfg)
        total = add(m, a, b, layout)
        stage = Signal(layout, reset_less=True)
        with m.Switch(control.magnitude):
            with m.Case(Magnitude.SUM):
                m.d.sync += stage.eq(total)
            with m.Case(Magnitude.ACCUMULATOR):
                m.d.sync += stage.eq(accumulator.unrounded)
            with m.Case(Magnitude.NONE):
                pass
            with m.Default():
                m.d.sync += stage.eq(function.unrounded)

        # Round and write.
        rounded = round_magnitude(m, stage)
        direct = Mux(control.maximum, larger, a_bits)
        result = Signal(WIDTH, reset_less=True)
        value = Mux(control.shared, self.shared, self.result)
        with m.If(control.finish | control.direct):
            m.d.sync += result.eq(value)
            for number, register in enumerate(registers):
                with m.If(control.dst == number):
                    m.d.sync += register.eq(value)
        m.d.comb += [
            self.result.eq(Mux(control.finish, rounded, direct)),
            self.operand.eq(a_bits),
            self.half.eq(to_half(m, "half", result)),
            accumulator.term.eq(result),
            accumulator.add.eq(control.accumulate),
            accumulator.fold.eq(control.fold & ~control.maximum),
            accumulator.other.eq(self.fold_accumulator),
            accumulator.clear.eq(control.clear),
            self.accumulator.eq(accumulator.value),
        ]
        return m
