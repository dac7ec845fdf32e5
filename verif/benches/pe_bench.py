"""cocotb bench of the PE: every cycle against :class:`dstar.golden.pe.PE`.

``$DSTAR_CONFIG`` holds the overrides of preset ``tiny``, separated by blanks.
"""

from __future__ import annotations

import os
import random
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge

from dstar.gen.config import load_config
from dstar.golden.pe import PE

CYCLES = 3_000


def _pack(values: list[int], width: int) -> int:
    return sum((value % (1 << width)) << (i * width) for i, value in enumerate(values))


@cocotb.test()
async def random_and_corner_operands(dut: Any) -> None:
    """Random cycles, one in four with extreme operands: sums, doublings, captures, shifts."""
    cfg = load_config(preset="tiny", overrides=tuple(os.environ["DSTAR_CONFIG"].split()))
    model = PE(cfg=cfg)
    bits, lanes = cfg.numeric.weight_bits, cfg.array.lanes
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    Clock(dut.clk, 2, unit="ns").start()
    for cycle in range(CYCLES):
        corner = random.random() < 0.25
        weights = [
            random.choice((low, high, -1, 0, 1)) if corner else random.randint(low, high)
            for _ in range(lanes)
        ]
        digits = [random.choice((-2, 1)) if corner else random.randint(-2, 1) for _ in range(lanes)]
        # The first cycle starts a tile, since the registers hold anything.
        control = (
            "start" if cycle == 0 else random.choices(("start", "keep", "double"), (1, 6, 2))[0]
        )
        shift, shadow_i = bool(random.getrandbits(1)), random.getrandbits(cfg.numeric.acc_width)
        await FallingEdge(dut.clk)
        if cycle > 2:
            assert int(dut.shadow_o.value) == model.shadow, f"cycle {cycle}"
        dut.weights.value = _pack(weights, bits)
        dut.digits.value = _pack(digits, 2)
        dut.keep.value = int(control == "keep")
        dut.double.value = int(control == "double")
        dut.shift.value = int(shift)
        dut.shadow_i.value = shadow_i
        if cycle == 1:
            # What the first capture took over is not defined: load the shadow register.
            dut.keep.value, dut.double.value, dut.shift.value = 1, 0, 1
            control, shift = "keep", True
        model.step(
            digits,
            weights,
            keep=control == "keep",
            double=control == "double",
            shift=shift,
            shadow_i=shadow_i,
        )
