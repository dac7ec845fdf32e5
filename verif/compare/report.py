"""What a comparison found: figures by layer and in all, as JSON and as a table."""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from dstar.verif.compare.check import JobResult, Mismatch


class CompareError(RuntimeError):
    """A comparison that cannot be run, or a unit whose counters contradict the schedule."""


@dataclass(kw_only=True)
class Figures:
    """Sums from which every figure of a layer, or of all layers, follows.

    ``slices`` and ``beats``: busy lane slots and compute cycles.  ``cycles``: cycles from one
    tile's last output word to the next one's.  ``seconds``: simulation time they took.
    ``values`` and ``bits``: activation values of the compared steps and their precisions' sum.
    ``signal`` and ``noise``: energies of the dump's output and of the golden output's error.
    ``clipped``: activations beyond binary16, clipped on request.  ``saturated``: steps in which
    a golden output or reference left binary16's range.
    """

    lanes: int
    tiles: int = 0
    mismatches: int = 0
    first: Mismatch | None = None
    cycles: int = 0
    beats: int = 0
    slices: int = 0
    seconds: float = 0.0
    values: int = 0
    bits: float = 0.0
    signal: float = 0.0
    noise: float = 0.0
    clipped: int = 0
    saturated: int = 0

    def add_job(self, result: JobResult, *, beats: int, seconds: float) -> None:
        """Count one checked tile product; ``seconds`` is its share of the simulation."""
        self.tiles += 1
        self.mismatches += result.mismatches
        if result.first is not None:
            self.first = min(self.first or result.first, result.first)
        self.cycles += result.cycles
        self.beats += beats
        self.slices += result.job.tile.slices
        self.seconds += seconds

    def add(self, other: Figures) -> None:
        """Add another layer's figures."""
        firsts = [f.first for f in (self, other) if f.first is not None]
        self.first = min(firsts, default=None)
        for name in ("tiles", "mismatches", "cycles", "beats", "slices", "seconds", "values",
                     "bits", "signal", "noise", "clipped", "saturated"):  # fmt: skip
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def bit_exact(self) -> bool:
        """Whether something was compared and every value was right."""
        return self.tiles > 0 and self.mismatches == 0

    @property
    def issue_utilization(self) -> float | None:
        """Busy lane slots over all lane slots of the compute cycles."""
        return self.slices / (self.lanes * self.beats) if self.beats else None

    @property
    def array_utilization(self) -> float | None:
        """Busy lane slots over all lane slots of all cycles, loading and draining included."""
        return self.slices / (self.lanes * self.cycles) if self.cycles else None

    @property
    def average_bits(self) -> float | None:
        """Mean precision of the activation values; a skipped sub-channel counts as 0 bits."""
        return self.bits / self.values if self.values else None

    @property
    def sqnr_db(self) -> float | None:
        """Energy of the dump's float output over that of the golden output's error, in dB."""
        if not (self.signal and self.noise):
            return None
        return 10 * math.log10(self.signal / self.noise)

    @property
    def cycles_per_second(self) -> float | None:
        """Simulated cycles per second of one simulator."""
        return self.cycles / self.seconds if self.seconds else None

    def as_dict(self, names: Sequence[str]) -> dict[str, Any]:
        """The figures under their JSON names; ``names`` are the layers'."""
        keys = ("bit_exact", "tiles", "mismatches", "cycles", "issue_utilization",
                "array_utilization", "average_bits", "sqnr_db", "cycles_per_second")  # fmt: skip
        result = {key: getattr(self, key) for key in keys}
        result["first_mismatch"] = None if self.first is None else self.first.as_dict(names)
        result["clipped_inputs"] = self.clipped
        result["saturated_steps"] = self.saturated
        return result


