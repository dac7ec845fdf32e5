"""Formal proof, with Yosys's SAT solver, that both builds sort stably: any keys, any state."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from dstar.gen.config import PRESETS
from dstar.gen.library import VerilogLibrary
from dstar.rtl.sorter import sorter

#: Runs the proof; Yosys ends with an error when ``sat -verify`` finds a counterexample.
SCRIPT = """
import sys
from pyosys import libyosys as yosys
design = yosys.Design()
for line in open(sys.argv[1]):
    yosys.run_pass(line.strip(), design)
"""


class Proof(wiring.Component):
    """A sorter and a copy of what it was given.

    Members: ``take``: a task went in.  ``items``: the task.  ``valid``: a result is there.
    ``right``: it is the stable order of the last task taken ``latency`` cycles ago: keys do not
    fall, equal keys have rising indices, and every item is the one its index names.  Rising or
    not, no index may occur twice.
    """

    def __init__(self, build: str, *, size: int, key_bits: int, payload_bits: int) -> None:
        self.sorter = sorter(size=size, key_bits=key_bits, payload_bits=payload_bits, build=build)
        super().__init__(
            {
                "items": In(self.sorter.shape.items.size),
                "offer": In(1),
                "take": Out(1),
                "valid": Out(1),
                "right": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """The sorter, its input kept for as long as it takes, and the check."""
        m = Module()
        m.submodules.sorter = dut = self.sorter
        size = dut.shape.size
        m.d.comb += [
            dut.items.payload.as_value().eq(self.items),
            dut.items.valid.eq(self.offer),
            dut.sorted.ready.eq(1),
            self.take.eq(self.offer & dut.items.ready),
            self.valid.eq(dut.sorted.valid),
        ]
        kept = self.items
        for stage in range(dut.latency if dut.interval == 1 else 1):
            register = Signal(len(kept), name=f"kept_{stage}", reset_less=True)
            if dut.interval == 1:
                m.d.sync += register.eq(kept)
            else:
                with m.If(self.take):
                    m.d.sync += register.eq(kept)
            kept = register

        width = dut.shape.item.size
        results = dut.sorted.payload
        checks = []
        for i in range(size):
            own = kept.word_select(results[i].index, width)
            mine = Cat(results[i].key, results[i].payload)
            checks.append(own == mine)
            checks.append(results[i].index < size)
            if i:
                a, b = results[i - 1], results[i]
                checks.append((a.key < b.key) | ((a.key == b.key) & (a.index < b.index)))
        m.d.comb += self.right.eq(Cat(*checks).all())
        return m


def prove(build: str, folder: Path, *, size: int, fault: tuple[str, str] | None = None) -> str:
    """Run the proof; the log, which tells success from a counterexample."""
    component = Proof(build, size=size, key_bits=3, payload_bits=1)
    latency, pipelined = component.sorter.latency, component.sorter.interval == 1
    text = VerilogLibrary(PRESETS["tiny"]).emit("proof", component)
    if fault is not None:
        assert fault[0] in text
        text = text.replace(*fault, 1)
    source = folder / "proof.v"
    source.write_text(text)
    # A pipeline: from any state, whatever was there before, the result is right `latency` cycles
    # after the items.  The iterative build: so it is from any idle state.
    steps = latency + 1
    given = ["-set rst 0"]
    if not pipelined:
        given += ["-set-at 1 take 1", "-set-def-inputs"]
    command = (
        f"sat -verify -seq {steps} -prove-skip {steps - 1} -prove right 1 -prove valid 1 "
        f"-set-at 1 offer 1 {' '.join(given)} proof"
    )
    script = folder / "proof.ys"
    script.write_text(
        "\n".join([f"read_verilog {source}", "hierarchy -top proof", "proc", "flatten", "opt",
                   "memory", "opt", command]) + "\n"
    )  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(script)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize("build", ["pipelined", "iterative"])
def test_sorts_everything(build: str, tmp_path: Path) -> None:
    pytest.importorskip("pyosys", reason="the proof needs pyosys (the synth extra)")
    log = prove(build, tmp_path, size=4)
    assert "SAT proof finished - no model found: SUCCESS!" in log, log[-3000:]


def test_finds_a_fault(tmp_path: Path) -> None:
    pytest.importorskip("pyosys", reason="the proof needs pyosys (the synth extra)")
    log = prove("pipelined", tmp_path, size=4, fault=(" < ", " > "))
    assert "SAT proof finished - model found: FAIL!" in log, log[-3000:]
