"""A layer or chain on the simulated core: how long it takes, and what its parts do when."""

from __future__ import annotations

import itertools
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dstar.golden.bins import BinTable
from dstar.golden.linear import FMDQLinear, LayerTables
from dstar.golden.mpc.layout import Half, LayerShape
from dstar.golden.mpc.plan import Plan, plan_layer
from dstar.golden.mpc.registers import ENGINES
from dstar.verif.compare.mpc import SEED, check
from dstar.verif.compare.mpc_plan import StepOfAll, gelu, part_of
from dstar.verif.compare.select import GoldenStep
from dstar.verif.mpc.machine import Machine
from dstar.verif.mpc.observed import ArrayState
from dstar.verif.mpc.session import Bus, Ended, Session

#: A line of a trace: cycle, bits of busy and of stalled engines, state of the array.
Line = tuple[int, ...]


@dataclass(frozen=True)
class Span:
    """An engine's state from cycle ``start`` to ``stop``: ``busy`` or ``stalled``."""

    engine: str
    state: str
    start: int
    stop: int


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A run's steps: plans, how programs ended, average bits, what the array did, and the spans.

    ``array``: for every program the cycles in each state, with ``begin`` before the first beat and
    ``end`` after the last.  ``spans``: of the whole run.
    """

    plans: Sequence[Plan]
    ended: Sequence[Ended]
    bits: Sequence[float]
    array: Sequence[Counter[str]]
    spans: Sequence[Span]


def measure(
    machine: Machine, shapes: Sequence[LayerShape], *, bus: Bus, steps: int = 2, drift: float = 0.1
) -> Measured:
    """Run a random layer, or a chain of two with a GELU between them, keyframe first, and check
    every bit.

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
    tables = LayerTables(delta=BinTable.uniform(4))
    layers = [
        FMDQLinear(rng.normal(size=(shape.out, shape.inner)), rng.normal(size=shape.out),
                   tables=tables, cfg=cfg)
        for shape in shapes
    ]  # fmt: skip
    tokens, inner = shapes[0].tokens, shapes[0].inner
    spread = drift * 2.0 ** rng.normal(size=inner)
    x = rng.normal(size=(tokens, inner))
    golden = []
    for step in range(steps):
        golden.append(_step(layers, step, x.astype(np.float16)))
        x = x + spread * rng.normal(size=x.shape)
    plans = [plan_layer(cfg, s, gelu=n + 1 < len(shapes)) for n, s in enumerate(shapes)]
    part = part_of(0, slice(0, tokens), plans, layers, golden)
    with tempfile.TemporaryDirectory(prefix="dstar-measure-") as folder:
        trace = Path(folder) / "trace.txt"
        session = Session(machine=machine, bus=bus, seed=SEED, trace=trace)
        ended = session.run(part.memory, part.programs)
        rows = [tuple(map(int, line.split())) for line in trace.read_text().splitlines()]
    if check(part, ended, "layer").mismatches:
        raise RuntimeError("a value of the measured layer is wrong")
    products = [plan.products for plan in plans]
    bits = [
        float(np.average([s.result.average_bits for s in step.layers], weights=products))
        for step in golden
    ]
    return Measured(plans=plans, ended=ended, bits=bits, array=_array(rows), spans=_spans(rows))


def _step(layers: Sequence[FMDQLinear], step: int, x: Half) -> StepOfAll:
    """The golden layers, and the GELU between them."""
    steps: list[GoldenStep] = []
    between: Half | None = None
    for layer in layers:
        if steps:
            x = between = gelu(steps[-1].result.y, layer.cfg)
        result = layer.step(x)
        steps.append(GoldenStep(step=step, x=x, reference=None, before=None, bias=layer.bias,
                                after=layer.reference, result=result))  # fmt: skip
    return StepOfAll(layers=tuple(steps), gelu=between)


def _runs(
    rows: Sequence[Line], column: int, *, shift: int = 0, mask: int = -1
) -> Iterator[tuple[int, int, int]]:
    """Runs of equal states in a trace's column, or in some of its bits: state, first cycle, cycle
    after."""
    changes = ((row[column] >> shift & mask, row[0]) for row in rows)
    firsts = [next(group) for _, group in itertools.groupby(changes, lambda change: change[0])]
    for (value, start), (_, stop) in itertools.pairwise(firsts):
        yield value, start, stop


def _array(rows: Sequence[Line]) -> list[Counter[str]]:
    """Cycles of the array's states for every program of a trace."""
    found = []
    runs = [(ArrayState(value), stop - start) for value, start, stop in _runs(rows, 3)]
    for idle, group in itertools.groupby(runs, lambda run: run[0] == ArrayState.IDLE):
        program = list(group)
        if idle:
            continue
        beats = [n for n, (state, _) in enumerate(program) if state == ArrayState.COMPUTE]
        first, last = (beats[0], beats[-1]) if beats else (len(program), len(program))
        count: Counter[str] = Counter()
        for n, (state, cycles) in enumerate(program):
            name = "begin" if n < first else "end" if n > last else state.name.lower()
            count[name] += cycles
        found.append(count)
    return found


def _spans(rows: Sequence[Line]) -> list[Span]:
    """Spans of a trace (:func:`dstar.verif.mpc.machine.machine_text`)."""
    spans = []
    for number, name in enumerate(ENGINES):
        for column, state in ((1, "busy"), (2, "stalled")):
            for on, start, stop in _runs(rows, column, shift=number, mask=1):
                if on:
                    spans.append(Span(name.lower(), state, start, stop))
    return spans
