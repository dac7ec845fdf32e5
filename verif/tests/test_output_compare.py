"""The output path on a dump: what whole layers put out, from the RTL."""

from __future__ import annotations

from pathlib import Path

import pytest

import dstar.verif.compare.output as module
from dstar.gen.config import PRESETS
from dstar.golden.bins import BinTable
from dstar.golden.dump import DumpReader
from dstar.golden.linear import LayerTables
from dstar.verif.compare.output import OutputSimulator, compare_output, output_simulator
from dstar.verif.compare.report import CompareError
from dstar.verif.output_words import channel_words
from dstar.verif.tests.dump_tools import save_random

TABLES = {name: LayerTables(delta=BinTable.paper(4)) for name in ("a.fc", "b.fc")}


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dump") / "toy.safetensors"
    return save_random(path, {"a.fc": (9, 40, 10), "b.fc": (1, 7, 3)}, steps=4)


@pytest.fixture(scope="module")
def simulator() -> OutputSimulator:
    with output_simulator(PRESETS["tiny"], k_tiles=3) as made:
        return made


def test_toy_dump_is_bit_exact(dump: Path, simulator: OutputSimulator) -> None:
    with DumpReader(dump) as reader:
        report = compare_output(reader, simulator, tables=TABLES)
    assert report.bit_exact
    data = report.as_dict()
    assert (data["unit"], data["mismatches"], data["first_mismatch"]) == ("output", 0, None)
    assert data["tiles"] == 4 * (3 + 1)
    # A column a cycle: 12 or 4 columns of each k tile.
    assert data["cycles"] >= 4 * (3 * 3 * 12 + 4)


def test_a_wrong_scale_is_found(
    dump: Path, simulator: OutputSimulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = channel_words
    monkeypatch.setattr(module, "channel_words", lambda scale, bias: words(scale * 2, bias))
    with DumpReader(dump) as reader:
        report = compare_output(reader, simulator, tables=TABLES, layers="b.*", steps=range(1, 2))
    assert not report.bit_exact
    first = report.as_dict()["first_mismatch"]
    assert (first["layer"], first["step"], first["what"]) == ("b.fc", 1, "y")


def test_too_many_k_tiles_are_refused(dump: Path, simulator: OutputSimulator) -> None:
    small = OutputSimulator(simulator.cfg, simulator.build, simulator.dut, 2)
    with (
        DumpReader(dump) as reader,
        pytest.raises(CompareError, match=r"a\.fc: k tiles must be at most 2, got 3"),
    ):
        compare_output(reader, small, tables=TABLES)
