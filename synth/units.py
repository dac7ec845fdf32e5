"""The designs that can be synthesized, and what each is compared with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from amaranth.lib import wiring

from dstar.gen.config import Config
from dstar.gen.emit import UNITS
from dstar.gen.library import VerilogLibrary
from dstar.rtl.mpc.control import ENGINES
from dstar.rtl.mpc.core_control import CoreControl
from dstar.rtl.mpc.engines.multiply import MultiplyEngine
from dstar.rtl.mpc.engines.quantize import QuantizeEngine
from dstar.rtl.mpc.engines.vector import VectorEngine
from dstar.rtl.mpu.tile import PERow, PETile
from dstar.synth.errors import SynthError
from dstar.synth.reference import Int8Row, Int8Tile

#: Modules that occur many times: synthesized once and counted by instance.  Patterns of Yosys'
#: selections, which know no ranges of characters.
KEEP = (
    "pe_tile_*",
    "pe_row_*",
    "int8_tile_*",
    "weight_column",
    "slice_bank",
    "quantize_row",
    "reconstruct_row",
    "output_lane_*",
    "vpu_lane",
)
#: Modules of the core's control that stay apart, the same way.
CONTROL_PARTS = tuple(
    f"*.{name}"
    for name in (
        *("registers", "reads", "fetch", "dispatch", "semaphores"),
        *(engine.name.lower() for engine in ENGINES),
    )
)


@dataclass(frozen=True, kw_only=True)
class Design:
    """A component to synthesize.

    ``top``: its module.  ``divide``: parts that the reported area is an average of.  ``keep``:
    modules that stay modules.  ``registers``: all its memories are short queues, no SRAM.
    ``reference``: the INT8 design to compare with, and ``compared``: prefixes of the modules on
    each side that the comparison is about (all when empty).
    """

    top: str
    create: Callable[[Config], wiring.Component]
    keep: tuple[str, ...] = KEEP
    registers: bool = False
    divide: Callable[[Config], int] = lambda _: 1
    reference: Callable[[Config], wiring.Component] | None = None
    reference_count: Callable[[Config], int] = lambda _: 1
    compared: tuple[str, ...] = field(default=())


def _tile(cfg: Config) -> wiring.Component:
    return PETile(cfg, rows=cfg.array.cluster)


def _int8_tile(cfg: Config) -> wiring.Component:
    return Int8Tile(cfg, rows=cfg.array.cluster)


_SPECIAL = {
    "pe": Design(
        top="pe_tile",
        create=_tile,
        divide=lambda cfg: cfg.array.cluster**2,
        reference=_int8_tile,
    ),
    "pe_tile": Design(top="pe_tile", create=_tile, reference=_int8_tile),
    "pe_row": Design(
        top="pe_row",
        create=lambda cfg: PERow(cfg, rows=cfg.array.cluster),
        reference=lambda cfg: Int8Row(cfg, rows=cfg.array.cluster),
    ),
    "mpu": Design(
        top="mpu",
        create=UNITS["mpu"].create,
        reference=_int8_tile,
        reference_count=lambda cfg: cfg.array.block_rows * cfg.array.block_cols,
        compared=("pe_tile_",),
    ),
    "control": Design(top="control", create=CoreControl, keep=CONTROL_PARTS, registers=True),
    "quantize_engine": Design(top="quantize_engine", create=QuantizeEngine, registers=True),
    "multiply_engine": Design(top="multiply_engine", create=MultiplyEngine, registers=True),
    "vector_engine": Design(top="vector_engine", create=VectorEngine, registers=True),
}


def unit_names() -> list[str]:
    """Names that :func:`design` accepts."""
    return list(dict.fromkeys([*_SPECIAL, *UNITS]))


def design(unit: str) -> Design:
    """The design behind a unit's name.

    Raises:
        SynthError: there is no such unit.
    """
    if unit in _SPECIAL:
        return _SPECIAL[unit]
    if unit not in UNITS:
        raise SynthError(f"unknown unit {unit!r}; units are {', '.join(unit_names())}")
    return Design(top=unit, create=UNITS[unit].create)


def verilog(top: str, component: wiring.Component, cfg: Config) -> str:
    """Verilog of a component and everything below it."""
    return VerilogLibrary(cfg).emit(top, component)
