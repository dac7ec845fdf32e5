"""What a run costs: time, processor time, memory."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Usage:
    """A point in time: ``wall_s``, and ``cpu_s`` of this process and its ended children."""

    wall_s: float
    cpu_s: float

    @classmethod
    def now(cls) -> Usage:
        """Right now."""
        cpu = 0.0
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
            used = resource.getrusage(who)
            cpu += used.ru_utime + used.ru_stime
        return cls(wall_s=time.monotonic(), cpu_s=cpu)

    def since(self, before: Usage) -> dict[str, float]:
        """``wall_s`` and ``cpu_s`` between both, in seconds; ``peak_memory_mb`` until now.

        The peak is this process' own plus its largest child's (Linux counts in kB): a bound, as
        both need not have been largest at the same time.
        """
        kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        peak = sum(resource.getrusage(who).ru_maxrss for who in kinds)
        return {
            "wall_s": round(self.wall_s - before.wall_s, 1),
            "cpu_s": round(self.cpu_s - before.cpu_s, 1),
            "peak_memory_mb": round(peak / 1e3),
        }
