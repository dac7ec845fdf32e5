"""The QPU's intake: commands start tiles or write the bin table; vectors move when all may."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from dstar.gen.config import Config
from dstar.rtl.qpu.streams import channels_bits, qpu_command_layout


class Intake(wiring.Component):
    """Takes commands, and says in which cycle a token vector enters.

    Parameters
    ----------
    ring: places for channels on their way.  tiles: tiles that may be.

    Members
    -------
    command: stream of :func:`~dstar.rtl.qpu.streams.qpu_command_layout`.
    enable: the pipeline moves.
    busy: a vector is on its way to the table or in it; rows are written only without.
    offered, given: an activation and a reference are there.
    freed: channels whose places are free again from the next cycle on.
    take: a vector enters, and with it a reference unless the tile is a keyframe.
    x_ready, reference_ready: of their streams.
    tile, channel: the command of the vector's tile, and its channel.
    program: the command at the input is a row of the table, which is written now.
    """

    def __init__(self, cfg: Config, *, ring: int, tiles: int) -> None:
        self.cfg = cfg
        self._ring, self._tiles = ring, tiles
        super().__init__(
            {
                "command": In(stream.Signature(qpu_command_layout(cfg))),
                "enable": In(1),
                "busy": In(1),
                "offered": In(1),
                "given": In(1),
                "freed": In(channels_bits(cfg)),
                "take": Out(1),
                "x_ready": Out(1),
                "reference_ready": Out(1),
                "tile": Out(qpu_command_layout(cfg)),
                "channel": Out(cfg.numeric.channel_bits),
                "program": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """The tile under way, and counters of places and tiles in use."""
        m = Module()
        command = self.command.payload
        tile = Signal(qpu_command_layout(self.cfg), reset_less=True)
        active = Signal()
        used, tiles = Signal(range(self._ring + 1)), Signal(range(self._tiles + 1))
        able, last, begin = Signal(), Signal(), Signal()
        m.d.comb += [
            self.tile.eq(tile),
            able.eq(active & self.enable & (used != self._ring)),
            self.x_ready.eq(able & (tile.keyframe | self.given)),
            self.reference_ready.eq(able & self.offered & ~tile.keyframe),
            self.take.eq(self.x_ready & self.offered),
            last.eq(self.take & (self.channel == tile.last_channel)),
            begin.eq(
                self.command.valid & ~command.program & (~active | last) & (tiles != self._tiles)
            ),
            self.program.eq(self.command.valid & command.program & ~active & ~self.busy),
            self.command.ready.eq(begin | self.program),
        ]
        m.d.sync += [
            used.eq(used + self.take - self.freed),
            tiles.eq(tiles + begin - (self.freed != 0)),
        ]
        with m.If(self.take):
            m.d.sync += self.channel.eq(Mux(last, 0, self.channel + 1))
        with m.If(last):
            m.d.sync += active.eq(0)
        with m.If(begin):
            m.d.sync += [active.eq(1), tile.eq(command)]
        return m
