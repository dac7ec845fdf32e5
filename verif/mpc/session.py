"""Runs programs on the simulated core: memory in, start, interrupt, registers and memory out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dstar.golden.mpc.fields import Status
from dstar.golden.mpc.memory import Memory
from dstar.golden.mpc.registers import ENGINES, REGISTERS
from dstar.verif.mpc.machine import Machine
from dstar.verif.process import SimulationError
from dstar.verif.runner import default_seed, run, run_folder

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True, eq=False)
class Program:
    """One start of the core.

    ``address``, ``length``: of the program, in bytes and instructions.  ``writes``: what is put
    into memory before, by address.  ``reads``: what is read from memory after it, address and
    bytes.  ``fault``: address of a beat that answers with an error, or None.  ``patience``: cycles
    after which a core that has not raised its interrupt never will.  ``reset_after``: cycles after
    which software resets the core, or None.
    """

    address: int
    length: int
    writes: Sequence[tuple[int, Bytes]] = ()
    reads: Sequence[tuple[int, int]] = ()
    fault: int | None = None
    patience: int = 1_000_000
    reset_after: int | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Ended:
    """How a program ended.

    ``registers``: words by name, read at the end (before a reset).  ``reads``: as asked for.
    ``interrupted``: the interrupt was raised.  ``seconds``: simulation time; ``cpu_seconds``: the
    processor time of it.
    """

    registers: dict[str, int]
    reads: list[Bytes]
    interrupted: bool
    seconds: float
    cpu_seconds: float

    @property
    def status(self) -> Status:
        """Status code."""
        return Status(REGISTERS["ERROR"].unpack(self.registers["ERROR"])["CODE"])

    @property
    def error(self) -> tuple[Status, int, int]:
        """Status code, program counter and address."""
        return self.status, self.registers["ERROR_PC"], self.wide("ERROR_ADDRESS")

    def wide(self, name: str) -> int:
        """A value of two registers."""
        return self.registers[f"{name}_LOW"] | self.registers[f"{name}_HIGH"] << 32

    @property
    def cycles(self) -> int:
        """Cycles from the start to the end."""
        return self.wide("CYCLES")

    def engines(self, counter: str) -> dict[str, int]:
        """A counter of every engine: ``BUSY`` or ``STALLED``."""
        return {name.lower(): self.registers[f"{counter}_{name}"] for name in ENGINES}

    @property
    def conflicts(self) -> int:
        """Cycles in which any client waited for a buffer bank, added up."""
        return sum(n for name, n in self.registers.items() if name.startswith("CONFLICTS_"))


@dataclass(frozen=True, kw_only=True)
class Bus:
    """How the memory behaves.

    ``latency``: cycles from an address to its first beat.  ``bytes_per_cycle``: of both
    directions together, in steps of 1/256; 0 is no limit.  ``stall``: probability that a channel
    rests in a cycle.
    """

    latency: int = 20
    bytes_per_cycle: float = 0.0
    stall: float = 0.0

    def plusargs(self, seed: int) -> Iterator[str]:
        """Arguments of the simulation."""
        yield f"+memory_latency={self.latency}"
        yield f"+memory_rate={round(256 * self.bytes_per_cycle)}"
        yield f"+memory_stall={round(65536 * self.stall)}"
        yield f"+memory_seed={seed}"


@dataclass(frozen=True, kw_only=True, eq=False)
class Session:
    """A machine, its memory's behaviour, and where its runs leave their files.

    ``trace``: file for the engines' states (:func:`dstar.verif.mpc.machine.machine_text`).
    ``plusargs``: further arguments for the simulator.
    """

    machine: Machine
    bus: Bus = field(default_factory=Bus)
    seed: int | None = None
    folder: Path | None = None
    trace: Path | None = None
    plusargs: Sequence[str] = ()
    timeout_s: float = 3600.0

    def run(self, memory: Memory, programs: Sequence[Program]) -> list[Ended]:
        """Run programs one after the other, without a hardware reset between them.

        ``memory`` is what the core finds; it is left as it is.

        Raises
        ------
        SimulationError
            If the simulator fails, or a program neither ends nor is reset.
        """
        seed = default_seed() if self.seed is None else self.seed
        with run_folder(self.folder) as where:
            file = where / "memory.bin"
            memory.data.tofile(file)
            orders = [_order(program, where, n) for n, program in enumerate(programs)]
            report = where / "report.json"
            order = {"programs": orders, "memory": [str(file), memory.base], "report": str(report)}
            run(
                self.machine.build,
                "dstar.verif.benches.mpc_bench",
                plusargs=[
                    f"+memory_file={file}",
                    f"+memory_base={memory.base:x}",
                    f"+memory_bytes={len(memory.data)}",
                    *self.bus.plusargs(seed % 2**31),
                    *self.plusargs,
                    *([f"+trace={self.trace.absolute()}"] if self.trace else []),
                ],
                seed=seed,
                env={"DSTAR_CORE": json.dumps(order), "COCOTB_REWRITE_ASSERTION_FILES": ""},
                folder=where,
                timeout_s=self.timeout_s,
            )
            done = json.loads(report.read_text())
            ended = [_ended(o, got) for o, got in zip(orders, done, strict=False)]
            for number, (program, one) in enumerate(zip(programs, ended, strict=False)):
                if not one.interrupted and program.reset_after is None:
                    raise SimulationError(
                        f"program {number} must end within {program.patience} cycles; "
                        f"busy {one.engines('BUSY')}, stalled {one.engines('STALLED')}"
                    )
            return ended


def _order(program: Program, where: Path, number: int) -> dict[str, Any]:
    """A program as the bench takes it; its data become files."""
    writes = []
    for i, (address, data) in enumerate(program.writes):
        path = where / f"write-{number}-{i}.bin"
        data.tofile(path)
        writes.append((address, str(path)))
    reads = [
        (address, size, str(where / f"read-{number}-{i}.bin"))
        for i, (address, size) in enumerate(program.reads)
    ]
    return {**vars(program), "writes": writes, "reads": reads}


def _ended(order: dict[str, Any], report: dict[str, Any]) -> Ended:
    return Ended(
        registers=report["registers"],
        reads=[np.fromfile(path, np.uint8) for _, _, path in order["reads"]],
        interrupted=report["interrupted"],
        seconds=report["wall_s"],
        cpu_seconds=report["cpu_s"],
    )
