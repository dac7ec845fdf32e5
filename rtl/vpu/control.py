"""Signals between the VPU's sequencer and its lanes."""

from __future__ import annotations

from amaranth.hdl import signed, unsigned
from amaranth.lib import data

from dstar.gen.config import VectorConfig
from dstar.golden.vpu.float import SIGNIFICAND_BITS
from dstar.rtl.vpu.float import WORK_EXPONENT


def control_layout() -> data.StructLayout:
    """What the sequencer tells every lane each cycle.

    ``load``: fetch operands ``a`` and ``b``.  ``op``, ``dst``: of the instruction.
    ``accumulate``: add the last result to the accumulator.  The rest is a step of the microcode
    (:class:`dstar.golden.vpu.steps.Step`).
    """
    return data.StructLayout(
        {
            "load": unsigned(1),
            "a": unsigned(3),
            "b": unsigned(3),
            "op": unsigned(4),
            "dst": unsigned(2),
            "accumulate": unsigned(1),
            "finish": unsigned(1),
            "direct": unsigned(1),
            "maximum": unsigned(1),
            "shared": unsigned(1),
            "back": unsigned(1),
            "clear": unsigned(1),
            "fold": unsigned(1),
            "magnitude": unsigned(3),
            "place": unsigned(3),
            "horner": unsigned(2),
        }
    )


def magnitude_bits(cfg: VectorConfig) -> int:
    """Width of the rounding stage's input: a final product, or what an accumulator needs.

    The accumulator sends its low bits, or if there are higher ones its top bits above a sticky
    one, of which enough must then be left for a significand, a guard and a sticky bit.
    """
    return max(cfg.width + SIGNIFICAND_BITS, -(-(cfg.acc_width + SIGNIFICAND_BITS + 2) // 2))


def unrounded_layout(cfg: VectorConfig) -> data.StructLayout:
    """A value before its rounding: ``(-1)**sign * magnitude * 2**exponent``, or what it is instead.

    ``nan`` outweighs ``inf``, and that ``zero``.
    """
    return data.StructLayout(
        {
            "magnitude": unsigned(magnitude_bits(cfg)),
            "exponent": signed(WORK_EXPONENT),
            "sign": unsigned(1),
            "inf": unsigned(1),
            "nan": unsigned(1),
            "zero": unsigned(1),
        }
    )


def accumulator_layout(cfg: VectorConfig) -> data.StructLayout:
    """Accumulator: its sum, and whether a NaN, +inf or -inf went into it."""
    return data.StructLayout(
        {
            "total": signed(cfg.acc_width),
            "invalid": unsigned(1),
            "positive": unsigned(1),
            "negative": unsigned(1),
        }
    )
