"""Quantization unit: token vectors to encoded tiles, and the next references."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from dstar.gen.config import Config
from dstar.rtl.fp16.add import FRACTION_BITS
from dstar.rtl.qpu.bins import BinSelect, MagnitudeTree, tree_latency
from dstar.rtl.qpu.bitonic import BitonicReorder
from dstar.rtl.qpu.control import Intake
from dstar.rtl.qpu.encode import Encode
from dstar.rtl.qpu.logic import delayed, twos_complement
from dstar.rtl.qpu.reorder import BucketReorder
from dstar.rtl.qpu.rows import ReconstructRow
from dstar.rtl.qpu.streams import (
    HALF_BITS,
    header_layout,
    qpu_command_layout,
    vector_layout,
)
from dstar.rtl.qpu.vectors import DIFFERENCE_STAGES, differences, quantized, reconstructed
from dstar.rtl.streams import slices_layout

#: Ways to sort, by name.
REORDERS: dict[str, type[BucketReorder] | type[BitonicReorder]] = {
    "buckets": BucketReorder,
    "bitonic": BitonicReorder,
}


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
    itself in mode ``previous`` (NaN as the one quiet NaN).
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
        m.submodules.intake = intake = Intake(self.cfg, ring=self.ring, tiles=self._reorder.tiles)
        wiring.connect(m, wiring.flipped(self.command), intake.command)
        tile = intake.tile
        m.d.comb += [
            intake.enable.eq(enable),
            intake.busy.eq(valid[: self.write_latency].any()),
            intake.offered.eq(self.x.valid),
            intake.given.eq(self.reference.valid),
            intake.freed.eq(encode.freed),
            self.x.ready.eq(intake.x_ready),
            self.reference.ready.eq(intake.reference_ready),
            bins.write.eq(intake.program),
            bins.index.eq(self.command.payload.index),
            bins.row.eq(self.command.payload.row),
            self.next_reference.valid.eq(valid[-1]),
        ]
        with m.If(enable):
            m.d.sync += valid.eq(Cat(intake.take, valid))

        # Stages 1 and 2.
        reference = Signal(HALF_BITS * rows)
        given = self.reference.payload.as_value()
        m.d.comb += reference.eq(Mux(tile.keyframe, 0, given))
        difference = differences(m, platform, enable, self.x.payload, reference)
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
        negatives, magnitudes = quantized(m, platform, waited, bins)
        negatives = delayed(m, enable, negatives, 1, "negatives")
        magnitudes = delayed(m, enable, magnitudes, 1, "magnitudes")
        exponent = delayed(m, enable, bins.exponent, 1, "exponent").as_signed()
        slices = delayed(m, enable, bins.slices, 1, "slices")

        # Stages 4 and 5.
        channel = intake.channel
        through: dict[str, Value] = {"channel": channel, "last": channel == tile.last_channel}
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
        infinite = reconstructed(
            m,
            platform,
            enable,
            (negatives, magnitudes),
            exponent,
            carry,
            bypass,
            self.next_reference.payload,
        )
        with m.If(valid[-1] & infinite):
            m.d.sync += self.status.saturated.eq(1)
        with m.If(self.clear):
            m.d.sync += [
                self.status.nonfinite.eq(0),
                self.status.saturated.eq(0),
                self.status.dropped.eq(0),
            ]
        return m
