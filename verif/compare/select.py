"""What a comparison takes of a dump (layers, steps, golden runs), and its report in the end."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dstar.gen.config import Config, ConfigError
from dstar.golden.dump import DumpReader
from dstar.golden.linear import FMDQLinear, LayerTables, LinearStep
from dstar.verif.compare.report import CompareError, CompareReport, Figures

Half = npt.NDArray[np.float16]


def check_steps(steps: range | None, total: int, given: object) -> None:
    """Refuse steps that are not a part of a dump of ``total``; ``given`` is what the user wrote.

    Raises
    ------
    CompareError
        If they are not consecutive, empty or out of range.
    """
    if steps is None or steps.step != 1 or not 0 <= steps.start < steps.stop <= total:
        raise CompareError(f"steps must be A:B with 0 <= A < B <= {total}, got {given!r}")


def parse_steps(text: str, total: int) -> range:
    """The steps that ``A:B``, ``A:``, ``:B`` or ``A`` means in a dump of ``total`` steps.

    Raises
    ------
    CompareError
        If it means none.
    """
    steps = None
    if match := re.fullmatch(r"([0-9]*)(:?)([0-9]*)", text):
        first, colon, last = match.groups()
        if colon:
            steps = range(int(first or 0), int(last or total))
        elif first:
            steps = range(int(first), int(first) + 1)
    check_steps(steps, total, text)
    assert steps is not None
    return steps


@dataclass(frozen=True, kw_only=True, eq=False)
class GoldenStep:
    """One step of a layer in the golden model.

    ``x``: activation (tokens, in).  ``reference``: what its difference is taken to, ``before``:
    the output of the step before (tokens, out); both None at a keyframe.  ``bias``: (out,).
    ``after``: what the next difference is taken to.
    """

    step: int
    x: Half
    reference: Half | None
    before: Half | None
    bias: Half
    after: Half | None = None
    result: LinearStep


@dataclass(frozen=True, kw_only=True, eq=False)
class Selection:
    """The layers and steps under comparison, and the figures that it fills in, by layer.

    ``started``: when it began, on the monotonic clock.
    """

    dump: DumpReader
    cfg: Config
    names: tuple[str, ...]
    steps: range
    figures: tuple[Figures, ...]
    started: float = field(default_factory=time.monotonic)

    def golden(
        self, index: int, tables: LayerTables, x_of: Callable[[int], Half] | None = None
    ) -> Iterator[GoldenStep]:
        """Run a layer from step 0, give the selected steps, note their bits and errors.

        ``x_of``: activations by step, asked for in order, instead of the dump's.

        Raises
        ------
        DumpError
            If a tensor is refused.
        CompareError
            If the golden model refuses the layer's weights or bias; the message names it.
        """
        dump, name, figures = self.dump, self.names[index], self.figures[index]
        try:
            layer = FMDQLinear(dump.w(name), dump.b(name), tables=tables, cfg=self.cfg)
        except ConfigError:
            raise
        except ValueError as error:
            raise CompareError(f"{dump.path}: {name}: {error}") from None
        before: Half | None = None
        for step in range(self.steps.stop):
            reference = layer.reference
            x = dump.x(name, step) if x_of is None else x_of(step)
            result = layer.step(x)
            if step in self.steps:
                y = dump.y(name, step).astype(np.float64)
                figures.values += result.q.size
                figures.bits += result.average_bits * result.q.size
                figures.signal += float(np.square(y).sum())
                figures.noise += float(np.square(result.y_carrier - y).sum())
                figures.clipped += dump.saturated.get(dump.layer(name).steps["x"][step].key, 0)
                figures.saturated += result.saturated
                start = result.keyframe
                yield GoldenStep(
                    step=step,
                    x=x,
                    reference=None if start else reference,
                    before=None if start else before,
                    bias=layer.bias,
                    after=layer.reference,
                    result=result,
                )
            before = result.y

    def report(self, unit: str, tables: Mapping[str, LayerTables] | None = None) -> CompareReport:
        """The report of what the figures hold by now; ``tables`` by layer, where a unit has any."""
        tables = tables or {}
        return CompareReport(
            unit=unit,
            preset=self.cfg.preset,
            config_hash=self.cfg.hash,
            dump=self.dump.path.name,
            lanes=self.cfg.array.lanes,
            steps=self.steps,
            names=self.names,
            layers=self.figures,
            tables=tuple(tables[name].delta.name for name in self.names if tables),
            seconds=time.monotonic() - self.started,
        )


def select(
    dump: DumpReader, cfg: Config, *, layers: str = "*", steps: range | None = None
) -> Selection:
    """The layers that match a glob, and steps, all by default.

    Raises
    ------
    DumpError
        If no layer matches.
    CompareError
        If the steps are out of range.
    """
    names = dump.match(layers)
    chosen = dump.steps if steps is None else steps
    check_steps(chosen, len(dump.steps), chosen)
    return Selection(
        dump=dump,
        cfg=cfg,
        names=names,
        steps=chosen,
        figures=tuple(Figures(lanes=cfg.array.lanes) for _ in names),
    )
