"""Quantization unit: token vectors to encoded tiles, and the next references."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from dstar.gen.config import MAX_SLICES, SLICE_BITS, Config
from dstar.rtl.fp16.add import FRACTION_BITS, FP16Add
from dstar.rtl.hierarchy import shared
from dstar.rtl.qpu.bins import BinSelect, MagnitudeTree, tree_latency
from dstar.rtl.qpu.bitonic import BitonicReorder
from dstar.rtl.qpu.encode import Encode
from dstar.rtl.qpu.reorder import BucketReorder
from dstar.rtl.qpu.rows import Q_BITS, SMALLEST, UNIT, QuantizeRow, ReconstructRow
from dstar.rtl.qpu.streams import (
    HALF_BITS,
    header_layout,
    qpu_command_layout,
    vector_layout,
)
from dstar.rtl.streams import slices_layout

#: Ways to sort, by name.
REORDERS: dict[str, type[BucketReorder] | type[BitonicReorder]] = {
    "buckets": BucketReorder,
    "bitonic": BitonicReorder,
}
#: Registers of the adders that form the differences.
DIFFERENCE_STAGES = 2


def delayed(m: Module, enable: Value, value: Value, cycles: int, name: str) -> Value:
    """``value`` as it was ``cycles`` enabled cycles ago; data, without reset."""
    for stage in range(cycles):
        kept = Signal(len(value), name=f"{name}_{stage}", reset_less=True)
        with m.If(enable):
            m.d.sync += kept.eq(value)
        value = kept
    return value


def twos_complement(negatives: Value, magnitudes: Value) -> Value:
    """Codes of 8 bits from signs and magnitudes, token by token."""
    codes = []
    for row in range(len(negatives)):
        sign, magnitude = negatives[row], magnitudes.word_select(row, Q_BITS)
        codes.append(((Cat(magnitude, Const(0, 1)) ^ sign.replicate(Q_BITS + 1)) + sign)[:-1])
    return Cat(*codes)


class QPU(wiring.Component):
    """Quantization processing unit (paper, section 4.2, figure 12; numerics.md, 1 to 5 and 8).

    Takes the token vectors of a tile, one channel after the other, and gives the encoded tile
    that the MPU loads, and the references of the next step.  Five stages: the difference and its
    largest magnitude; precision and scale from the bin table; quantized codes, and beside them
    the reconstruction; the slices' order; the encoded words.

    Parameters
    ----------
    reorder: ``buckets``, a counting sort (:class:`~dstar.rtl.qpu.reorder.BucketReorder`), or
    ``bitonic``, the paper's network (:class:`~dstar.rtl.qpu.bitonic.BitonicReorder`).  Both give
    the same words.

    Members
    -------
    command: stream of :func:`~dstar.rtl.qpu.streams.qpu_command_layout`.  A row of the table is
    written when the tiles before it have passed the table.
    x: stream of token vectors, binary16; as many as the command says.
    reference: stream of token vectors, one for each of ``x``, but none at a keyframe.
    slices: stream of :func:`~dstar.rtl.streams.slices_layout`, as the MPU takes it.
    header: stream of :func:`~dstar.rtl.qpu.streams.header_layout`, one a tile.
    next_reference: stream of token vectors, one for each of ``x``: the reconstruction, or ``x``
    itself in mode ``previous``.
    status: sticky flags: ``nonfinite``, a difference was NaN or infinite; ``saturated``, a
    reconstruction left binary16's range; ``dropped``, an illegal table made a slice that cannot
    be accumulated.  ``clear`` lowers them.

    Throughput: one token vector a cycle, whatever the precisions, when the outputs are taken (with
    ``buckets``).
    Latency: :attr:`latency`.
    """

    def __init__(self, cfg: Config, *, reorder: str = "buckets") -> None:
        if reorder not in REORDERS:
            raise ValueError(f"reorder must be one of {', '.join(REORDERS)}, got {reorder!r}")
        self.cfg = cfg
        self._reorder = REORDERS[reorder]
        vectors = stream.Signature(vector_layout(cfg))
        flags = {"nonfinite": Out(1), "saturated": Out(1), "dropped": Out(1)}
        super().__init__(
            {
                "command": In(stream.Signature(qpu_command_layout(cfg))),
                "x": In(vectors),
                "reference": In(vectors),
                "slices": Out(stream.Signature(slices_layout(cfg))),
                "header": Out(stream.Signature(header_layout(cfg))),
                "next_reference": Out(vectors),
                "status": Out(wiring.Signature(flags)),
                "clear": In(1),
            }
        )

    @property
    def write_latency(self) -> int:
        """Cycles from an accepted vector to its quantized codes in the ring.

        The difference, the tree of comparators, the bin table, the quantizer's register.
        """
        return DIFFERENCE_STAGES + tree_latency(self.cfg) + BinSelect.latency + 1

    @property
    def latency(self) -> dict[str, int]:
        """Cycles, in an otherwise idle unit, from an accepted vector.

        ``next_reference``: to its reconstruction.  ``slices``: from a tile's last vector to its
        first word.
        """
        return {
            "next_reference": self.write_latency + ReconstructRow.latency,
            "slices": self.write_latency + self._reorder.latency(self.cfg) + Encode.latency,
        }

    @property
    def ring(self) -> int:
        """Channels that may be on their way: two tiles, and what arrives while one is freed."""
        return 2 * self.cfg.numeric.k_tile + self.write_latency + 3

    def elaborate(self, platform: Any) -> Module:
        """The stages in the order of the data."""
        m = Module()
        rows = self.cfg.array.rows
        m.submodules.bins = bins = BinSelect(self.cfg)
        m.submodules.reorder = reorder = self._reorder(self.cfg)
        m.submodules.encode = encode = Encode(self.cfg, depth=self.ring)
        wiring.connect(m, reorder.words, encode.order)
        wiring.connect(m, wiring.flipped(self.slices), encode.output)
        wiring.connect(m, wiring.flipped(self.header), encode.header)

        # Everything up to the reconstruction moves together.
        enable = Signal()
        m.d.comb += enable.eq(~self.next_reference.valid | self.next_reference.ready)
        valid = Signal(self.write_latency + ReconstructRow.latency)
        tile, take, channel = self._accept(m, bins, encode, enable, valid[: self.write_latency])
        with m.If(enable):
            m.d.sync += valid.eq(Cat(take, valid))
        m.d.comb += self.next_reference.valid.eq(valid[-1])

        # Stages 1 and 2.
        reference = Signal(HALF_BITS * rows)
        given = self.reference.payload.as_value()
        m.d.comb += reference.eq(Mux(tile.keyframe, 0, given))
        difference = self._difference(m, platform, reference, enable)
        m.submodules.tree = tree = MagnitudeTree(self.cfg)
        m.d.comb += [
            tree.enable.eq(enable),
            tree.vector.eq(difference),
            bins.enable.eq(enable),
            bins.peak.eq(tree.peak),
        ]
        looked_up = valid[self.write_latency - 3] & enable
        with m.If(looked_up & bins.peak[FRACTION_BITS:].all()):
            m.d.sync += self.status.nonfinite.eq(1)

        # Stage 3.
        waited = delayed(m, enable, difference, tree.latency + bins.latency, "difference")
        negatives, magnitudes = self._quantize(m, platform, waited, bins)
        negatives = delayed(m, enable, negatives, 1, "negatives")
        magnitudes = delayed(m, enable, magnitudes, 1, "magnitudes")
        exponent = delayed(m, enable, bins.exponent, 1, "exponent").as_signed()
        slices = delayed(m, enable, bins.slices, 1, "slices")

        # Stages 4 and 5.
        through = {"channel": channel, "last": channel == tile.last_channel}
        through = {
            name: delayed(m, enable, value, self.write_latency, name)
            for name, value in through.items()
        }
        write = valid[self.write_latency - 1] & enable
        m.d.comb += [
            encode.write.eq(write),
            encode.codes.eq(twos_complement(negatives, magnitudes)),
            reorder.write.eq(write),
            reorder.subchannel.channel.eq(through["channel"]),
            reorder.subchannel.last.eq(through["last"]),
            reorder.subchannel.slices.eq(slices),
            reorder.subchannel.exponent.eq(exponent),
            reorder.subchannel.finest.eq(bins.finest),
        ]
        with m.If(reorder.dropped):
            m.d.sync += self.status.dropped.eq(1)

        base = Mux(tile.previous, self.x.payload.as_value(), reference)
        carry = delayed(m, enable, base, self.write_latency + 1, "carry")
        bypass = delayed(m, enable, tile.previous, self.write_latency, "bypass")
        keep = delayed(m, enable, bypass, ReconstructRow.latency, "keep")
        infinite = []
        for row in range(rows):
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
                self.next_reference.payload[row].eq(part.total),
            ]
            infinite.append(part.infinite)
        with m.If(valid[-1] & ~keep & Cat(*infinite).any()):
            m.d.sync += self.status.saturated.eq(1)
        with m.If(self.clear):
            m.d.sync += [
                self.status.nonfinite.eq(0),
                self.status.saturated.eq(0),
                self.status.dropped.eq(0),
            ]
        return m

    def _accept(
        self, m: Module, bins: BinSelect, encode: Encode, enable: Value, ahead: Value
    ) -> tuple[Any, Signal, Signal]:
        """Commands and vectors in; the tile's command, whether a vector moves, its channel.

        ``ahead``: which stages up to the ring hold vectors, which use the table.
        """
        command = self.command.payload
        tile = Signal(qpu_command_layout(self.cfg), reset_less=True)
        active = Signal()
        channel = Signal(self.cfg.numeric.channel_bits)
        used, tiles = Signal(range(self.ring + 1)), Signal(range(self._reorder.tiles + 1))
        take, last, begin, program = Signal(), Signal(), Signal(), Signal()
        able = active & enable & (used != self.ring)
        m.d.comb += [
            take.eq(able & self.x.valid & (tile.keyframe | self.reference.valid)),
            self.x.ready.eq(able & (tile.keyframe | self.reference.valid)),
            self.reference.ready.eq(able & self.x.valid & ~tile.keyframe),
            last.eq(take & (channel == tile.last_channel)),
            begin.eq(
                self.command.valid
                & ~command.program
                & (~active | last)
                & (tiles != self._reorder.tiles)
            ),
            program.eq(self.command.valid & command.program & ~active & ~ahead.any()),
            self.command.ready.eq(begin | program),
            bins.write.eq(program),
            bins.index.eq(command.index),
            bins.row.eq(command.row),
        ]
        m.d.sync += [
            used.eq(used + take - encode.freed),
            tiles.eq(tiles + begin - (encode.freed != 0)),
        ]
        with m.If(take):
            m.d.sync += channel.eq(Mux(last, 0, channel + 1))
        with m.If(last):
            m.d.sync += active.eq(0)
        with m.If(begin):
            m.d.sync += [active.eq(1), tile.eq(command)]
        return tile, take, channel

    def _difference(self, m: Module, platform: Any, reference: Value, enable: Value) -> Value:
        """``x - reference`` for every token."""
        sums = []
        for row in range(self.cfg.array.rows):
            adder = FP16Add(stages=DIFFERENCE_STAGES)
            m.submodules[f"difference_{row}"] = shared(platform, adder)
            word = reference.word_select(row, HALF_BITS)
            m.d.comb += [
                adder.enable.eq(enable),
                adder.a.eq(self.x.payload[row]),
                adder.b.eq(Cat(word[:-1], ~word[-1])),
            ]
            sums.append(adder.sum)
        return Cat(*sums)

    def _quantize(
        self, m: Module, platform: Any, difference: Value, bins: BinSelect
    ) -> tuple[Value, Value]:
        """Signs and magnitudes of every token's q."""
        limit = Signal(Q_BITS)
        for slices in range(1, MAX_SLICES + 1):
            with m.If(bins.slices == slices):
                m.d.comb += limit.eq((1 << SLICE_BITS * slices - 1) - 1)
        negatives, magnitudes = [], []
        for row in range(self.cfg.array.rows):
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
