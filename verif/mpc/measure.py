"""One layer on the simulated core: how long it takes, and which engine works when."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dstar.golden.bins import BinTable
from dstar.golden.linear import FMDQLinear, LayerTables
from dstar.golden.mpc.layout import Half, LayerShape
from dstar.golden.mpc.plan import Plan, plan_layer
from dstar.golden.mpc.registers import ENGINES
from dstar.verif.compare.mpc import SEED, check
from dstar.verif.compare.mpc_plan import StepOfAll, part_of
from dstar.verif.compare.select import GoldenStep
from dstar.verif.mpc.machine import Machine
from dstar.verif.mpc.session import Bus, Ended, Session


@dataclass(frozen=True)
class Span:
    """An engine's state from cycle ``start`` to ``stop``: ``busy`` or ``stalled``."""

    engine: str
    state: str
    start: int
    stop: int


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A layer's steps: how the programs ended, average bits, and the spans of the whole run."""

    plan: Plan
    ended: Sequence[Ended]
    bits: Sequence[float]
    spans: Sequence[Span]


def measure(
    machine: Machine, shape: LayerShape, *, bus: Bus, steps: int = 2, drift: float = 0.1
) -> Measured:
    """Run a random layer, keyframe first, and check every bit.

    Activations are normally distributed and move by ``drift`` times a spread that varies by
    channel, so that precisions mix.

    Raises
    ------
    SimulationError, CompareError
        If the core fails.
    RuntimeError
        If a value is wrong.
    """
    cfg = machine.cfg
    rng = np.random.default_rng(1)
    weights, bias = rng.normal(size=(shape.out, shape.inner)), rng.normal(size=shape.out)
    tables = LayerTables(delta=BinTable.uniform(4))
    layer = FMDQLinear(weights, bias, tables=tables, cfg=cfg)
    spread = drift * 2.0 ** rng.normal(size=shape.inner)
    x = rng.normal(size=(shape.tokens, shape.inner))
    golden = []
    for step in range(steps):
        golden.append(_step(layer, step, x.astype(np.float16)))
        x = x + spread * rng.normal(size=x.shape)
    plan = plan_layer(cfg, shape)
    part = part_of(0, slice(0, shape.tokens), [plan], [layer], golden)
    with tempfile.TemporaryDirectory(prefix="dstar-measure-") as folder:
        trace = Path(folder) / "trace.txt"
        session = Session(machine=machine, bus=bus, seed=SEED, trace=trace)
        ended = session.run(part.memory, part.programs)
        spans = _spans(trace)
    if check(part, ended, "layer").mismatches:
        raise RuntimeError("a value of the measured layer is wrong")
    bits = [step.layers[0].result.average_bits for step in golden]
    return Measured(plan=plan, ended=ended, bits=bits, spans=spans)


def _step(layer: FMDQLinear, step: int, x: Half) -> StepOfAll:
    result = layer.step(x)
    golden = GoldenStep(step=step, x=x, reference=None, before=None, bias=layer.bias,
                        after=layer.reference, result=result)  # fmt: skip
    return StepOfAll(layers=(golden,), gelu=None)


def _spans(trace: Path) -> list[Span]:
    """Spans of a trace (:func:`dstar.verif.mpc.machine.machine_text`)."""
    rows = [tuple(map(int, line.split())) for line in trace.read_text().splitlines()]
    spans = []
    for number, name in enumerate(ENGINES):
        for column, state in ((1, "busy"), (2, "stalled")):
            changes = [(row[0], row[column] >> number & 1) for row in rows]
            runs = [(next(group)[0], on) for on, group in itertools.groupby(changes, _on)]
            for (start, on), (stop, _) in itertools.pairwise(runs):
                if on:
                    spans.append(Span(name.lower(), state, start, stop))
    return spans


def _on(change: tuple[int, int]) -> int:
    return change[1]
