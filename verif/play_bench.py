"""The cocotb side of :func:`dstar.verif.player.play`: reset, start, wait, report.

Nothing here runs once a cycle.  ``$DSTAR_PLAY`` is a JSON object: ``resets`` (cycles to run before
each reset in mid-run), ``reads`` (names of harness ports to report), ``report`` (file to write).
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, RisingEdge, Timer

_PERIOD_NS = 1
_RESET_CYCLES = 4


async def _reset(dut: Any) -> None:
    """Hold the reset for a few cycles; it changes between rising edges of the clock."""
    await FallingEdge(dut.clk)
    dut.rst.value = 1
    await Timer(_RESET_CYCLES * _PERIOD_NS, unit="ns")
    dut.rst.value = 0


@cocotb.test()
async def play(dut: Any) -> None:
    """One run, and its report: the values of ``reads``, and ``wall_s`` and ``cpu_s`` taken."""
    order = json.loads(os.environ["DSTAR_PLAY"])
    dut.rst.value = 1
    dut.start.value = 0
    Clock(dut.clk, _PERIOD_NS, unit="ns", impl="gpi").start()
    await _reset(dut)
    dut.start.value = 1
    for cycles in order["resets"]:
        await Timer(cycles * _PERIOD_NS, unit="ns")
        await _reset(dut)
    begin, busy = time.perf_counter(), time.process_time()
    await RisingEdge(dut.done)
    times = {"wall_s": time.perf_counter() - begin, "cpu_s": time.process_time() - busy}
    report = {name: int(getattr(dut, name).value) for name in order["reads"]}
    Path(order["report"]).write_text(json.dumps(report | times))
