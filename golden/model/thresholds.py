"""Measured thresholds of a model's linear layers, in a small file tied to its weights.

Static thresholds come from runs on a profiling set (paper, section 3.1).  A profile runs the float
model and quantizes each layer's activation at several steps ``T = 2**-b`` beside it, with feedback
and without effect; then a target picks b for every layer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from dstar.gen.config import PRESETS, Config, ConfigError

from ..bins import BinTable
from ..fmdq_torch import TorchQuantized, quantize
from ..linear import LayerTables
from ..profile import MAX_B, MIN_B, LayerProfile
from ..shipped import digest
from .method import LinearStats, Moment, Plain, State, whole_layer
from .statistics import count

#: Octaves around the rule of the first activation that a profile tries.
OCTAVES = range(-5, 4)


def weights_digest(linear: nn.Linear) -> str:
    """Sixteen hex digits that identify a layer's weights, to binary16."""
    return digest(linear.weight.detach().float().cpu().numpy())


@dataclass(frozen=True, kw_only=True)
class LayerThreshold:
    """One layer of a profile.

    ``exponent``: b of the step ``T = 2**-b``.  ``largest_start``: largest magnitude at the first
    step.  ``bits``, ``snr_db``: average bits and signal-to-quantization-noise ratio of the
    layer's activation in the profiling runs.  ``weights``: digest of the weights.
    """

    exponent: int
    largest_start: float
    bits: float
    snr_db: float
    weights: str


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """Measured thresholds by layer name.

    ``target``: what they were chosen for, in words.  ``steps``: denoising steps of the runs.
    """

    layers: Mapping[str, LayerThreshold]
    target: str = ""
    steps: int = 0
    cfg: Config = PRESETS["paper"]

    def tables(self, name: str, linear: nn.Linear) -> LayerTables | None:
        """Tables of a layer, or None if the profile does not have it.

        Raises
        ------
        ConfigError
            If the layer's weights are not those that were profiled.
        """
        known = self.layers.get(name)
        if known is None:
            return None
        if (found := weights_digest(linear)) != known.weights:
            raise ConfigError(
                f"thresholds of {name} must be those of its weights ({found}), got a profile of "
                f"weights {known.weights}; profile this model"
            )
        span = self.cfg.numeric.exponent_span
        return LayerTables(
            delta=BinTable.uniform(known.exponent, span=span),
            keyframe=BinTable.keyframe(known.largest_start, span=span),
        )

    def save(self, path: str | Path) -> None:
        """Write a readable file: JSON, a line a layer."""
        rows = [f"  {json.dumps(n)}: {json.dumps(asdict(t))}" for n, t in self.layers.items()]
        head = f' "target": {json.dumps(self.target)},\n "steps": {self.steps},\n "layers": {{\n'
        Path(path).write_text("{\n" + head + ",\n".join(rows) + "\n }\n}\n")

    @classmethod
    def load(cls, path: str | Path, cfg: Config = PRESETS["paper"]) -> Thresholds:
        """Read what :meth:`save` wrote.

        Raises
        ------
        ConfigError
            If the file is not one.
        """
        try:
            content = json.loads(Path(path).read_text())
            layers = {name: LayerThreshold(**layer) for name, layer in content["layers"].items()}
            return cls(layers=layers, target=content["target"], steps=content["steps"], cfg=cfg)
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{path} must be a file of thresholds, got {error!r}") from None


@dataclass
class Trial:
    """What one b would give in one layer: sums over values of bits, energy and error energy."""

    bits: float = 0.0
    values: int = 0
    signal: float = 0.0
    noise: float = 0.0

    @property
    def snr_db(self) -> float:
        """Signal-to-quantization-noise ratio, dB."""
        if self.noise == 0:
            return math.inf
        return 10 * math.log10(self.signal / self.noise) if self.signal else -math.inf

    @property
    def average_bits(self) -> float:
        """Mean bits of a value."""
        return self.bits / self.values


@dataclass(kw_only=True)
class ThresholdProfile:
    """A linear method that runs float layers and tries thresholds; run it, then :meth:`choose`."""

    cfg: Config = PRESETS["paper"]
    kernels: dict[str, ProfileKernel] = field(default_factory=dict)
    steps: int = 0

    def kernel(self, name: str, linear: nn.Linear) -> ProfileKernel:
        """The kernel of one layer."""
        made = ProfileKernel(linear, self)
        self.kernels[name] = made
        return made

    def choose(self, *, snr_db: float | None = None, bits: float | None = None) -> Thresholds:
        """Thresholds for a target, one of the two.

        Parameters
        ----------
        snr_db:
            In each layer the coarsest step whose signal-to-noise ratio is at least this, the
            finest tried where none is.
        bits:
            The highest ratio, the same for all layers, at which the average over all values
            stays within this.

        Raises
        ------
        ConfigError
            If not exactly one target is given, nothing ran, or the coarsest steps tried take
            more than ``bits``.
        """
        if (snr_db is None) == (bits is None):
            raise ConfigError(f"a target must be snr_db or bits, got {snr_db} and {bits}")
        ran = {name: kernel for name, kernel in self.kernels.items() if kernel.trials}
        if not ran:
            raise ConfigError("a threshold profile needs a run before it chooses, got none")
        if snr_db is None and bits is not None:
            ratios = sorted({t.snr_db for k in ran.values() for t in k.trials.values()})
            for snr_db in reversed(ratios):
                average = _average([k.trials[k.pick(snr_db)] for k in ran.values()])
                if average <= bits:
                    break
            else:
                raise ConfigError(
                    f"bits must be at least {average:.3f}, what the coarsest steps tried take, "
                    f"got {bits}"
                )
            target = f"{bits} bits: {snr_db:.2f} dB in each layer"
        else:
            target = f"{snr_db} dB in each layer"
        assert snr_db is not None
        layers = {name: kernel.threshold(snr_db) for name, kernel in ran.items()}
        return Thresholds(layers=layers, target=target, steps=self.steps, cfg=self.cfg)


