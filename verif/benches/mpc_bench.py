"""The cocotb side of :func:`dstar.verif.mpc.session.run_programs`: registers and files.

``$DSTAR_CORE`` is a JSON object: ``programs`` (for each what
:class:`~dstar.verif.mpc.session.Program` holds, its data as names of files), ``memory`` (file, and
address of its first byte), ``report`` (file to write).  Python runs only while a register is
accessed.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, First, RisingEdge, Timer

from dstar.golden.mpc.registers import REGISTERS

_PERIOD_NS = 1
_RESET_CYCLES = 4
#: Cycles between two looks at STATUS.
_POLL_CYCLES = 50
_INPUTS = ("reopen", "fault", "fault_address", "s_axil_awaddr", "s_axil_awprot", "s_axil_awvalid",
           "s_axil_wdata", "s_axil_wstrb", "s_axil_wvalid", "s_axil_bready", "s_axil_araddr",
           "s_axil_arprot", "s_axil_arvalid", "s_axil_rready")  # fmt: skip


class Bench:
    """Drives the registers; every input changes at a falling edge of the clock."""

    def __init__(self, dut: Any, memory: Path, base: int) -> None:
        self.dut, self.memory, self.base = dut, memory, base

    async def reset(self) -> None:
        """The whole machine."""
        for name in _INPUTS:
            getattr(self.dut, name).value = 0
        self.dut.rst.value = 1
        await Timer(_RESET_CYCLES * _PERIOD_NS, unit="ns")
        await FallingEdge(self.dut.clk)
        self.dut.rst.value = 0

    async def _send(self, channel: str, **values: int) -> None:
        for name, value in values.items():
            getattr(self.dut, f"s_axil_{name}").value = value
        getattr(self.dut, f"s_axil_{channel}valid").value = 1
        while True:
            # Ready may follow valid within the cycle.
            await RisingEdge(self.dut.clk)
            ready = int(getattr(self.dut, f"s_axil_{channel}ready").value)
            await FallingEdge(self.dut.clk)
            if ready:
                break
        getattr(self.dut, f"s_axil_{channel}valid").value = 0

    async def _take(self, channel: str, name: str) -> int:
        getattr(self.dut, f"s_axil_{channel}ready").value = 1
        while True:
            await RisingEdge(self.dut.clk)
            value = int(getattr(self.dut, f"s_axil_{name}").value)
            valid = int(getattr(self.dut, f"s_axil_{channel}valid").value)
            await FallingEdge(self.dut.clk)
            if valid:
                break
        getattr(self.dut, f"s_axil_{channel}ready").value = 0
        return value

    async def write(self, name: str, word: int) -> None:
        """A register."""
        address = cocotb.start_soon(self._send("aw", awaddr=REGISTERS[name].offset))
        await self._send("w", wdata=word, wstrb=15)
        await address
        response = await self._take("b", "bresp")
        assert response == 0, name

    async def read(self, name: str) -> int:
        """A register."""
        await self._send("ar", araddr=REGISTERS[name].offset)
        return await self._take("r", "rdata")

    async def reopen(self) -> None:
        """Let the memory and its file agree."""
        self.dut.reopen.value = 1
        await FallingEdge(self.dut.clk)
        await FallingEdge(self.dut.clk)
        self.dut.reopen.value = 0

    async def until_still(self, patience: int) -> None:
        """Until the core neither runs nor resets."""
        status = REGISTERS["STATUS"]
        for _ in range(patience // _POLL_CYCLES + 1):
            state = status.unpack(await self.read("STATUS"))
            if not state["BUSY"] and not state["RESETTING"]:
                return
            await Timer(_POLL_CYCLES * _PERIOD_NS, unit="ns")
        raise AssertionError(f"the core is still at work after {patience} cycles")

    async def run(self, program: dict[str, Any]) -> dict[str, Any]:
        """One program: memory, start, interrupt or reset, registers, memory."""
        with self.memory.open("r+b") as memory:
            for address, path in program["writes"]:
                memory.seek(address - self.base)
                memory.write(Path(path).read_bytes())
        await self.reopen()
        fault = program["fault"]
        self.dut.fault.value = fault is not None
        self.dut.fault_address.value = fault or 0
        pending = REGISTERS["INTERRUPT_PENDING"].pack(DONE=1, FAILED=1)
        await self.write("INTERRUPT_PENDING", pending)
        await self.write("INTERRUPT_ENABLE", REGISTERS["INTERRUPT_ENABLE"].pack(DONE=1, FAILED=1))
        await self.write("PROGRAM_ADDRESS_LOW", program["address"] & 0xFFFFFFFF)
        await self.write("PROGRAM_ADDRESS_HIGH", program["address"] >> 32)
        await self.write("PROGRAM_LENGTH", program["length"])
        begin, used = time.perf_counter(), time.process_time()
        await self.write("CONTROL", REGISTERS["CONTROL"].pack(START=1))
        patience = program["patience"]
        late = Timer(patience * _PERIOD_NS, unit="ns")
        if program["reset_after"] is not None:
            late = Timer(program["reset_after"] * _PERIOD_NS, unit="ns")
        ended = int(self.dut.interrupt.value)
        if not ended:
            ended = await First(RisingEdge(self.dut.interrupt), late) is not late
        times = {"wall_s": time.perf_counter() - begin, "cpu_s": time.process_time() - used}
        await FallingEdge(self.dut.clk)
        values = {name: await self.read(name) for name in REGISTERS}
        if program["reset_after"] is not None:
            await self.write("CONTROL", REGISTERS["CONTROL"].pack(RESET=1))
        if ended or program["reset_after"] is not None:
            await self.until_still(patience)
        await self.reopen()
        with self.memory.open("rb") as memory:
            for address, size, path in program["reads"]:
                memory.seek(address - self.base)
                Path(path).write_bytes(memory.read(size))
        return {"registers": values, "interrupted": ended, **times}


@cocotb.test()
async def run_programs(dut: Any) -> None:
    """All programs, one after the other; ends early when one hangs."""
    order = json.loads(os.environ["DSTAR_CORE"])
    bench = Bench(dut, Path(order["memory"][0]), order["memory"][1])
    Clock(dut.clk, _PERIOD_NS, unit="ns", impl="gpi").start()
    await bench.reset()
    done: list[dict[str, Any]] = []
    for program in order["programs"]:
        done.append(await bench.run(program))
        Path(order["report"]).write_text(json.dumps(done))
        if not done[-1]["interrupted"] and program["reset_after"] is None:
            break
