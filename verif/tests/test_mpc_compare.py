"""Comparison of the core on dumps: with the golden core in its place, and with the RTL."""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from rich.console import Console

from dstar.gen.config import PRESETS, Config, load_config
from dstar.golden.dump import DumpReader
from dstar.golden.linear import LayerTables
from dstar.golden.mpc.core import CoreError, GoldenCore
from dstar.golden.mpc.layout import LayerShape
from dstar.golden.mpc.memory import Memory
from dstar.golden.mpc.registers import ENGINES, REGISTERS
from dstar.golden.profile import dump_tables
from dstar.verif.compare import mpc as module
from dstar.verif.compare.mpc import compare_core, core_simulator
from dstar.verif.compare.mpc_plan import Part, parts
from dstar.verif.compare.mpc_report import CoreReport
from dstar.verif.compare.report import CompareError
from dstar.verif.compare.select import Selection
from dstar.verif.mpc.machine import Machine
from dstar.verif.mpc.measure import measure
from dstar.verif.mpc.session import Bus, Ended, Program
from dstar.verif.tests.dump_tools import save_random
from dstar.verif.verilate import Build

TINY = PRESETS["tiny"]
#: Ragged in every dimension; the first two make a chain.
SHAPES = {"a.fc1": (9, 12, 21), "a.fc2": (9, 21, 14), "b.proj": (1, 37, 5)}
#: May change memory after a program, whose number it gets.
Spoil = Callable[[int, Memory], None]


class StandIn:
    """Runs a session's programs on the golden core."""

    def __init__(self, cfg: Config, parts: list[Part], spoil: Spoil | None = None) -> None:
        self.cfg, self.parts, self.spoil = cfg, parts, spoil

    def run(self, memory: Memory, programs: Sequence[Program]) -> list[Ended]:
        memory = copy.deepcopy(memory)
        core, ended = GoldenCore(self.cfg, memory), []
        part = next(part for part in self.parts if part.programs is programs)
        for number, program in enumerate(programs):
            faults, memory.faults = memory.faults, set()
            for address, data in program.writes:
                memory.write(address, data.tobytes())
            memory.faults = faults
            registers = {
                **dict.fromkeys(REGISTERS, 0),
                "SLOTS": part.slots(part.steps[number]) or 0,
            }
            try:
                core.run(program.address, program.length)
            except CoreError as error:
                registers["ERROR"] = REGISTERS["ERROR"].pack(CODE=error.status)
                registers["ERROR_PC"] = error.pc
            if self.spoil is not None:
                self.spoil(number, memory)
            reads = [memory.read(address, size) for address, size in program.reads]
            ended.append(
                Ended(
                    registers=registers, reads=reads, interrupted=True, seconds=0.1, cpu_seconds=0.1
                )
            )
        return ended


def watch_parts(monkeypatch: pytest.MonkeyPatch, seen: list[Part]) -> None:
    """Append the parts of comparisons from now on."""

    def watched(
        chosen: Selection, index: int, names: tuple[str, ...], tables: Mapping[str, LayerTables]
    ) -> Iterator[Part]:
        for part in parts(chosen, index, names, tables):
            seen.append(part)
            yield part

    monkeypatch.setattr(module, "parts", watched)


def report_of(
    monkeypatch: pytest.MonkeyPatch,
    path: Path,
    spoil: Spoil | None = None,
    cfg: Config = TINY,
    steps: range | None = None,
    seen: list[Part] | None = None,
) -> CoreReport:
    seen = [] if seen is None else seen
    watch_parts(monkeypatch, seen)
    monkeypatch.setattr(module, "Session", lambda **_: StandIn(cfg, seen, spoil))
    nothing = Build(folder=path, top="", flags=(), make_flags=(), waves=False, cached=True,
                    seconds=0.0)  # fmt: skip
    with DumpReader(path) as dump:
        tables = dump_tables(dump, dump.match("*"), cfg)
        return compare_core(dump, Machine(cfg, nothing), tables=tables, steps=steps)


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random(tmp_path_factory.mktemp("dump") / "toy.safetensors", SHAPES, steps=3)


