"""One lane of the VPU: registers, adder, rounding stage, and the parts they serve."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data
from amaranth.lib.wiring import In, Out

from dstar.gen.config import VectorConfig
from dstar.golden.vpu.float import WIDTH
from dstar.golden.vpu.isa import REGISTERS, Op, Source
from dstar.golden.vpu.steps import Magnitude
from dstar.rtl.hierarchy import Shared, shared
from dstar.rtl.vpu.accumulator import VPUAccumulator
from dstar.rtl.vpu.control import control_layout, unrounded_layout
from dstar.rtl.vpu.float import (
    Fields,
    add,
    from_half,
    maximum,
    round_magnitude,
    smaller,
    to_half,
    wire,
)
from dstar.rtl.vpu.function import VPUFunction


class VPULane(Shared):
    """One lane of the VPU (paper, section 4.2: 64 parallel non-linear units, and the rest).

    All lanes take the same step at the same time, told by ``control``.

    Members
    -------
    control: :func:`~dstar.rtl.vpu.control.control_layout`.
    coefficients: those of one power of one table, one for each segment.
    vector: operand, binary16.  broadcast: operand that all lanes share, private float.
    fold_operand: operand a of the lane that a reduction takes in.
    shared: lane 0's result.
    operand, result: this lane's operand a and its result of this cycle.
    half: the last result in binary16.
    """

    def __init__(self, cfg: VectorConfig) -> None:
        self.cfg = cfg
        super().__init__(
            {
                "control": In(control_layout()),
                "coefficients": In(data.ArrayLayout(signed(cfg.width), cfg.segments)),
                "vector": In(16),
                "broadcast": In(WIDTH),
                "fold_operand": In(WIDTH),
                "shared": In(WIDTH),
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
        vector = wire(m, "vector_private", from_half(m, "vector", self.vector))

        def source(number: Value) -> Value:
            outer = Mux(number == Source.INPUT, vector, self.broadcast)
            return Mux(number[2], outer, registers[number[:2]])

        negate = Cat(Const(0, WIDTH - 1), control.op == Op.SUBTRACT)
        other = wire(m, "other", Mux(control.fold, self.fold_operand, b_bits))
        a, b = Fields(m, "a", a_bits), Fields(m, "b", other)
        less = smaller(m, "less", a_bits, other)
        larger = wire(m, "larger", maximum(m, "maximum", a, b, less), WIDTH)

        # Compute.
        m.d.comb += [
            function.control.eq(control),
            function.coefficients.eq(self.coefficients),
            function.a.eq(a_bits),
            function.b.eq(b_bits),
        ]
        layout = unrounded_layout(self.cfg)
        total = add(m, a, b, less, layout)
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
        rounded = wire(m, "rounded", round_magnitude(m, stage), WIDTH)
        direct = Mux(control.maximum, larger, a_bits)
        result = Signal(WIDTH, reset_less=True)
        value = Mux(control.shared, self.shared, self.result)
        write = wire(m, "write", (control.finish | control.direct) & ~control.back)
        with m.If(control.load):
            m.d.sync += [a_bits.eq(source(control.a)), b_bits.eq(source(control.b) ^ negate)]
        with m.If(control.back):
            m.d.sync += a_bits.eq(self.result)
        with m.If(write):
            m.d.sync += result.eq(value)
        for number, register in enumerate(registers):
            with m.If(write & (control.dst == number)):
                m.d.sync += register.eq(value)
        m.d.comb += [
            self.result.eq(Mux(control.finish, rounded, direct)),
            self.operand.eq(a_bits),
            self.half.eq(to_half(m, "half", result)),
            accumulator.term.eq(result),
            accumulator.add.eq(control.accumulate),
            accumulator.clear.eq(control.clear),
        ]
        return m