def _average(trials: Sequence[Trial]) -> float:
    return sum(t.bits for t in trials) / sum(t.values for t in trials)


class ProfileKernel:
    """The float layer, with trials at several exponents beside it.

    ``trials``: by exponent b; empty before the first activation, whose rule they surround.
    """

    def __init__(self, linear: nn.Linear, profile: ThresholdProfile) -> None:
        self.profile, self.run = profile, Plain().kernel("", linear)
        self.weights = weights_digest(whole_layer(linear))
        self.trials: dict[int, Trial] = {}
        self.largest_start = self.largest_difference = 0.0

    def __call__(self, x: Tensor, state: State, moment: Moment) -> tuple[Tensor, LinearStats]:
        """Run the layer and note what each trial makes of its activation."""
        half = x.half().nan_to_num(0.0, 0.0, 0.0)
        span, rows = self.profile.cfg.numeric.exponent_span, self.profile.cfg.array.rows
        self.profile.steps = max(self.profile.steps, moment.step + 1)
        before: dict[int, Tensor] = state.get("references", {})
        peak = float(half.abs().max())
        if not before:
            self.largest_start = max(self.largest_start, peak)
            self.trials = self.trials or {b: Trial() for b in self._exponents(half, peak)}
            start = quantize(half, BinTable.keyframe(peak, span=span), rows=rows, with_q=False)
        else:
            difference = float((half.float() - state["x"].float()).abs().max())
            self.largest_difference = max(self.largest_difference, difference)
        state["x"] = half
        energy, after = float(half.double().square().sum()), {}
        for b in self.trials:
            if before:
                table = BinTable.uniform(b, span=span)
                done = quantize(half, table, reference=before[b], rows=rows, with_q=False)
            else:
                done = start
            after[b] = done.x_hat
            self._note(b, done, half, energy, rows)
        state["references"] = after
        return self.run(x, state, moment)

    def _exponents(self, x: Tensor, peak: float) -> list[int]:
        step = float(x.float().abs().amax(dim=-1).mean()) / 127
        span = self.profile.cfg.numeric.exponent_span
        rule = LayerProfile(
            token_step=step, largest_difference=peak, largest_start=peak, span=span
        ).exponent
        return [b for octave in OCTAVES if MIN_B <= (b := rule + octave) <= MAX_B]

    def _note(self, b: int, done: TorchQuantized, x: Tensor, energy: float, rows: int) -> None:
        trial = self.trials[b]
        trial.bits += count(done, rows).bits
        trial.values += x.numel()
        trial.signal += energy
        trial.noise += float((x.float() - done.x_hat.float()).double().square().sum())

    def pick(self, snr_db: float) -> int:
        """The coarsest b tried that reaches a ratio and clips nothing, or the finest."""
        limit = LayerProfile(
            token_step=0.0,
            largest_difference=self.largest_difference,
            largest_start=self.largest_start,
            span=self.profile.cfg.numeric.exponent_span,
        ).limit
        tried = [b for b in sorted(self.trials) if b <= limit] or [min(self.trials)]
        return next((b for b in tried if self.trials[b].snr_db >= snr_db), tried[-1])

    def threshold(self, snr_db: float) -> LayerThreshold:
        """This layer's entry for a ratio."""
        b = self.pick(snr_db)
        trial = self.trials[b]
        return LayerThreshold(
            exponent=b,
            largest_start=self.largest_start,
            bits=round(trial.average_bits, 3),
            snr_db=round(trial.snr_db, 2),
            weights=self.weights,
        )


def profile(
    model: nn.Module,
    run: Callable[[nn.Module], Any],
    *,
    snr_db: float | None = None,
    bits: float | None = None,
    layers: str | Sequence[str] | None = None,
    cfg: Config = PRESETS["paper"],
) -> Thresholds:
    """Run a model on a profiling set and choose thresholds; the model is left as it was.

    Parameters
    ----------
    model:
        The float model.
    run:
        Called once with the wrapped model: draws the profiling samples.
    snr_db, bits:
        The target, see :meth:`ThresholdProfile.choose`.
    layers:
        As in :func:`~dstar.golden.model.apply.apply`.
    """
    from .apply import apply

    recorder = ThresholdProfile(cfg=cfg)
    wrapped = apply(model, recorder, layers=layers)
    try:
        run(wrapped)
    finally:
        wrapped.unwrap()
    return recorder.choose(snr_db=snr_db, bits=bits)
