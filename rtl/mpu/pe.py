"""Processing element: four slice x weight products, a doubling accumulator, a shadow register."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Signal, Value, signed
from amaranth.lib import data
from amaranth.lib.wiring import In, Out

from dstar.gen.config import SLICE_BITS, Config
from dstar.rtl.hierarchy import Shared
from dstar.rtl.mpu.carry_save import carry_save_sum


def partial_product(m: Module, name: str, digit: Value, weight: Value) -> tuple[Value, Value]:
    """Offset one's complement of ``digit * weight`` and the carry-in that completes it.

    ``digit`` is a signed digit, two's complement, -2 to 1, so the product is a selection: 0, w,
    not w or not 2w.  Every choice has a line of its own, decoded once a digit (PEs that share
    operand registers share it), so a product bit is one and-or gate; selecting a magnitude and
    inverting it costs an exclusive-or a bit more.  The sign bit is inverted, which adds
    ``2**len(weight)`` and makes the pattern unsigned: no sign extension.
    """
    width = len(weight) + 1
    names = ("one", "minus_one", "minus_two")
    one, minus_one, minus_two = (Signal(name=f"{name}_{choice}") for choice in names)
    product = Signal(width, name=f"{name}_product")
    single, twice = Cat(weight, weight[-1]), Cat(0, weight)
    m.d.comb += [
        one.eq(digit[0] & ~digit[1]),
        minus_one.eq(digit[0] & digit[1]),
        minus_two.eq(~digit[0] & digit[1]),
        product.eq(
            (
                single & one.replicate(width)
                | ~single & minus_one.replicate(width)
                | ~twice & minus_two.replicate(width)
            )
            ^ (1 << len(weight))
        ),
    ]
    return product, digit[1]


class PE(Shared):
    """Processing element of the output-stationary array (paper, section 4.2, figure 10).

    Each cycle ``acc' = base + sum(digit[l] * weight[l]) + bias`` modulo ``2**acc_width``, where
    ``base`` is ``acc`` if ``keep``, ``2 * acc`` if ``double``, and 0 if neither; the doubling
    (requantization) is folded into the accumulation and costs no cycle.

    ``bias`` is ``lanes * 2**weight_bits``: the price of products without sign extension.  It is
    the same in every PE in every cycle, so the array, which subtracts one row of PEs from all
    others (:class:`dstar.rtl.mpu.array.PEArray`), loses it again.

    When neither ``keep`` nor ``double`` is set a new tile begins, and the finished sum moves into
    the shadow register; ``shift`` moves the shadow registers of a row one place on.

    Parameters
    ----------
    cfg: widths and lanes.

    Members
    -------
    digits: ``lanes`` signed 2-bit digits, -2..1.
    weights: ``lanes`` signed weights.
    keep, double: choice of ``base``; not both.
    shift: take ``shadow_i`` into the shadow register (a capture has priority).
    shadow_i, shadow_o: shadow path, ``acc_width`` bits.

    Latency: one cycle from operands to ``acc``, one from the next tile's start to ``shadow_o``.
    """

    def __init__(self, cfg: Config) -> None:
        self.cfg = cfg
        lanes = cfg.array.lanes
        super().__init__(
            {
                "digits": In(data.ArrayLayout(signed(SLICE_BITS), lanes)),
                "weights": In(data.ArrayLayout(signed(cfg.numeric.weight_bits), lanes)),
                "keep": In(1),
                "double": In(1),
                "shift": In(1),
                "shadow_i": In(cfg.numeric.acc_width),
                "shadow_o": Out(cfg.numeric.acc_width),
            }
        )

    @property
    def module_name(self) -> str:
        """Verilog module name."""
        return "pe"

    @property
    def bias(self) -> int:
        """What every cycle adds to the accumulator besides the products."""
        return int(self.cfg.array.lanes << self.cfg.numeric.weight_bits)

    def elaborate(self, platform: Any) -> Module:
        """Select and invert, compress, add, keep."""
        m = Module()
        width = self.cfg.numeric.acc_width
        acc = Signal(width, reset_less=True)
        shadow = Signal(width, reset_less=True)

        base = Signal(width)
        twice = Cat(0, acc[:-1])
        m.d.comb += base.eq(acc & self.keep.replicate(width) | twice & self.double.replicate(width))
        products, carry_ins = [], []
        for lane in range(self.cfg.array.lanes):
            product, carry_in = partial_product(
                m,
                f"lane{lane}",
                Value.cast(self.digits[lane]),
                Value.cast(self.weights[lane]),
            )
            products.append(product)
            carry_ins.append(carry_in)
        total = carry_save_sum(m, [*products, base], width=width, carry_ins=carry_ins)

        # One line for each choice, as above: smaller than two multiplexers or an enable.
        capture, move, stay = Signal(), Signal(), Signal()
        m.d.comb += [
            capture.eq(~(self.keep | self.double)),
            move.eq(self.shift & ~capture),
            stay.eq(~(self.shift | capture)),
        ]
        m.d.sync += [
            acc.eq(total),
            shadow.eq(
                acc & capture.replicate(width)
                | self.shadow_i & move.replicate(width)
                | shadow & stay.replicate(width)
            ),
        ]
        m.d.comb += self.shadow_o.eq(shadow)
        return m
