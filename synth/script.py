"""The Yosys and ABC scripts of the flow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dstar.synth.netlist import MEMORY

#: ABC recipes: ``small`` looks for area alone, ``fast`` keeps the structure of adders shallow.
RECIPES = {
    "small": (
        "strash",
        "&get -n",
        "&fraig -x",
        "&put",
        "scorr",
        "dc2",
        "dch -f",
        "strash",
        "&get -n",
    ),
    "fast": ("strash", "&get -n", "&st", "&dch"),
}
_MAP = ("&nf", "&put", "buffer -p -N 16", "topo", "upsize -D {D}", "dnsize -D {D}")

# Neither enables nor synchronous resets become flip-flop cells: libraries differ too much there,
# and gates that merge with the logic before them turn out smaller.
_PREPARE = """\
opt_expr
opt_clean
opt -nodffe -nosdff
wreduce
peepopt
opt_clean
{multiplier}alumacc
opt -nodffe -nosdff
memory -nomap
{memories}opt_clean
opt -fast -full -nodffe -nosdff
opt -undriven -fine -nodffe -nosdff
techmap
opt -fast -nodffe -nosdff
setundef -zero
opt_clean
"""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a design is synthesized.

    ``keep``: modules that stay modules (shell patterns); everything else is flattened.
    ``registers``: memories as registers and gates, not apart.
    ``booth``: multipliers as Booth arrays.  ``recipe``: of :data:`RECIPES`.  ``clock_ps``: target.
    """

    top: str
    clock_ps: int
    keep: tuple[str, ...] = ()
    registers: bool = False
    booth: bool = False
    recipe: str = "fast"


def abc_script(plan: Plan) -> str:
    """ABC's script: restructure, map, buffer, size for the clock target, report."""
    steps = (*RECIPES[plan.recipe], *_MAP, "stime -p")
    return "\n".join(steps).replace("{D}", str(plan.clock_ps)) + "\n"


def _front(plan: Plan) -> str:
    keep = "".join(f"setattr -mod -set keep_hierarchy 1 {pattern}\n" for pattern in plan.keep)
    return (
        f"read_verilog design.v\nhierarchy -check -top {plan.top}\nproc\n{keep}flatten\n"
        + _PREPARE.format(
            multiplier="booth\n" if plan.booth else "",
            memories="memory_map\n" if plan.registers else "",
        )
    )


def yosys_script(plan: Plan, libraries: Sequence[str], exclude: Sequence[str]) -> str:
    """Yosys' script: ``design.v`` to ``netlist.json``, run in the folder of both."""
    files = " ".join(f"-liberty {name}" for name in libraries)
    banned = " ".join(f"-dont_use {pattern}" for pattern in exclude)
    return (
        "libcache -scl -disable\n"  # a stale cache of parsed libraries gives wrong areas
        + _front(plan)
        + f"dfflibmap {files} {banned}\n"
        + "opt_clean\n"
        + f"abc -script abc.script -constr abc.constr -D {plan.clock_ps} {files} {banned}\n"
        + "opt_clean -purge\nwrite_json netlist.json\n"
    )


def generic_script(plan: Plan) -> str:
    """Yosys' script without a library: NAND, NOR, XOR, MUX and and-or gates, plain flip-flops."""
    return (
        _front(plan)
        + "dfflegalize -cell $_DFF_P_ x -cell $_DFF_PP?_ x -cell $_DFF_PN?_ x\n"
        + "abc -g AND,NAND,OR,NOR,XOR,XNOR,MUX,AOI3,OAI3\n"
        + "opt_clean -purge\nwrite_json netlist.json\n"
    )


#: Gates of :func:`generic_script` in NAND2 equivalents: transistors of a static CMOS gate over 4.
NAND2_EQUIVALENTS = {
    "$_NOT_": 0.5,
    "$_NAND_": 1.0,
    "$_NOR_": 1.0,
    "$_AND_": 1.5,
    "$_OR_": 1.5,
    "$_XOR_": 2.5,
    "$_XNOR_": 2.5,
    "$_MUX_": 3.0,
    "$_AOI3_": 1.5,
    "$_OAI3_": 1.5,
    "$_DFF_P_": 6.0,
    "$_DFF_PP0_": 7.0,
    "$_DFF_PP1_": 7.0,
    "$_DFF_PN0_": 7.0,
    "$_DFF_PN1_": 7.0,
    MEMORY: 0.0,
}
