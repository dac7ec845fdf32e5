"""cocotb tests that ``test_runner.py`` runs on its counter."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, RisingEdge


@cocotb.test()
async def counts(dut: Any) -> None:
    """The counter adds STEP each cycle after reset."""
    Clock(dut.clk, 10, unit="ns").start()
    dut.rst.value = 1
    await ClockCycles(dut.clk, 2)
    dut.rst.value = 0
    await ClockCycles(dut.clk, 11)
    assert int(dut.value.value) == 10 * int(os.environ["STEP"])


@cocotb.test()
async def sees_only_ports(dut: Any) -> None:
    """The top's ports are there, its inner register and its submodule's signals are not."""
    assert sorted(child._name for child in dut) == ["clk", "rst", "value"]


@cocotb.test()
async def notes_seed(dut: Any) -> None:
    """Write the seed that cocotb was given."""
    Path("seed").write_text(os.environ["COCOTB_RANDOM_SEED"])


@cocotb.test()
async def fails(dut: Any) -> None:
    """A test that fails."""
    raise AssertionError("seven is not eight")


@cocotb.test()
async def hangs(dut: Any) -> None:
    """A test that never ends: the clock runs on."""
    Path("pid").write_text(str(os.getpid()))
    Clock(dut.clk, 10, unit="ns").start()
    await RisingEdge(dut.rst)
