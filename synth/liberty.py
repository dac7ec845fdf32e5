"""Reads what area and timing reports need from Liberty files, with a parser.

Only groups and simple attributes are kept: names, areas, pins, flip-flops and memories.  Tables,
which make most of a file's bytes, are skipped.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dstar.synth.errors import SynthError

_TOKEN = re.compile(
    r"""
      /\*.*?\*/                                           # comment
    | //[^\n]*
    | (?P<group>[\w.]+)\s*\((?P<args>(?:"[^"]*"|[^()"]+)*)\)\s*(?P<open>\{)?   # or a table
    | (?P<close>\})
    | (?P<bare>\{)
    | (?P<name>[\w.]+)\s*:\s*(?P<value>"[^"]*"|[^;{}\n]*)
    | "[^"]*"
    """,
    re.VERBOSE | re.DOTALL,
)
_UNIT = re.compile(r"\s*([\d.eE+-]+)\s*([munpf]?)s\s*$")
_LOAD = re.compile(r"capacitive_load_unit\s*\(\s*([\d.eE+-]+)\s*,\s*\"?([pf])f\"?\s*\)", re.I)
_SCALE = {"": 1e12, "m": 1e9, "u": 1e6, "n": 1e3, "p": 1.0, "f": 1e-3}


@dataclass
class Cell:
    """A standard cell or a memory macro.

    ``area``: µm², None where the file gives none.  ``pins``: pin name to its simple attributes.
    ``kind``: ``"logic"``, ``"ff"``, ``"latch"`` or ``"memory"``.  ``resets``: a flip-flop with an
    asynchronous clear or preset.  ``address_width``, ``word_width``, ``ports``: a memory's shape
    and the number of independent addresses.
    """

    name: str
    area: float | None = None
    pins: dict[str, dict[str, str]] = field(default_factory=dict)
    kind: str = "logic"
    resets: bool = False
    address_width: int = 0
    word_width: int = 0
    addresses: set[str] = field(default_factory=set)

    @property
    def ports(self) -> int:
        """Independent addresses of a memory."""
        return len(self.addresses)

    @property
    def sequential(self) -> bool:
        """A flip-flop or a latch."""
        return self.kind in ("ff", "latch")

    @property
    def outputs(self) -> frozenset[str]:
        """Names of the output pins."""
        return frozenset(n for n, pin in self.pins.items() if pin.get("direction") == "output")

    @property
    def clocks(self) -> frozenset[str]:
        """Names of the clock pins."""
        return frozenset(n for n, pin in self.pins.items() if pin.get("clock") == "true")

    def capacitance(self, pin: str) -> float:
        """Input capacitance of a pin in the library's unit; 0 where none is given."""
        return float(self.pins.get(pin, {}).get("capacitance") or 0.0)

    @property
    def buffer(self) -> tuple[str, str] | None:
        """Input and output pin of a non-inverting buffer, None for any other cell."""
        if self.kind != "logic" or len(self.pins) != 2 or len(self.outputs) != 1:
            return None
        (out,) = self.outputs
        (source,) = set(self.pins) - {out}
        function = self.pins[out].get("function", "").strip("() ")
        return (source, out) if function == source else None


@dataclass(frozen=True)
class Library:
    """One Liberty file: ``time_ps`` and ``load_ff`` are its units, in picoseconds, femtofarads."""

    name: str
    path: Path
    time_ps: float
    load_ff: float
    cells: dict[str, Cell]


