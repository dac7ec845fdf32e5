"""Measured thresholds: targets, files, refusals; and the wrapper's counting of steps."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dstar.gen.config import ConfigError
from dstar.golden.model.apply import apply
from dstar.golden.model.clock import Clock
from dstar.golden.model.fmdq import FMDQ
from dstar.golden.model.thresholds import ThresholdProfile, Thresholds, profile
from dstar.verif.tests.model_tools import inputs, run, small_dit


def test_targets(seed: int) -> None:
    x, y = inputs(2, seed)
    model = small_dit()
    recorder = ThresholdProfile()
    wrapped = apply(model, recorder)
    assert torch.equal(run(wrapped, x, y), run(small_dit(), x, y))  # the float model
    wrapped.unwrap()
    fine, coarse = recorder.choose(snr_db=40), recorder.choose(snr_db=20)
    for name, layer in fine.layers.items():
        other = coarse.layers[name]
        assert layer.exponent >= other.exponent
        assert layer.bits >= other.bits
        assert other.snr_db >= 20
    few = recorder.choose(bits=5)
    measured = {}
    for thresholds in (fine, few):
        quantized = apply(model, FMDQ(thresholds=thresholds))
        run(quantized, x, y)
        measured[thresholds.target] = quantized.report().average_bits
        quantized.unwrap()
    assert few.steps == 4
    with pytest.raises(ConfigError, match=r"bits must be at least 3\.\d+, what .*, got 3\.5"):
        recorder.choose(bits=3.5)
    trials = [recorder.kernels[n].trials[layer.exponent] for n, layer in few.layers.items()]
    assert sum(t.bits for t in trials) / sum(t.values for t in trials) <= 5
    # The profile saw the float model's activations, this ran on the quantized model's, whose
    # differences hold the noise of the layers before.
    assert measured[few.target] == pytest.approx(5, abs=0.3)
    assert measured[few.target] < measured[fine.target]


def test_files_are_tied_to_weights(tmp_path: Path, seed: int) -> None:
    x, y = inputs(1, seed)
    model = small_dit()
    chosen = profile(model, lambda m: run(m, x, y), snr_db=30, layers="blocks.1.*")
    assert all(name.startswith("blocks.1.") for name in chosen.layers)
    assert not any(hasattr(m, "kernels") for m in model.modules())
    chosen.save(tmp_path / "t.json")
    assert len((tmp_path / "t.json").read_text().splitlines()) == len(chosen.layers) + 6
    again = Thresholds.load(tmp_path / "t.json")
    assert again == chosen
    wrapped = apply(model, FMDQ(thresholds=again, shift=1), layers="blocks.1.*")
    for name, layer in wrapped.layers.items():
        kernel: Any = layer.kernels[0]
        assert kernel.tables.delta.finest == chosen.layers[name].exponent + 1
    other = small_dit()
    with torch.no_grad():
        other.blocks[1].mlp.fc1.weight[0, 0] += 1
    message = r"thresholds of blocks\.1\.mlp\.fc1 must be those of its weights"
    with pytest.raises(ConfigError, match=message):
        apply(other, FMDQ(thresholds=again))
    (tmp_path / "bad.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"bad\.json must be a file of thresholds"):
        Thresholds.load(tmp_path / "bad.json")


def test_refusals() -> None:
    recorder = ThresholdProfile()
    with pytest.raises(ConfigError, match="a target must be snr_db or bits, got None and None"):
        recorder.choose()
    with pytest.raises(ConfigError, match="needs a run before it chooses"):
        recorder.choose(bits=3.0)


def clock_of(times: list[float], evaluations: int | None = None) -> list[tuple[int, int]]:
    """Step and evaluation of each call."""

    def forward(x: torch.Tensor, timestep: torch.Tensor) -> None:
        """A model."""

    clock = Clock(forward, evaluations=evaluations)
    found = []
    for time in times:
        clock.tick((torch.zeros(1, 2),), {"timestep": torch.tensor([time])})
        found.append((clock.step, clock.evaluation))
    return found


def test_steps_from_times() -> None:
    assert clock_of([9, 7, 5]) == [(0, 0), (1, 0), (2, 0)]
    assert clock_of([9, 9, 7, 7]) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert clock_of([9, 7, 9, 7]) == [(0, 0), (1, 0), (0, 0), (1, 0)]  # a second sample
    assert clock_of([0.0, 0.5, 0.0]) == [(0, 0), (1, 0), (0, 0)]
    # Heun's method evaluates two steps at one time.
    assert clock_of([9, 7, 7, 5], evaluations=1) == [(0, 0), (1, 0), (2, 0), (3, 0)]


def test_steps_without_times() -> None:
    class Bare(nn.Module):
        """A model whose calls carry no time."""

        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.fc(x)
            return y

    model = apply(Bare(), FMDQ(exponents={"*": 4}), evaluations=2)
    x = torch.ones(1, 3, 8)
    for _ in range(6):
        model(x)
    assert sorted(model.report().linear["fc"].steps) == [0, 1, 2]
    assert set(model.layers["fc"].states) == {(0, 0, 0), (1, 0, 0)}
    assert math.isclose(model.report().bits()["fc"][1], 0.0, abs_tol=8)
    with pytest.raises(ValueError, match="evaluations must be at least 1 or None, got 0"):
        apply(Bare(), FMDQ(), evaluations=0)
