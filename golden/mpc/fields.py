"""Fields of instructions: place, width, range and meaning, said once."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from dstar.gen.config import Config

from .geometry import Geometry


class Status(IntEnum):
    """Why the core stopped; the values are those of the status register."""

    OK = 0
    OPCODE = 1
    FIELD = 2
    RANGE = 3
    READ = 4
    WRITE = 5
    FETCH = 6
    SEMAPHORE = 7
    DEADLOCK = 8
    TABLE = 9
    TILES = 10
    PROGRAM = 11
    LENGTH = 12


#: What each status means, as documented.
MEANINGS: dict[Status, str] = {
    Status.OK: "no error",
    Status.OPCODE: "unknown opcode",
    Status.FIELD: "a field outside its range, or a bit set that belongs to no field",
    Status.RANGE: "an address beyond the buffer, or columns beyond the kept sums",
    Status.READ: "the memory answered a LOAD with an error; the address register tells where",
    Status.WRITE: "the memory answered a STORE with an error; the address register tells where",
    Status.FETCH: "the memory answered the fetch of an instruction with an error; likewise",
    Status.SEMAPHORE: "a semaphore was signalled beyond 255",
    Status.DEADLOCK: "nothing runs, nothing can start, and the program is not at its end",
    Status.TABLE: "the bin table breaks its rules, or `finest` is not its largest exponent",
    Status.TILES: "END with a tile not released, or MULTIPLY with other channels than its tile",
    Status.PROGRAM: "a VPU program too long, or cut off by SYNC or END",
    Status.LENGTH: "the program's length is used up without END",
}


class IsaError(ValueError):
    """An illegal instruction; ``status`` is the code with which the core stops."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Field:
    """One field of an instruction.

    ``width``: bits.  ``low``, ``high``: range, inclusive; ``high`` is a number or the name of one
    of :func:`limits`, None for all that the width holds.  ``aligned``: must be a multiple of the
    buffer word's bytes.  ``mask``: bit i names semaphore i.
    """

    name: str
    width: int
    meaning: str
    low: int = 0
    high: int | str | None = None
    signed: bool = False
    aligned: bool = False
    mask: bool = False

    @property
    def bounds(self) -> tuple[int, int]:
        """Smallest and largest value that the width holds."""
        if self.signed:
            return -(1 << (self.width - 1)), (1 << (self.width - 1)) - 1
        return 0, (1 << self.width) - 1

    @property
    def range_text(self) -> str:
        """The range as documented."""
        if self.mask:
            return "below 2^`semaphores`"
        low, high = self.bounds
        low = low if self.signed else self.low
        top = high if self.high is None else self.high
        text = f"{low} to {top}" if isinstance(top, int) else f"{low} to `{top}`"
        return text + (", aligned" if self.aligned else "")

    def range(self, cfg: Config) -> tuple[int, int]:
        """The range in a configuration, both ends inclusive."""
        low, top = self.bounds
        if not self.signed:
            low = self.low
        if self.mask:
            return low, (1 << cfg.core.semaphores) - 1
        if isinstance(self.high, str):
            return low, limits(Geometry(cfg))[self.high]
        return low, top if self.high is None else self.high


def limits(geometry: Geometry) -> dict[str, int]:
    """Ends of ranges that depend on the configuration, by name."""
    cfg = geometry.cfg
    return {
        "words - 1": geometry.words - 1,
        "words": geometry.words,
        "k_tile": cfg.numeric.k_tile,
        "columns / cols": geometry.column_tiles,
        "columns - 1": cfg.core.columns - 1,
        "2^address_bits - 1": 2**cfg.core.address_bits - 1,
    }
