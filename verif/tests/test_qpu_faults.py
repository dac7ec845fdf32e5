"""A fault planted in each stage of the QPU is caught by the random test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from amaranth.hdl import Cat, Module

from dstar.gen.config import ArrayConfig, Config, NumericConfig
from dstar.rtl.fp16.add import FP16Add
from dstar.rtl.hierarchy import shared
from dstar.verif.process import SimulationError
from dstar.verif.qpu.stimulus import stimulus
from dstar.verif.tests.qpu_tools import Bench, activations

SMALL = Config(
    array=ArrayConfig(rows=2, cols=2, cluster=1, lanes=2), numeric=NumericConfig(k_tile=4)
)


def first_only(values: list[Any]) -> Any:
    """A selection that knows only its first input."""
    return values[0]


def first_of_pair(m: Any, name: str, values: list[Any]) -> list[Any]:
    """A comparator tree that never looks at every other value."""
    return values[::2]


class LossyAdd(FP16Add):
    """An adder that ignores the last bit of its second operand."""

    @property
    def module_name(self) -> str:
        """Verilog module name."""
        return "lossy_add"

    def elaborate(self, platform: Any) -> Module:
        """A right adder with one wire missing."""
        m = Module()
        adder = FP16Add(stages=self.stages)
        m.submodules.adder = shared(platform, adder)
        m.d.comb += [
            adder.enable.eq(self.enable),
            adder.a.eq(self.a),
            adder.b.eq(Cat(0, self.b[1:])),
            self.sum.eq(adder.sum),
        ]
        return m


#: Stage: what is replaced by what.
FAULTS: dict[str, tuple[str, Any]] = {
    "difference": ("dstar.rtl.qpu.vectors.FP16Add", LossyAdd),
    "stage 1, magnitude": ("dstar.rtl.qpu.bins._halved", first_of_pair),
    "stage 2, bins": ("dstar.rtl.qpu.bins.EXPONENT_BITS", 5),
    "stage 3, quantize": ("dstar.rtl.qpu.vectors.UNIT", 24),
    "stage 4, order": ("dstar.rtl.qpu.bucket_fill.SLICE_BITS", 1),
    "stage 5, encode": ("dstar.rtl.qpu.encode.or_all", first_only),
    "reconstruct": ("dstar.rtl.qpu.vectors.SMALLEST", 25),
}


def catches(bench: Bench, seed: int) -> bool:
    """Whether the random test fails on this QPU."""
    rng = np.random.default_rng(seed)
    run = activations(rng, bench.cfg, 60)
    want = stimulus(run, bench.cfg)
    try:
        bench.run(want, seed=seed)
    except (AssertionError, SimulationError):
        return True
    return False


def test_no_fault(tmp_path: Path, seed: int) -> None:
    assert not catches(Bench.make(SMALL, tmp_path), seed)


@pytest.mark.parametrize("name", FAULTS)
def test_fault(name: str, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*FAULTS[name])
    assert catches(Bench.make(SMALL, tmp_path), seed)
