# amaranth: UnusedElaboratable=no
"""The register map: RTL, documentation, C header and Python constants agree with it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from dstar.gen.config import PRESETS
from dstar.gen.library import VerilogLibrary
from dstar.gen.registers import BEGIN, FINISH, c_header, tables
from dstar.golden.mpc.register_map import (
    REGISTER_BYTES,
    Access,
    Register,
    RegisterField,
    RegisterMap,
)
from dstar.golden.mpc.registers import REGISTERS
from dstar.rtl.mpc.registers import CoreRegisters
from dstar.verif.process import SimulationError
from dstar.verif.runner import build, run

DOCUMENT = Path(__file__).parents[2] / "docs" / "registers.md"


def simulate(text: str, seed: int) -> None:
    run(build([("regs.v", text)], "regs"), "dstar.verif.benches.registers_bench", seed=seed)


def verilog() -> str:
    cfg = PRESETS["tiny"]
    return VerilogLibrary(cfg).emit("regs", CoreRegisters(cfg))


def test_rtl(seed: int) -> None:
    simulate(verilog(), seed)


#: A place in the Verilog (as a regular expression) and what stands there instead.
FAULTS = {
    "an event that cannot be cleared": (
        r"(assign \S+ +=) interrupt_pending_done & \\\$\S+ ;",
        r"\1 interrupt_pending_done;",
    ),
    "strobes not honoured": (r"s_axil_wstrb\[\d\] &", "1'h1 &"),
    "no error for an unknown address": (r"(s_axil_rresp <=) [^;]*;", r"\1 2'h0;"),
}


@pytest.mark.parametrize(
    "fault",
    [
        "strobes not honoured",
        pytest.param("an event that cannot be cleared", marks=pytest.mark.full),
        pytest.param("no error for an unknown address", marks=pytest.mark.full),
    ],
)
def test_a_fault_is_caught(fault: str, seed: int) -> None:
    text, count = re.subn(*FAULTS[fault], verilog())
    assert count >= 1
    with pytest.raises(SimulationError, match="simulating"):
        simulate(text, seed)


def test_document() -> None:
    text = DOCUMENT.read_text()
    assert text.partition(BEGIN + "\n")[2].partition(FINISH)[0] == tables(), (
        "print the table with `python -m dstar.gen.registers`"
    )


def test_header(tmp_path: Path) -> None:
    """A C compiler sees the numbers that Python has."""
    compiler = shutil.which("cc") or shutil.which("gcc") or pytest.skip("no C compiler")
    checks = []
    for register in REGISTERS.values():
        checks.append((f"DSTAR_{register.name}", register.offset))
        for field in register.fields:
            if field.width < 32:
                name = f"DSTAR_{register.name}_{field.name}"
                checks += [(f"{name}_SHIFT", field.low), (f"{name}_MASK", field.mask)]
    lines = ['#include "registers.h"', '#include "registers.h"']
    lines += [f'_Static_assert({name} == {value}u, "{name}");' for name, value in checks]
    (tmp_path / "registers.h").write_text(c_header())
    (tmp_path / "check.c").write_text("\n".join([*lines, "int unused;", ""]))
    command = [compiler, "-std=c11", "-Wall", "-Werror", "-pedantic", "-fsyntax-only", "check.c"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_map_is_dense_enough() -> None:
    """All registers lie within 256 bytes, each on a word of its own."""
    assert REGISTERS.address_bits == 8
    assert all(register.offset % REGISTER_BYTES == 0 for register in REGISTERS.values())
    assert list(REGISTERS) == [register.name for register in REGISTERS.values()]


def test_pack_and_unpack() -> None:
    error = REGISTERS["ERROR"]
    assert error.pack(CODE=7, RESPONSE=2) == 0x207
    assert error.unpack(0x207) == {"CODE": 7, "RESPONSE": 2}
    with pytest.raises(ValueError, match=r"ERROR.CODE must be from 0 to 255, got 256"):
        error.pack(CODE=256)
    with pytest.raises(KeyError, match="field must be one of CODE, RESPONSE, got 'PC'"):
        error["PC"]


def _one(name: str, offset: int, *fields: tuple[int, int]) -> Register:
    return Register(
        name=name,
        offset=offset,
        meaning="",
        fields=tuple(
            RegisterField(name=f"F{i}", low=low, width=width, access=Access.READ, meaning="")
            for i, (low, width) in enumerate(fields)
        ),
    )


def test_refuses() -> None:
    with pytest.raises(ValueError, match="A: offset must be a multiple of 4, got 0x6"):
        _one("A", 6, (0, 1))
    with pytest.raises(ValueError, match="A: F1 must be within bits 4 to 31, got 3-4"):
        _one("A", 0, (0, 4), (3, 2))
    with pytest.raises(ValueError, match="A: F0 must be within bits 0 to 31, got 30-33"):
        _one("A", 0, (30, 4))
    with pytest.raises(ValueError, match="distinct names and ascending offsets"):
        RegisterMap(_one("A", 4, (0, 1)), _one("B", 0, (0, 1)))
    with pytest.raises(ValueError, match="distinct names and ascending offsets"):
        RegisterMap(_one("A", 0, (0, 1)), _one("A", 4, (0, 1)))
