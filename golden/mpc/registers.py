"""The core's registers: one description, from which everything else is made.

The RTL (:mod:`dstar.rtl.mpc.registers`), ``docs/registers.md`` and the C header
(:mod:`dstar.gen.registers`) read :data:`REGISTERS`; drivers in Python use its offsets, masks and
:meth:`~dstar.golden.mpc.register_map.Register.pack` and its inverse ``unpack``.
"""

from __future__ import annotations

from .isa import Engine
from .register_map import REGISTER_BYTES, Access, Register, RegisterField, RegisterMap

#: Contents of ``ID``: "DSTR" in the order of its bytes.
IDENTITY = int.from_bytes(b"DSTR", "little")
#: Contents of ``VERSION``; changes with the meaning of any register.
VERSION = 1
#: Engines with counters, in the order of their registers.
ENGINES = tuple(engine.name for engine in Engine if engine is not Engine.CONTROL)
#: Clients of the unified buffer with a conflict counter: those that read, then those that write.
READERS = (
    "STORE",
    "QUANTIZE_X",
    "QUANTIZE_REFERENCE",
    "MULTIPLY_WEIGHTS",
    "MULTIPLY_PARAMETERS",
    "MULTIPLY_BEFORE",
    "VECTOR_INPUT",
    "VECTOR_SCALAR",
)
WRITERS = ("LOAD", "QUANTIZE_NEXT", "MULTIPLY_OUTPUT", "VECTOR_OUTPUT")


def _field(
    name: str, low: int, width: int, meaning: str, access: Access = Access.READ
) -> RegisterField:
    return RegisterField(name=name, low=low, width=width, access=access, meaning=meaning)


def _whole(
    name: str, offset: int, meaning: str, access: Access = Access.READ, *, width: int = 32
) -> Register:
    """A register with one field, ``VALUE``."""
    value = (_field("VALUE", 0, width, meaning, access),)
    return Register(name=name, offset=offset, meaning=meaning, fields=value)


def _wide(
    name: str, offset: int, meaning: str, access: Access = Access.READ
) -> tuple[Register, Register]:
    """64 bits in two registers."""
    return (
        _whole(f"{name}_LOW", offset, f"{meaning}, bits 0-31", access),
        _whole(f"{name}_HIGH", offset + REGISTER_BYTES, f"{meaning}, bits 32-63", access),
    )


def _each(prefix: str, offset: int, names: tuple[str, ...], meaning: str) -> tuple[Register, ...]:
    """A counter for each name."""
    return tuple(
        _whole(f"{prefix}_{name}", offset + REGISTER_BYTES * i, meaning.format(name))
        for i, name in enumerate(names)
    )


#: The core's registers.
REGISTERS = RegisterMap(
    _whole("ID", 0x00, f'"DSTR", {IDENTITY:#010x}'),
    _whole("VERSION", 0x04, f"version of this map, {VERSION}"),
    _whole("CONFIG", 0x08, "first 8 digits of the configuration's hash in `manifest.json`"),
    Register(
        name="SHAPE",
        offset=0x0C,
        meaning="what a program must fit",
        fields=(
            _field("ROWS", 0, 16, "tokens of a tile; a buffer word has twice as many bytes"),
            _field("COLUMNS", 16, 16, "output channels of a tile"),
        ),
    ),
    Register(
        name="CONTROL",
        offset=0x10,
        meaning="commands to the core",
        fields=(
            _field(
                "START",
                0,
                1,
                "run the program, counters, `STATUS` and `ERROR` from zero; no effect while busy",
                Access.PULSE,
            ),
            _field(
                "RESET",
                1,
                1,
                "end what is on the bus by its rules, then reset all but these registers",
                Access.PULSE,
            ),
        ),
    ),
    Register(
        name="STATUS",
        offset=0x14,
        meaning="state of the core",
        fields=(
            _field("BUSY", 0, 1, "a program runs, or its last bursts end"),
            _field("DONE", 1, 1, "the program came to its END"),
            _field("FAILED", 2, 1, "the core stopped at an error"),
            _field("RESETTING", 3, 1, "a reset is under way; START has no effect"),
        ),
    ),
    Register(
        name="ERROR",
        offset=0x18,
        meaning="why it stopped",
        fields=(
            _field("CODE", 0, 8, "status code (isa.md)"),
            _field("RESPONSE", 8, 2, "AXI response of a bus error: 2 SLVERR, 3 DECERR"),
        ),
    ),
    _whole("ERROR_PC", 0x1C, "number of the instruction at which it stopped, the first is 0"),
    *_wide("ERROR_ADDRESS", 0x20, "byte address of a bus error"),
    Register(
        name="INTERRUPT_ENABLE",
        offset=0x28,
        meaning="events that raise the interrupt",
        fields=(
            _field("DONE", 0, 1, "enable", Access.WRITE),
            _field("FAILED", 1, 1, "enable", Access.WRITE),
        ),
    ),
    Register(
        name="INTERRUPT_PENDING",
        offset=0x2C,
        meaning="events since they were cleared; the interrupt is high while an enabled one is set",
        fields=(
            _field("DONE", 0, 1, "a program came to its END", Access.CLEAR),
            _field("FAILED", 1, 1, "the core stopped at an error", Access.CLEAR),
        ),
    ),
    *_wide(
        "PROGRAM_ADDRESS",
        0x30,
        "byte address of the program, a multiple of the buffer word",
        Access.WRITE,
    ),
    _whole(
        "PROGRAM_LENGTH", 0x38, "instructions of the program, at least 1", Access.WRITE, width=16
    ),
    Register(
        name="NUMERIC",
        offset=0x3C,
        meaning="numbers that did not fit",
        fields=(
            _field("NONFINITE", 0, 1, "the QPU met a NaN or an infinity", Access.CLEAR),
            _field("SATURATED", 1, 1, "an output was beyond binary16", Access.CLEAR),
        ),
    ),
    *_wide("CYCLES", 0x40, "cycles since the start, until the core stopped"),
    *_wide("BYTES_READ", 0x48, "bytes of all beats read"),
    *_wide("BYTES_WRITTEN", 0x50, "bytes of all beats written"),
    _whole("BEATS", 0x58, "beats that the array multiplied"),
    _whole("SLOTS", 0x5C, "lanes that held a slice in those beats"),
    *_each("BUSY", 0x60, ENGINES, "cycles in which engine {} had a command under way"),
    *_each("STALLED", 0x80, ENGINES, "cycles in which a command of {} waited for semaphores"),
    *_each("CONFLICTS", 0xA0, READERS + WRITERS, "cycles in which {} waited for a buffer bank"),
)
