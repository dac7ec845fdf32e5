"""An INT8 PE made by hand with the means of ours: the hardest reference we can build."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Signal, Value

from dstar.gen.config import MAX_PRECISION
from dstar.rtl.mpu.carry_save import carry_save_sum
from dstar.synth.reference.int8 import Int8PE

#: Radix-4 digits of an activation.
_DIGITS = MAX_PRECISION // 2


class BoothPE(Int8PE):
    """As :class:`Int8PE`, with a radix-4 Booth multiplier merged into the accumulation.

    Each digit, -2 to 2, selects a multiple of the weight with one decoded line a choice, products
    have no sign extension, and one carry-save tree sums them with the accumulator: what
    :class:`dstar.rtl.mpu.pe.PE` does.  Missing sign extension adds :attr:`bias` a cycle, which a
    design would cancel by the value it starts from.
    """

    @property
    def module_name(self) -> str:
        """Verilog module name."""
        return "int8_booth_pe"

    @property
    def bias(self) -> int:
        """What every cycle adds besides the product."""
        return sum(1 << (self.cfg.numeric.weight_bits + 2 * digit) for digit in range(_DIGITS))

    def elaborate(self, platform: Any) -> Module:
        """Recode, select, compress, add, keep."""
        m = Module()
        width = self.cfg.numeric.acc_width
        acc = Signal(width, reset_less=True)
        base = Signal(width)
        m.d.comb += base.eq(acc & self.keep.replicate(width))
        weight = Value.cast(self.weight)
        single, twice = Cat(weight, weight[-1]), Cat(0, weight)
        bits = Cat(0, Value.cast(self.activation))
        rows: list[Value] = []
        negative: Value = Const(0, 1)
        for digit in range(_DIGITS):
            low, middle, high = bits[2 * digit : 2 * digit + 3]
            names = ("one", "two", "minus_one", "minus_two", "negative")
            one, two, minus_one, minus_two, less = (
                Signal(name=f"digit{digit}_{name}") for name in names
            )
            product = Signal(len(single), name=f"digit{digit}_product")
            selections = ((single, one), (twice, two), (~single, minus_one), (~twice, minus_two))
            chosen: Value = Const(0, len(single))
            for multiple, line in selections:
                chosen = chosen | multiple & line.replicate(len(single))
            m.d.comb += [
                one.eq(~high & (middle ^ low)),
                two.eq(~high & middle & low),
                minus_one.eq(high & (middle ^ low)),
                minus_two.eq(high & ~middle & ~low),
                less.eq(minus_one | minus_two),
                product.eq(chosen ^ (1 << len(weight))),
            ]
            # The carry-in of one digit's complement fits below the next digit's product.
            below = Cat(Const(0, 2 * digit - 2), negative, Const(0, 1)) if digit else Const(0, 0)
            rows.append(Cat(below, product))
            negative = less
        rows.append(Cat(Const(0, 2 * _DIGITS - 2), negative))
        m.d.sync += acc.eq(carry_save_sum(m, [*rows, base], width=width))
        self.connect_shadow(m, acc)
        return m