def read_bytes(path: Path) -> bytes:
    """Contents of a Liberty file, unpacked when it is gzipped, whatever its name ends in.

    Raises:
        SynthError: missing, unreadable, empty or a corrupt archive.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise SynthError(f"cannot read library {path}: {error.strerror}") from None
    if raw[:2] == b"\x1f\x8b":
        try:
            raw = gzip.decompress(raw)
        except (OSError, EOFError, zlib.error) as error:
            raise SynthError(f"library {path} is a corrupt gzip archive: {error}") from None
    if not raw.strip():
        raise SynthError(f"library {path} is empty")
    return raw


def _events(text: str) -> Iterator[tuple[str, str, str]]:
    """``("group", name, args)``, ``("attribute", name, value)`` and ``("close", "", "")``."""
    for match in _TOKEN.finditer(text):
        if match["open"]:
            yield "group", match["group"], match["args"].strip().strip('"')
        elif match["name"]:
            yield "attribute", match["name"], match["value"].strip().strip('"').strip()
        elif match["close"]:
            yield "close", "", ""
        elif match["bare"]:
            yield "group", "", ""


def parse_liberty(text: str, path: Path) -> Library:
    """The cells of a Liberty text; ``path`` is for messages.

    Raises:
        SynthError: not Liberty, braces that do not match (a file cut short), or an area that is
            not a number.
    """
    stack: list[str] = []
    library = ""
    time_ps = 1e3
    cells: dict[str, Cell] = {}
    cell: Cell | None = None
    pin: dict[str, str] | None = None
    for kind, name, value in _events(text):
        if kind == "close":
            if not stack:
                raise SynthError(f"library {path} is not valid Liberty: a '}}' without its '{{'")
            closed = stack.pop()
            if closed == "cell":
                cell = None
            elif closed in ("pin", "bus"):
                pin = None
        elif kind == "group":
            if not stack:
                if name != "library":
                    raise SynthError(f"{path} is not a Liberty library: it begins with {name!r}")
                library = value
            stack.append(name)
            if name == "cell" and len(stack) == 2:
                cell = cells[value] = Cell(value)
            elif cell is not None:
                if name in ("pin", "bus") and len(stack) == 3:
                    pin = cell.pins[value] = {}
                elif name in ("ff", "latch", "ff_bank", "latch_bank"):
                    cell.kind = name.removesuffix("_bank")
                elif name == "memory":
                    cell.kind = "memory"
        elif cell is not None:
            _attribute(cell, pin, stack, name, value, path)
        elif name == "time_unit" and (unit := _UNIT.match(value)):
            time_ps = float(unit[1]) * _SCALE[unit[2]]
    if not library:
        raise SynthError(f"{path} is not a Liberty library: no 'library (name) {{' in it")
    if stack:
        raise SynthError(
            f"library {path} is cut short: {len(stack)} groups are not closed "
            f"(the innermost is {stack[-1]!r})"
        )
    if not cells:
        raise SynthError(f"library {path} holds no cell")
    load = _LOAD.search(text)
    load_ff = float(load[1]) * (1e3 if load[2] in "pP" else 1.0) if load else 1e3
    return Library(library, path, time_ps, load_ff, cells)


def _attribute(
    cell: Cell, pin: dict[str, str] | None, stack: list[str], name: str, value: str, path: Path
) -> None:
    group = stack[-1]
    if group == "cell" and name == "area":
        try:
            cell.area = float(value)
        except ValueError:
            raise SynthError(
                f"library {path}: area of cell {cell.name} must be a number, got {value!r}"
            ) from None
    elif group in ("pin", "bus") and pin is not None:
        pin[name] = value
    elif group in ("ff", "latch", "ff_bank", "latch_bank") and name in ("clear", "preset"):
        cell.resets = True
    elif group == "memory" and name in ("address_width", "word_width"):
        setattr(cell, name, int(value))
    elif group in ("memory_read", "memory_write") and name == "address" and "BIST" not in value:
        cell.addresses.add(value)  # a macro's self-test is no port of its own


def read_liberty(path: Path) -> Library:
    """Read one Liberty file, gzipped or not."""
    return parse_liberty(read_bytes(path).decode("utf-8", errors="replace"), path)


def merged_cells(libraries: Iterable[Library]) -> dict[str, Cell]:
    """The cells of several files as one library."""
    return {name: cell for library in libraries for name, cell in library.cells.items()}
