"""Cycles of the VPU's programs, a vector and a 64 x 64 tile, beside the array's.

``python bench/vpu_cycles.py`` prints them; the tests hold the RTL to the same numbers.
"""

from __future__ import annotations

from dstar.gen.config import MAX_SLICES, PRESETS
from dstar.golden.vpu.isa import Op, Program
from dstar.golden.vpu.programs import (
    layer_norm,
    modulate,
    normalize,
    residual,
    softmax,
    softmax_row,
    unary,
)
from dstar.golden.vpu.steps import body_cycles, program_cycles

CFG = PRESETS["paper"]
LANES, COLS = CFG.array.rows, CFG.array.cols


def show(name: str, programs: list[Program], per: int = COLS) -> None:
    """One line: cycles of all bodies for one vector, and of ``per`` vectors with the overheads."""
    body = sum(body_cycles(p, LANES) for p in programs if p.count > 1)
    total = sum(program_cycles(p, LANES) for p in programs)
    print(f"{name:34} {body:6}   {total:6}   {per / total:.4f}")


def main() -> None:
    """Print both tables."""
    print("program                            a vector   tile   vectors/cycle")
    show("GELU, either form", unary(Op.GELU, COLS))
    show("SiLU", unary(Op.SILU, COLS))
    show("softmax, a key a vector", [*softmax(COLS), *normalize(COLS)])
    show("softmax, a query's 64 keys a vector", [*softmax_row(1), *normalize(1)], 1)
    show("LayerNorm", layer_norm(COLS))
    show("LayerNorm with adaLN", layer_norm(COLS, modulate=True))
    show("adaLN scale and shift", modulate(COLS))
    show("residual", residual(COLS))
    show("residual with gate", residual(COLS, gate=True))
    print("\narray, a 64 x 64 output tile: cycles at 2.9 bits a value, and at 8")
    lanes = CFG.array.lanes
    for name, channels in (("linear, k = 1152", 1152), ("scores, head dimension 64", 64)):
        tiles = -(-channels // CFG.numeric.k_tile)
        each = min(channels, CFG.numeric.k_tile)
        few = tiles * max(COLS, round(each * 2.9 / 2 / lanes))
        many = tiles * max(COLS, each * MAX_SLICES // lanes)
        print(f"{name:34} {few:6}   {many:6}")


if __name__ == "__main__":
    main()