@pytest.mark.parametrize("steps", [None, range(1, 3), range(1)])
def test_layers_and_chains(
    dump: Path, monkeypatch: pytest.MonkeyPatch, steps: range | None
) -> None:
    report = report_of(monkeypatch, dump, steps=steps)
    assert report.bit_exact
    assert report.names == ("a.fc1", "a.fc2", "a.fc1+gelu+fc2", "b.proj")
    count = len(steps or range(3))
    assert [f.tiles // count for f in report.layers] == [18, 24, 42, 6]
    data = json.loads(json.dumps(report.as_dict()))
    assert set(data["engines"]["busy"]) == {"load", "quantize", "multiply", "vector", "store"}
    assert len(data["layers"]) == 4


def test_tokens_are_cut_where_a_program_would_be_too_long(
    dump: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Part] = []
    monkeypatch.setattr("dstar.verif.compare.mpc_plan.PROGRAM_LENGTH", 160)
    assert report_of(monkeypatch, dump, seen=seen).bit_exact
    cuts = [(part.index, part.tokens.start, part.tokens.stop) for part in seen]
    assert cuts == [(0, 0, 9), (1, 0, 9), (2, 0, 4), (2, 4, 8), (2, 8, 9), (3, 0, 1)]
    monkeypatch.setattr("dstar.verif.compare.mpc_plan.PROGRAM_LENGTH", 40)
    with pytest.raises(CompareError, match=r"must have at most 40 instructions, got \d+ for 4 tok"):
        report_of(monkeypatch, dump)


def test_the_first_wrong_value_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_random(tmp_path / "one.safetensors", {"one": (9, 20, 11)}, steps=3)

    def spoil(number: int, memory: Memory) -> None:
        if number == 1:
            places = seen[0].images[0].places
            # y is [token tile][12 channels][4 tokens]: tile 2, channel 7, token 8.
            memory.data[places.y - memory.base + 8 * (2 * 12 + 7)] ^= 1
            memory.data[places.reference - memory.base + 8 * (2 * 20 + 18)] ^= 1

    seen: list[Part] = []
    report = report_of(monkeypatch, path, spoil, steps=range(2), seen=seen)
    first = report.as_dict()["first_mismatch"]
    assert report.total.mismatches == 2
    assert (first["layer"], first["step"], first["what"]) == ("one", 1, "y")
    assert first["tile"] == {"token_tile": 2, "k_tile": 0, "col_tile": 1}
    assert (first["row"], first["column"]) == (0, 3)
    assert first["expected"] ^ first["got"] == 1
    console = Console(width=150, record=True, file=io.StringIO())
    report.print(console)
    text = console.export_text()
    assert "one, step 1, token tile 2, k tile 0, column tile 1, row 0, column 3: y must be" in text
    assert "busy (waiting) share of the cycles" in text


def test_a_core_that_stops_is_told(dump: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(number: int, memory: Memory) -> None:
        memory.faults = {memory.base + 8}

    with pytest.raises(CompareError) as error:
        report_of(monkeypatch, dump, spoil)
    assert str(error.value) == (
        "a.fc1, step 1, tokens from 0: the core stopped with FETCH at instruction 0, address 0x0"
    )


def test_the_core_at_tiny(dump: Path) -> None:
    with core_simulator(TINY) as machine, DumpReader(dump) as reader:
        tables = dump_tables(reader, reader.match("*"), TINY)
        report = compare_core(reader, machine, tables=tables, jobs=1)
    assert report.bit_exact
    assert report.total.tiles == 3 * (18 + 24 + 42 + 6)
    cycles = report.total.cycles
    for engines in (e.busy for e in report.engines):
        assert 0 < engines["multiply"] < cycles


def test_what_the_array_waits_for() -> None:
    """Every cycle of a program is one state's."""
    shapes = [LayerShape(tokens=9, inner=20, out=30), LayerShape(tokens=9, inner=30, out=20)]
    with core_simulator(TINY) as machine:
        measured = measure(machine, shapes, bus=Bus(latency=20, bytes_per_cycle=5.0))
    assert len(measured.array) == len(measured.ended) == 2
    for end, array in zip(measured.ended, measured.array, strict=True):
        assert sum(array.values()) == end.cycles
        assert array["compute"] == end.registers["BEATS"]
        assert all(array[name] for name in ("begin", "end", "load", "quantize", "weights"))
    assert {span.engine for span in measured.spans} == {name.lower() for name in ENGINES}


@pytest.mark.full
@pytest.mark.parametrize(
    ("preset", "overrides", "layers", "steps"),
    [
        ("paper", (), "blocks.0.*", range(4)),
        *(("edge", (), f"blocks.{block}.*", range(4)) for block in range(4)),
        *(("tiny", (), f"blocks.{block}.*", range(2)) for block in range(4)),
        ("tiny", ("rows=8", "cols=2", "cluster=1", "k_tile=24"), "blocks.0.adaln", range(2)),
    ],
)
def test_linear_layers_and_chains_of_the_shipped_model(
    preset: str, overrides: tuple[str, ...], layers: str, steps: range, tmp_path: Path
) -> None:
    from dstar.golden.capture import capture_builtin

    path = tmp_path / "dit.safetensors"
    capture_builtin(path, steps=max(4, steps.stop))
    cfg = load_config(preset=preset, overrides=overrides)
    with core_simulator(cfg) as machine, DumpReader(path) as reader:
        tables = dump_tables(reader, reader.match(layers), cfg)
        report = compare_core(reader, machine, tables=tables, layers=layers, steps=steps, jobs=1)
    assert report.bit_exact
    if overrides == ():
        assert len(report.names) == 6
