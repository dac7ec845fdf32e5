"""The VPU on dumps: bounds of the golden model, and the comparison with the RTL."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dstar.verif.compare.vpu as module
from dstar.gen.config import PRESETS
from dstar.golden.capture import capture_builtin
from dstar.golden.dump import DumpReader
from dstar.verif.compare.vpu import VPUSimulator, compare_vpu, vpu_simulator
from dstar.verif.compare.vpu_plan import Work, layer_work
from dstar.verif.tests.dump_tools import save_random
from dstar.verif.vpu_run import run_programs


def test_golden_on_the_shipped_model(tmp_path: Path) -> None:
    path = tmp_path / "dit.safetensors"
    capture_builtin(path, steps=4, layers="blocks.0.*", attention=True)
    worst: dict[str, float] = {}
    with DumpReader(path) as dump:
        for name in dump.linear_layers:
            for work in layer_work(dump, name, 3, PRESETS["paper"]):
                worst[work.what] = max(worst.get(work.what, 0.0), work.worst_ulp)
                if work.what == "softmax":
                    check_softmax(work)
    assert worst["layer_norm"] <= 2
    assert worst["gelu"] <= 2
    assert worst["gelu_tanh"] <= 2
    assert worst["residual"] <= 1
    assert "softmax" in worst


def check_softmax(work: Work) -> None:
    got = work.golden[work.result :].astype(np.float64)
    assert np.abs(got - work.exact).max() < 1e-3
    assert np.abs(got.sum(axis=0) - 1).max() < 2e-3


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dump") / "toy.safetensors"
    return save_random(path, {"a.fc": (9, 12, 12), "b.fc": (1, 7, 20)}, steps=3)


@pytest.fixture(scope="module")
def simulator() -> VPUSimulator:
    with vpu_simulator(PRESETS["tiny"]) as made:
        return made


def test_toy_dump_is_bit_exact(dump: Path, simulator: VPUSimulator) -> None:
    with DumpReader(dump) as reader:
        report = compare_vpu(reader, simulator, steps=range(1, 3))
    assert report.bit_exact
    data = report.as_dict()
    assert (data["unit"], data["preset"], data["mismatches"]) == ("vpu", "tiny", 0)
    # Three tiles of five operations and one of four, at two steps.
    assert data["tiles"] == 2 * (3 * 5 + 4)
    assert data["sqnr_db"] > 60
    assert data["first_mismatch"] is None


def test_a_wrong_bit_is_found(
    dump: Path, simulator: VPUSimulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_programs

    def faulty(*args: object, **options: object) -> object:
        got, result = run(*args, **options)  # type: ignore[arg-type]
        got = got.copy()
        got.view(np.uint16)[-1, 0] ^= 1
        return got, result

    monkeypatch.setattr(module, "run_programs", faulty)
    with DumpReader(dump) as reader:
        report = compare_vpu(reader, simulator, layers="b.*", steps=range(1))
    assert not report.bit_exact
    first = report.as_dict()["first_mismatch"]
    assert (first["layer"], first["step"], first["row"]) == ("b.fc", 0, 0)
    assert first["expected"] ^ first["got"] == 1
