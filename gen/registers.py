"""Text made from the core's register map: tables for the documentation, a C header.

``python -m dstar.gen.registers`` prints the generated part of ``docs/registers.md``.
"""

from __future__ import annotations

from dstar.golden.mpc.manual import BEGIN, FINISH
from dstar.golden.mpc.register_map import RegisterMap
from dstar.golden.mpc.registers import REGISTERS

__all__ = ["BEGIN", "FINISH", "c_header", "tables"]


def tables(registers: RegisterMap = REGISTERS) -> str:
    """All registers and fields, in Markdown."""
    lines = ["| offset | register | bits | field | access | meaning |", "|---|---|---|---|---|---|"]
    for register in registers.values():
        place = f"{register.offset:#05x} | {register.name}"
        if [field.name for field in register.fields] != ["VALUE"]:
            lines.append(f"| {place} | | | | {register.meaning} |")
            place = " | "
        for field in register.fields:
            name = "" if field.name == "VALUE" else field.name
            cells = (place, field.bits, name, field.access.value, field.meaning)
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def c_header(registers: RegisterMap = REGISTERS) -> str:
    """A C header: for each register its offset, for each field its shift and its mask.

    Names are ``DSTAR_REGISTER`` and ``DSTAR_REGISTER_FIELD_SHIFT`` and ``_MASK``, the mask being
    that of the field within its register.
    """
    lines = ["#ifndef DSTAR_REGISTERS_H", "#define DSTAR_REGISTERS_H"]
    for register in registers.values():
        name = f"DSTAR_{register.name}"
        lines += ["", f"/* {register.meaning} */", f"#define {name} {register.offset:#05x}u"]
        for field in register.fields:
            if field.name == "VALUE" and field.width == 32:
                continue
            lines += [
                f"/* {field.meaning} ({field.access.value}) */",
                f"#define {name}_{field.name}_SHIFT {field.low}",
                f"#define {name}_{field.name}_MASK {field.mask:#010x}u",
            ]
    return "\n".join([*lines, "", "#endif", ""])


if __name__ == "__main__":
    print(tables(), end="")
