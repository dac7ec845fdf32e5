"""Other ways to build the PE, measured as the one in use is: a table of ``docs/area.md``.

Each variant replaces one function of :mod:`dstar.rtl.mpu.pe` and computes the same sums.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from rich.console import Console
from synth_points import OUTPUT, markdown, write_block

from dstar.gen.config import load_config
from dstar.rtl.mpu import pe
from dstar.rtl.mpu.tile import PETile
from dstar.synth.flow import synthesize
from dstar.synth.pdk import find_pdk
from dstar.synth.script import Plan
from dstar.synth.units import verilog


def magnitude_then_sign(m: Module, name: str, digit: Value, weight: Value) -> tuple[Value, Value]:
    """Select 0, w or 2w, then invert: an exclusive-or a product bit."""
    width = len(weight) + 1
    one, two = Signal(name=f"{name}_one"), Signal(name=f"{name}_two")
    product = Signal(width, name=f"{name}_product")
    single, twice = Cat(weight, weight[-1]), Cat(0, weight)
    chosen = single & one.replicate(width) | twice & two.replicate(width)
    m.d.comb += [
        one.eq(digit[0]),
        two.eq(~digit[0] & digit[1]),
        product.eq(chosen ^ digit[1].replicate(width) ^ (1 << len(weight))),
    ]
    return product, digit[1]


def multiplexers(m: Module, name: str, digit: Value, weight: Value) -> tuple[Value, Value]:
    """The digit chooses with multiplexers, without decoded lines."""
    width = len(weight) + 1
    product = Signal(width, name=f"{name}_product")
    single, twice = Cat(weight, weight[-1]), Cat(0, weight)
    odd, even = Mux(digit[1], ~single, single), Mux(digit[1], ~twice, 0)
    m.d.comb += product.eq(Mux(digit[0], odd, even)[:width] ^ (1 << len(weight)))
    return product, digit[1]


def adders_of_yosys(
    m: Module, operands: Sequence[Value], *, width: int, carry_ins: Sequence[Value] = ()
) -> Value:
    """A plain sum, whose tree Yosys builds."""
    total = Signal(width)
    m.d.comb += total.eq(sum([*operands, *carry_ins], Value.cast(0)))
    return total


#: What it says in the table, and what it replaces.
VARIANTS: dict[str, tuple[str, Callable[..., Any]] | None] = {
    "**a decoded line a choice, carry-save tree by hand (in use)**": None,
    "0, w or 2w selected, then inverted": ("partial_product", magnitude_then_sign),
    "multiplexers": ("partial_product", multiplexers),
    "carry-save tree by Yosys": ("carry_save_sum", adders_of_yosys),
}


def main() -> None:
    """Every variant on each library."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="paper")
    parser.add_argument("--pdks", nargs="+", default=["sky130hd"])
    arguments = parser.parse_args()
    cfg = load_config(preset=arguments.preset)
    cluster = cfg.array.cluster
    rows = []
    for index, (text, change) in enumerate(VARIANTS.items()):
        cells = [text]
        with mock.patch.object(pe, *(change or ("__doc__", pe.__doc__))):
            design = verilog("t", PETile(cfg, rows=cluster), cfg)
        for pdk in arguments.pdks:
            found = find_pdk(pdk)
            plan = Plan(top="t", clock_ps=found.pdk.clock_ps)
            result = synthesize(design, plan, found, OUTPUT / "variants" / f"{pdk}-{index}")
            area = result.area / cluster**2
            cells += [
                f"{area:,.{0 if area > 1000 else 1}f}",
                f"{result.timing.delay_ps:,.0f}",
            ]
        rows.append(cells)
    head = ["PE", *(name for pdk in arguments.pdks for name in (f"{pdk}: µm²", "ps"))]
    write_block("synth_variants.py", markdown(head, rows), Console(soft_wrap=True))


if __name__ == "__main__":
    main()
