"""A fault planted in each part of the core's control and memory system is caught."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from dstar.gen.config import PRESETS
from dstar.golden.bins import BinTable
from dstar.golden.mpc.fields import Status
from dstar.golden.mpc.memory import Memory
from dstar.golden.mpc.table import table_program
from dstar.golden.mpc.text import assemble
from dstar.verif.generated import generate_component
from dstar.verif.mpc.machine import Machine, machine_of
from dstar.verif.mpc.observed import ObservedMPC
from dstar.verif.mpc.session import Bus, Program, Session
from dstar.verif.process import SimulationError
from dstar.verif.tests.core_tools import PROGRAM, code, random_run
from dstar.verif.tests.fault_tools import Fault, plant, switch_on

TINY = PRESETS["tiny"]
FAULTS = {
    "semaphores: a wait ignored": Fault(
        "observed_mpc.control.control.semaphores", "grant_4", "clients__4__request"
    ),
    "semaphores: a token taken twice": Fault(
        "observed_mpc.control.control.semaphores", "taken_1", "{right} | ({right} << 1)"
    ),
    "slot: a signal lost": Fault("observed_mpc.control.control.load", "signal", "{right} & ~1"),
    "control: SYNC waits for nobody": Fault("observed_mpc.control.control", "quiet", "1'h1"),
    "control: three tiles held": Fault("observed_mpc.control.control", "allowed", "1'h1"),
    "fetch: an instruction skipped": Fault(
        "observed_mpc.control.control.fetch", "instructions__valid", "{right} & program__ready"
    ),
    "load: rows end early": Fault(
        "observed_mpc.control.load.dma.walk", "row_ends", "{right} | words__payload[0]"
    ),
    "load: words lost": Fault("observed_mpc.control.load.dma", "written", "words__valid"),
    "store: words lost": Fault(
        "observed_mpc.control.store.dma", "output__ready", "{right} | output__valid"
    ),
    "read multiplexer: changes its mind": Fault("observed_mpc.control.reads", "select", "1'h1"),
    "buffer: a bank's address": Fault("buffer_turn_64x16_8r4w", "address", "{right} & ~1"),
}

THREE_TILES = "quantize channels=1 keyframe=1\n" * 3 + "end"


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """One build that holds all faults."""
    folder = tmp_path_factory.mktemp("core")
    dut = generate_component("observed_mpc", ObservedMPC(TINY), TINY, folder)
    (source,) = dut.sources
    path = source.with_suffix(".sv")
    path.write_text(plant(source.read_text(), FAULTS))
    return machine_of(dataclasses.replace(dut, sources=(path,)), TINY)


def right(machine: Machine, fault: str | None) -> bool:
    """Whether random programs, and one that stops, do what they do on the golden core."""
    rng = np.random.default_rng(5)
    runs = [random_run(TINY, rng, 90) for _ in range(4)]
    three = [*table_program(BinTable.uniform(4)), *assemble(THREE_TILES)]
    bus = Bus(latency=15, bytes_per_cycle=5.5, stall=0.2)
    session = Session(machine=machine, bus=bus, seed=5, plusargs=switch_on(FAULTS, fault))
    programs = [program for program, _ in runs]
    programs.append(Program(address=PROGRAM, length=len(three), writes=[(PROGRAM, code(three))]))
    programs = [dataclasses.replace(program, patience=20_000) for program in programs]
    try:
        *ended, stopped = session.run(Memory(1 << 18, base=0x4000), programs)
    except SimulationError:
        return False
    return (stopped.status, stopped.registers["ERROR_PC"]) == (Status.DEADLOCK, 19) and all(
        end.status == Status.OK and (end.reads[0] == want).all()
        for end, (_, want) in zip(ended, runs, strict=True)
    )


@pytest.mark.full
def test_faults_are_caught(broken: Machine) -> None:
    assert right(broken, None)
    missed = [name for name in FAULTS if right(broken, name)]
    assert not missed
