"""How busy the core's array can be: lower bounds of cycles by engine, at a differential step.

Prints, for linear layers, the plan (token tiles by column tiles whose sums are kept), the bytes of
every tensor, the cycles that each engine takes at least, and the most that the array can be busy:
with the compiler's plan, and if every tensor moved only once.  Then what holds for every layer,
whatever its size and the order of its products (:class:`~dstar.golden.mpc.cost.AnyOrder`).
"""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.table import Table

from dstar.gen.config import load_config
from dstar.golden.mpc.cost import AnyOrder, Bounds
from dstar.golden.mpc.layout import LayerShape
from dstar.golden.mpc.plan import plan_layer

#: Tokens, input and output channels: the paper's tile, DiT-XL/2's layers at 256 and 1,024 tokens,
#: Flux's MLP at 4,608.
LAYERS = (
    (256, 512, 512),
    (256, 1152, 1152),
    (256, 1152, 4608),
    (256, 4608, 1152),
    (1024, 1152, 4608),
    (4608, 3072, 12288),
)
#: Wanted utilization.
TARGET = 0.85


def _needed(bounds: Bounds) -> str:
    value = bounds.needed_bytes(TARGET)
    return "never" if value is None else f"{value:.0f}"


def print_any_order(bound: AnyOrder) -> None:
    """Print what no order of any layer exceeds."""
    print(f"{bound.products_per_cycle:,.0f} products a busy cycle at {bound.bits} bits")
    print(f"bytes a product that the memory gives at {TARGET}: {bound.allowed(TARGET):.5f}")
    print(
        f"any order: {bound.held:,} bytes held, at least {(32 / bound.held) ** 0.5:.5f} bytes a "
        f"product, array busy at most {bound.utilization:.2f}"
    )
    print(
        f"sums kept until whole: {bound.sums:,}, at least {4 / bound.sums**0.5:.5f} bytes a "
        f"product, busy at most {bound.blocked:.2f}"
    )
    print(
        f"for {TARGET} so: {bound.needed_sums(TARGET):,} sums, or "
        f"{bound.needed_bytes(TARGET):.0f} bytes a cycle"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bits", type=float, default=4.3, help="average (the paper: 4.3)")
    parser.add_argument("--bytes", type=float, default=47.0, help="of the memory, a cycle")
    parser.add_argument("-p", "--preset", default="paper")
    parser.add_argument("-s", "--set", action="append", default=[], help="key=value")
    options = parser.parse_args()
    cfg = load_config(preset=options.preset, overrides=tuple(options.set))
    table = Table(
        title=f"{cfg.preset}, {options.bits} bits, {options.bytes:.0f} bytes a cycle; bytes in "
        f"thousands, cycles in thousands; needed: bytes a cycle for {TARGET}"
    )
    names = ("layer", "plan", "x, x̂ in", "weights", "y in", "x̂, y out", "memory", "array",
             "drain", "weights", "QPU", "busy", "needed", "once: busy", "needed")  # fmt: skip
    for name in names:
        table.add_column(name, justify="left" if name in names[:2] else "right")
    for tokens, inner, out in LAYERS:
        plan = plan_layer(cfg, LayerShape(tokens=tokens, inner=inner, out=out))
        bounds = Bounds(plan, options.bits, options.bytes)
        once = Bounds(plan, options.bits, options.bytes, once=True)
        t = bounds.traffic
        parts = (t["x"] + t["reference"], t["weights"], t["before"], t["next"] + t["y"],
                 bounds.memory, bounds.beats, bounds.drain, bounds.weight_rows,
                 bounds.quantize)  # fmt: skip
        table.add_row(
            f"{tokens} x {inner} x {out}",
            f"{plan.tokens} x {plan.group} of {plan.tiling.token_tiles} x "
            f"{plan.tiling.column_tiles}",
            *(f"{part / 1000:,.0f}" for part in parts),
            f"{bounds.utilization:.2f}",
            _needed(bounds),
            f"{once.utilization:.2f}",
            _needed(once),
        )
    Console(width=190).print(table)
    print_any_order(AnyOrder(cfg, options.bits, options.bytes))


if __name__ == "__main__":
    main()
