"""The matrix unit as a comparison looks at it: with the sums between its halves made visible."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from dstar.gen.config import Config
from dstar.rtl.matrix import MatrixUnit
from dstar.rtl.streams import sums_layout


class ObservedMatrixUnit(wiring.Component):
    """:class:`~dstar.rtl.matrix.MatrixUnit`, unchanged, and a window on what its MPU hands on.

    Parameters
    ----------
    cfg, columns, k_tiles: as of the matrix unit.

    Members
    -------
    those of the matrix unit, and
    sums: stream of :func:`~dstar.rtl.streams.sums_layout`, each word in the cycle in which the
        output path takes it; it cannot be held up, so its ``ready`` must stay high.
    """

    def __init__(self, cfg: Config, *, columns: int, k_tiles: int) -> None:
        self.unit = MatrixUnit(cfg, columns=columns, k_tiles=k_tiles)
        members = dict(self.unit.signature.members)
        super().__init__({**members, "sums": Out(stream.Signature(sums_layout(cfg)))})

    def elaborate(self, platform: Any) -> Module:
        """Wires only."""
        m = Module()
        m.submodules.unit = unit = self.unit
        for name, member in unit.signature.members.items():
            inner, outer = getattr(unit, name), getattr(self, name)
            if member.is_signature:
                wiring.connect(m, inner, wiring.flipped(outer))
            else:
                m.d.comb += inner.eq(outer) if member.flow == In else outer.eq(inner)
        words = unit.mpu.output
        m.d.comb += [
            self.sums.payload.eq(words.payload),
            self.sums.valid.eq(words.valid & words.ready),
        ]
        return m
