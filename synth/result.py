"""What the flow returns: areas and delays of a design, module by module."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dstar.synth.errors import SynthError
from dstar.synth.memory import MemoryArea
from dstar.synth.timing import Timing


@dataclass(frozen=True, kw_only=True)
class ModuleResult:
    """One module: how often it occurs, its own cells (not its submodules'), memories, depth."""

    instances: int
    area: float
    sequential: float
    cells: Counter[str]
    memories: tuple[MemoryArea, ...]
    depth: int


@dataclass(frozen=True, kw_only=True)
class Result:
    """A synthesized design; areas in µm², without memories unless named so.

    ``modules``: each distinct module once, ``delays``: those with registers.  ``buffers``: added to
    wide nets.  ``area``, ``sequential_area`` and ``memory_area`` are sums over all instances.
    """

    modules: Mapping[str, ModuleResult]
    delays: Mapping[str, Timing]
    buffers: int
    folder: Path

    @property
    def area(self) -> float:
        """Standard cells."""
        return sum(m.instances * m.area for m in self.modules.values())

    @property
    def sequential_area(self) -> float:
        """Flip-flops and latches."""
        return sum(m.instances * m.sequential for m in self.modules.values())

    @property
    def memory_area(self) -> float:
        """Memories, as macros or as an estimate in flip-flops."""
        return sum(m.instances * sum(x.area for x in m.memories) for m in self.modules.values())

    @property
    def cells(self) -> Counter[str]:
        """Standard cells by type."""
        total: Counter[str] = Counter()
        for module in self.modules.values():
            for name, count in module.cells.items():
                total[name] += count * module.instances
        return total

    @property
    def timing(self) -> Timing:
        """The slowest module."""
        if not self.delays:
            raise SynthError(f"no path to time in {', '.join(self.modules)}")
        return max(self.delays.values(), key=lambda timing: timing.delay_ps)

    @property
    def depth(self) -> int:
        """Most gates between two registers of any module."""
        return max(m.depth for m in self.modules.values())
