"""How registers are described: fields, registers, a map of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

#: Bits of a register, and bytes from one to the next.
REGISTER_BITS = 32
REGISTER_BYTES = REGISTER_BITS // 8


class Access(Enum):
    """What software and hardware may do with a field.

    ``READ``: hardware drives it, software reads it.  ``WRITE``: software writes it, and reads it
    back.  ``PULSE``: writing 1 acts once; it reads 0.  ``CLEAR``: hardware sets it, writing 1
    clears it; setting wins in the same cycle.
    """

    READ = "read"
    WRITE = "read, write"
    PULSE = "write 1 to act"
    CLEAR = "read, write 1 to clear"


@dataclass(frozen=True, kw_only=True)
class RegisterField:
    """Bits ``low`` to ``low + width - 1`` of a register."""

    name: str
    low: int
    width: int
    access: Access
    meaning: str

    @property
    def mask(self) -> int:
        """The field's bits within the register."""
        return ((1 << self.width) - 1) << self.low

    @property
    def bits(self) -> str:
        """The bits as documented."""
        return str(self.low) if self.width == 1 else f"{self.low}-{self.low + self.width - 1}"


@dataclass(frozen=True, kw_only=True)
class Register:
    """One register: byte offset and fields, lowest first."""

    name: str
    offset: int
    meaning: str
    fields: tuple[RegisterField, ...]

    def __post_init__(self) -> None:
        if self.offset % REGISTER_BYTES:
            raise ValueError(f"{self.name}: offset must be a multiple of 4, got {self.offset:#x}")
        free = 0
        for field in self.fields:
            if field.low < free or field.low + field.width > REGISTER_BITS:
                rule = f"within bits {free} to {REGISTER_BITS - 1}"
                raise ValueError(f"{self.name}: {field.name} must be {rule}, got {field.bits}")
            free = field.low + field.width

    def __getitem__(self, name: str) -> RegisterField:
        for field in self.fields:
            if field.name == name:
                return field
        known = ", ".join(field.name for field in self.fields)
        raise KeyError(f"{self.name}: field must be one of {known}, got {name!r}")

    def pack(self, **values: int) -> int:
        """The register's word with these fields; the others are 0."""
        word = 0
        for name, value in values.items():
            field = self[name]
            if not 0 <= value < 1 << field.width:
                top = (1 << field.width) - 1
                raise ValueError(f"{self.name}.{name} must be from 0 to {top}, got {value}")
            word |= value << field.low
        return word

    def unpack(self, word: int) -> dict[str, int]:
        """The fields of a word."""
        return {field.name: (word & field.mask) >> field.low for field in self.fields}


class RegisterMap(Mapping[str, Register]):
    """Registers by name, in the order of their offsets."""

    def __init__(self, *registers: Register) -> None:
        self._registers = {register.name: register for register in registers}
        offsets = [register.offset for register in registers]
        if len(self._registers) != len(offsets) or offsets != sorted(set(offsets)):
            raise ValueError("registers must have distinct names and ascending offsets")

    def __getitem__(self, name: str) -> Register:
        return self._registers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._registers)

    def __len__(self) -> int:
        return len(self._registers)

    @property
    def address_bits(self) -> int:
        """Bits of a byte address that tell all registers apart."""
        return (max(r.offset for r in self.values()) + REGISTER_BYTES - 1).bit_length()
