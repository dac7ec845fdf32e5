"""What a comparison of the core found: the figures of every unit, and where its cycles went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from dstar.golden.mpc.registers import ENGINES
from dstar.verif.compare.report import CompareReport
from dstar.verif.mpc.session import Ended


@dataclass(kw_only=True)
class EngineFigures:
    """Sums of the core's counters, in cycles and bytes.

    ``busy``: cycles in which an engine had a command under way.  ``stalled``: in which its next
    command waited for semaphores.  ``conflicts``: cycles that the buffer's clients waited for a
    bank.
    """

    cycles: int = 0
    busy: Counter[str] = field(default_factory=Counter)
    stalled: Counter[str] = field(default_factory=Counter)
    conflicts: int = 0
    bytes_read: int = 0
    bytes_written: int = 0

    def add(self, ended: Ended) -> None:
        """Count a program."""
        self.cycles += ended.cycles
        self.busy.update(ended.engines("BUSY"))
        self.stalled.update(ended.engines("STALLED"))
        self.conflicts += ended.conflicts
        self.bytes_read += ended.wide("BYTES_READ")
        self.bytes_written += ended.wide("BYTES_WRITTEN")

    @classmethod
    def total(cls, parts: Iterable[EngineFigures]) -> EngineFigures:
        """The sum of several."""
        result = cls()
        for part in parts:
            result.cycles += part.cycles
            result.busy.update(part.busy)
            result.stalled.update(part.stalled)
            result.conflicts += part.conflicts
            result.bytes_read += part.bytes_read
            result.bytes_written += part.bytes_written
        return result

    def as_dict(self) -> dict[str, Any]:
        """As in the JSON report."""
        return {**vars(self), "busy": dict(self.busy), "stalled": dict(self.stalled)}


@dataclass(kw_only=True)
class CoreReport(CompareReport):
    """The result of :func:`dstar.verif.compare.mpc.compare_core`; ``engines`` by layer."""

    engines: tuple[EngineFigures, ...]

    def as_dict(self) -> dict[str, Any]:
        """The JSON report."""
        result = super().as_dict()
        result["engines"] = EngineFigures.total(self.engines).as_dict()
        for layer, engines in zip(result["layers"], self.engines, strict=True):
            layer["engines"] = engines.as_dict()
        return result

    def print(self, console: Console) -> None:
        """Print what every comparison does, after a table of the engines."""
        table = Table(title="busy (waiting) share of the cycles", box=box.SIMPLE,
                      padding=(0, 1, 0, 0))  # fmt: skip
        table.add_column("layer", overflow="fold")
        names = [name.lower() for name in ENGINES]
        for heading in (*names, "bytes/cycle"):
            table.add_column(heading, justify="right", no_wrap=True)
        total = EngineFigures.total(self.engines)
        for layer, part in (*zip(self.names, self.engines, strict=True), ("all", total)):
            cycles = max(1, part.cycles)
            shares = [
                f"{part.busy[n] / cycles:.0%} ({part.stalled[n] / cycles:.0%})" for n in names
            ]
            table.add_row(layer, *shares, f"{(part.bytes_read + part.bytes_written) / cycles:.1f}")
        console.print(table)
        super().print(console)
