"""Output path of one token: inverse quantization, then the reverse differential's addition."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib.wiring import In, Out

from dstar.gen.config import Config
from dstar.rtl.fp16.add import fp16_add
from dstar.rtl.fp16.round import INFINITY, MAX_FINITE, round_half, signed_magnitude
from dstar.rtl.hierarchy import Shared

#: Fields of a weight scale: a positive normal bfloat16 without its sign.
SCALE_FRACTION, SCALE_EXPONENT, SCALE_BIAS = 7, 8, 127


def saturated(m: Module, name: str, half: Value) -> tuple[Value, Value]:
    """An infinite binary16 value made the largest finite one, and whether it was."""
    over = Signal(name=f"{name}_over")
    m.d.comb += over.eq(half[:15] == INFINITY)
    return Cat(Mux(over, MAX_FINITE, half[:15])[:15], half[15]), over


class OutputLane(Shared):
    """Output path of one token: add, multiply, round, add, with registers between them.

    Members
    -------
    enable: moves the pipeline on.
    sum, gap: from the array; its unit is ``2**gap`` common units.
    kept, first: partial sum from the memory; not used where ``first``.
    total: new partial sum, in the same cycle.
    scale, exponent: significand of the weight scale, and exponent of its last place times that of
        the common unit; one cycle after ``sum``.
    addend: binary16, three cycles after ``sum``.
    half, over: the output, and whether it saturated; in the cycle of ``addend``.

    Latency: three cycles of those with ``enable``.  Throughput: one sum a cycle.
    """

    def __init__(self, cfg: Config, *, width: int) -> None:
        self.cfg = cfg
        self.width = width
        super().__init__(
            {
                "enable": In(1),
                "sum": In(signed(cfg.numeric.acc_width)),
                "gap": In(range(cfg.numeric.max_shift + 1)),
                "kept": In(signed(width)),
                "first": In(1),
                "total": Out(signed(width)),
                "scale": In(SCALE_FRACTION + 1),
                "exponent": In(signed(SCALE_EXPONENT + 2)),
                "addend": In(16),
                "half": Out(16),
                "over": Out(1),
            }
        )

    @property
    def module_name(self) -> str:
        """Verilog module name."""
        return f"output_lane_{self.width}"

    def elaborate(self, platform: Any) -> Module:
        """Add, multiply, round, add."""
        m = Module()
        total = Signal(signed(self.width), reset_less=True)
        m.d.comb += self.total.eq((self.sum << self.gap) + Mux(self.first, 0, self.kept))

        negative, size = signed_magnitude(m, "total", total)
        product = Signal(len(size) + SCALE_FRACTION + 1, reset_less=True)
        exponent = Signal(signed(SCALE_EXPONENT + 2), reset_less=True)
        sign = Signal(reset_less=True)

        magnitude, _ = round_half(m, "scaled", product, exponent)
        scaled, scaled_over = saturated(m, "scaled_saturated", Cat(magnitude, sign))
        kept, kept_over = Signal(16, reset_less=True), Signal(reset_less=True)
        result, over = saturated(m, "saturated", fp16_add(m, kept, self.addend))
        m.d.comb += [self.half.eq(result), self.over.eq(over | kept_over)]
        with m.If(self.enable):
            m.d.sync += [
                total.eq(self.total),
                product.eq(size * self.scale),
                exponent.eq(self.exponent),
                sign.eq(negative),
                kept.eq(scaled),
                kept_over.eq(scaled_over),
            ]
        return m
