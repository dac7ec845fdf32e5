"""The QPU's arithmetic for all tokens of a vector, a row of it for each token."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Signal, Value

from dstar.gen.config import MAX_SLICES, SLICE_BITS
from dstar.rtl.fp16.add import FP16Add
from dstar.rtl.hierarchy import shared
from dstar.rtl.qpu.bins import BinSelect
from dstar.rtl.qpu.logic import delayed
from dstar.rtl.qpu.rows import Q_BITS, SMALLEST, UNIT, QuantizeRow, ReconstructRow
from dstar.rtl.qpu.streams import HALF_BITS

#: Registers of the adders that form the differences.
DIFFERENCE_STAGES = 2


def differences(m: Module, platform: Any, enable: Value, x: Any, reference: Value) -> Value:
    """``x - reference``, binary16, after :data:`DIFFERENCE_STAGES` enabled cycles."""
    sums = []
    for row in range(len(reference) // HALF_BITS):
        adder = FP16Add(stages=DIFFERENCE_STAGES)
        m.submodules[f"difference_{row}"] = shared(platform, adder)
        word = reference.word_select(row, HALF_BITS)
        m.d.comb += [
            adder.enable.eq(enable),
            adder.a.eq(x[row]),
            adder.b.eq(Cat(word[:-1], ~word[-1])),
        ]
        sums.append(adder.sum)
    return Cat(*sums)


def quantized(m: Module, platform: Any, difference: Value, bins: BinSelect) -> tuple[Value, Value]:
    """Signs (1 bit) and magnitudes (7 bits) of q in the same cycle."""
    limit = Signal(Q_BITS)
    for slices in range(1, MAX_SLICES + 1):
        with m.If(bins.slices == slices):
            m.d.comb += limit.eq((1 << SLICE_BITS * slices - 1) - 1)
    negatives, magnitudes = [], []
    for row in range(len(difference) // HALF_BITS):
        quantizer = QuantizeRow()
        m.submodules[f"quantize_{row}"] = shared(platform, quantizer)
        m.d.comb += [
            quantizer.difference.eq(difference.word_select(row, HALF_BITS)),
            quantizer.reach.eq(UNIT - bins.exponent),
            quantizer.limit.eq(limit),
        ]
        negatives.append(quantizer.negative)
        magnitudes.append(quantizer.magnitude)
    return Cat(*negatives), Cat(*magnitudes)


def reconstructed(
    m: Module,
    platform: Any,
    enable: Value,
    q: tuple[Value, Value],
    exponent: Value,
    carry: Value,
    bypass: Value,
    total: Any,
) -> Value:
    """Drive ``total`` with the next references; return whether one left binary16's range.

    Parameters
    ----------
    q, exponent: signs and magnitudes of the codes, and f.
    carry: old references, or activations where ``bypass``; a cycle after q.
    """
    keep = delayed(m, enable, bypass, ReconstructRow.latency, "keep")
    negatives, magnitudes = q
    infinite = []
    for row in range(len(negatives)):
        part = ReconstructRow()
        m.submodules[f"reconstruct_{row}"] = shared(platform, part)
        m.d.comb += [
            part.enable.eq(enable),
            part.negative.eq(negatives[row]),
            part.magnitude.eq(magnitudes.word_select(row, Q_BITS)),
            part.room.eq(SMALLEST - exponent),
            part.bypass.eq(bypass),
            part.carry.eq(carry.word_select(row, HALF_BITS)),
            part.keep.eq(keep),
            total[row].eq(part.total),
        ]
        infinite.append(part.infinite)
    return ~keep & Cat(*infinite).any()