@dataclass(kw_only=True)
class CompareReport:
    """The result of :func:`dstar.verif.compare.compare`.

    ``names``: layers in order.  ``layers``: their figures.  ``steps``: the compared steps.
    ``seconds``: wall-clock time of the whole comparison.
    """

    unit: str
    preset: str
    config_hash: str
    dump: str
    lanes: int
    steps: range
    names: tuple[str, ...]
    layers: tuple[Figures, ...]
    tables: tuple[str, ...] = ()
    seconds: float = 0.0
    total: Figures = field(init=False)

    def __post_init__(self) -> None:
        self.total = Figures(lanes=self.lanes)
        for layer in self.layers:
            self.total.add(layer)

    @property
    def bit_exact(self) -> bool:
        """Whether every compared value was right."""
        return self.total.bit_exact

    def as_dict(self) -> dict[str, Any]:
        """The JSON report."""
        layers = []
        for i, (name, figures) in enumerate(zip(self.names, self.layers, strict=True)):
            tables = {"bin_table": self.tables[i]} if self.tables else {}
            layers.append({"layer": name, **tables, **figures.as_dict(self.names)})
        return {
            "unit": self.unit,
            "preset": self.preset,
            "config_hash": self.config_hash,
            "dump": self.dump,
            "steps": [self.steps.start, self.steps.stop],
            "seconds": self.seconds,
            **self.total.as_dict(self.names),
            "layers": layers,
        }

    def write_json(self, path: str | Path) -> None:
        """Write the JSON report; the file appears whole or not at all.

        Raises
        ------
        CompareError
            If the file cannot be written.
        """
        path = Path(path)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        text = json.dumps(self.as_dict(), indent=2, allow_nan=False) + "\n"
        try:
            temporary.write_text(text)
            os.replace(temporary, path)
        except OSError as error:
            raise CompareError(f"{path}: cannot write: {error.strerror}") from None
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()

    def print(self, console: Console) -> None:
        """Print a table with a row a layer, and the verdict."""
        steps = f"steps {self.steps.start} to {self.steps.stop - 1}"
        title = f"{self.unit} ({self.preset}) against {self.dump}, {steps}"
        table = Table(title=title, box=box.SIMPLE, padding=(0, 1, 0, 0))
        table.add_column("layer", overflow="fold")
        for heading in ("tiles", "wrong", "cycles", "issue", "array", "bits", "SQNR dB"):
            table.add_column(heading, justify="right", no_wrap=True)
        for name, figures in zip(self.names, self.layers, strict=True):
            table.add_row(name, *_cells(figures), style=None if figures.bit_exact else "red")
        table.add_section()
        table.add_row("all", *_cells(self.total), style="bold")
        console.print(table)
        for line in self._verdict():
            console.print(line, highlight=False, soft_wrap=True, markup=False)

    def _verdict(self) -> Iterable[str]:
        total, first = self.total, self.total.first
        if total.clipped:
            yield f"{total.clipped} activations lay beyond binary16 and were clipped to 65504."
        if total.saturated:
            yield f"{total.saturated} golden steps saturated at binary16's largest value."
        if first is None:
            yield (
                f"Bit-exact: {total.tiles} tile products of {len(self.names)} layers "
                f"in {self.seconds:.0f} s ({_text(total.cycles_per_second, ',.0f')} cycles/s)."
            )
            return
        place = first.place
        yield f"NOT bit-exact: {total.mismatches} wrong values; the first:"
        yield (
            f"  {self.names[place.layer]}, step {place.step}, token tile {place.token_tile}, "
            f"k tile {place.k_tile}, column tile {place.col_tile}, row {first.row}, "
            f"column {first.column}: {first.what} must be {first.expected}, got {first.got}"
        )


def _cells(figures: Figures) -> list[str]:
    return [
        f"{figures.tiles:,}",
        f"{figures.mismatches:,}",
        f"{figures.cycles:,}",
        _text(figures.issue_utilization, ".1%"),
        _text(figures.array_utilization, ".1%"),
        _text(figures.average_bits, ".2f"),
        _text(figures.sqnr_db, ".1f"),
    ]


def _text(value: float | None, form: str) -> str:
    return "-" if value is None else f"{value:{form}}"
