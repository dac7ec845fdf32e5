"""QPU stage 3 for one token: quantize a difference; reconstruct the activation."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed
from amaranth.lib.wiring import In, Out

from dstar.gen.config import EXPONENT_BITS, MAX_Q
from dstar.rtl.fp16.add import FRACTION_BITS, INFINITY, MAX_FINITE, FP16Add, align, normalize
from dstar.rtl.hierarchy import Shared, shared
from dstar.rtl.qpu.streams import HALF_BITS

#: A finite number is ``significand * 2**(exponent - UNIT)``, exponent 1 to 30.
UNIT = 25
#: binary16's smallest number is ``2**-SMALLEST``.
SMALLEST = 24
#: Bits of a significand with its hidden bit.
SIGNIFICAND_BITS = FRACTION_BITS + 1
#: Bits of |q|.
Q_BITS = MAX_Q.bit_length()
#: Registers of the adder.
ADDER_STAGES = 2


class QuantizeRow(Shared):
    """``q = clip(rne(d * 2**f), -limit, limit)``, ``limit = 2**(p-1) - 1`` (numerics.md, 3).

    A shifter, a rounder (to nearest, ties to even), a clipper.  NaN gives 0, infinity clips.

    Members
    -------
    difference: d, binary16.
    reach: ``UNIT - f``, so that ``d * 2**f`` is the significand shifted right by ``reach -
    exponent``.  limit: ``2**(p-1) - 1``, or 0 without slices.
    negative, magnitude: sign of d (also where q is 0) and |q|.

    Latency: 0.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "difference": In(HALF_BITS),
                "reach": In(signed(EXPONENT_BITS + 1)),
                "limit": In(Q_BITS),
                "negative": Out(1),
                "magnitude": Out(Q_BITS),
            }
        )

    @property
    def module_name(self) -> str:
        """Verilog module name."""
        return "quantize_row"

    def elaborate(self, platform: Any) -> Module:
        """Shift, round, clip."""
        m = Module()
        fraction, field = self.difference[:FRACTION_BITS], self.difference[FRACTION_BITS:15]
        normal, special = field.any(), field.all()
        right = Signal(signed(EXPONENT_BITS + 2))
        m.d.comb += right.eq(self.reach - Cat(field[0] | ~normal, field[1:]))

        # Whole places, then a half, then what decides ties.
        distance = Cat(right[:4], right[4:-1].any())
        shifted = align(m, "shifted", Cat(fraction, normal), distance)
        low, whole = shifted[:-SIGNIFICAND_BITS], shifted[-SIGNIFICAND_BITS:]
        up, over = Signal(), Signal()
        rounded = Signal(SIGNIFICAND_BITS + 1)
        m.d.comb += [
            up.eq(low[-1] & (low[:-1].any() | whole[0])),
            rounded.eq(whole + up),
            # A shift to the left needs an exponent above 1: a significand beyond every limit.
            over.eq(
                special
                | (right < 0)
                | (rounded[:Q_BITS] & ~self.limit).any()
                | rounded[Q_BITS:].any()
            ),
            # Limits are ones up to some place, so they clip and mask.
            self.magnitude.eq(
                (rounded[:Q_BITS] | over.replicate(Q_BITS))
                & self.limit
                & ~(special & fraction.any()).replicate(Q_BITS)
            ),
        ]
        m.d.comb += self.negative.eq(self.difference[-1])
        return m


class ReconstructRow(Shared):
    """The next reference of one token (numerics.md, 1 and 8).

    ``carry + q * 2**-f`` in binary16, rounded to nearest even; infinity becomes the largest
    finite number.  With ``bypass`` q counts as -0, which changes no ``carry``, and infinity stays.
    ``q * 2**-f`` is a binary16 number for every legal table.

    Members
    -------
    enable: moves the pipeline on.
    negative, magnitude: sign and magnitude of q.
    room: ``24 - f``, how far q may move left within binary16's smallest exponent.
    bypass: the sum is ``carry`` itself.
    carry: the old reference, or the activation; a cycle after q.
    total: the new reference.  infinite: before it became the largest finite number.
    keep: with ``total``: leave infinity as it is.

    Latency: :attr:`latency`, from q.
    """

    #: Cycles with ``enable``: the conversion of q, then the addition.
    latency = 1 + ADDER_STAGES

    def __init__(self) -> None:
        super().__init__(
            {
                "enable": In(1),
                "negative": In(1),
                "magnitude": In(Q_BITS),
                "room": In(EXPONENT_BITS),
                "bypass": In(1),
                "carry": In(HALF_BITS),
                "keep": In(1),
                "total": Out(HALF_BITS),
                "infinite": Out(1),
            }
        )

    @property
    def module_name(self) -> str:
        """Verilog module name."""
        return "reconstruct_row"

    def elaborate(self, platform: Any) -> Module:
        """Integer to binary16, adder, saturation."""
        m = Module()
        given = Signal(Q_BITS)
        m.d.comb += given.eq(self.magnitude & ~self.bypass.replicate(Q_BITS))
        wide = Cat(given, Const(0, SIGNIFICAND_BITS - Q_BITS))
        significand, room = normalize(m, "q", wide, self.room)
        hidden = significand[-1]
        step = Signal(HALF_BITS, reset_less=True)
        field = Mux(hidden, room + 1, 0)[: HALF_BITS - 1 - FRACTION_BITS]
        # q = 0 is +0: a reference of -0 becomes +0, as binary16's sum has it.
        sign = (self.negative & given.any()) | self.bypass
        with m.If(self.enable):
            m.d.sync += step.eq(Cat(significand[:FRACTION_BITS], field, sign))

        adder = FP16Add(stages=ADDER_STAGES)
        m.submodules.adder = shared(platform, adder)
        m.d.comb += [
            adder.enable.eq(self.enable),
            adder.a.eq(self.carry),
            adder.b.eq(step),
            self.infinite.eq(adder.sum[:15] == INFINITY),
            self.total.eq(
                Cat(
                    Mux(self.infinite & ~self.keep, MAX_FINITE, adder.sum[:15])[:15],
                    adder.sum[15],
                )
            ),
        ]
        return m
