"""Matrix unit with its output path: encoded tiles in, binary16 token vectors out."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from dstar.gen.config import Config
from dstar.rtl.mpu.mpu import MPU
from dstar.rtl.output.path import OutputPath, channel_layout, output_command_layout
from dstar.rtl.streams import command_layout, slices_layout, weights_layout


class MatrixUnit(wiring.Component):
    """:class:`~dstar.rtl.mpu.mpu.MPU` and :class:`~dstar.rtl.output.path.OutputPath` in a row.

    Parameters
    ----------
    cfg, columns, k_tiles, weight_channels: as of the two.
    mpu: class of the MPU; simulators look into it with one of their own.

    Members
    -------
    slices, weights, command, perf: of the MPU.
    store, channel, before, output, saturated, clear: of the output path, ``store`` being its
        commands, one for each of the MPU's in the same order.
    """

    def __init__(
        self,
        cfg: Config,
        *,
        columns: int | None = None,
        k_tiles: int = 64,
        weight_channels: int = 1,
        mpu: type[MPU] = MPU,
    ) -> None:
        self.mpu = mpu(cfg, weight_channels=weight_channels)
        self.path = OutputPath(cfg, columns=columns, k_tiles=k_tiles)
        vectors = stream.Signature(data.ArrayLayout(16, cfg.array.rows))
        super().__init__(
            {
                "slices": In(stream.Signature(slices_layout(cfg))),
                "weights": In(stream.Signature(weights_layout(cfg, channels=weight_channels))),
                "command": In(stream.Signature(command_layout())),
                "store": In(stream.Signature(output_command_layout(self.path.columns))),
                "channel": In(stream.Signature(channel_layout())),
                "before": In(vectors),
                "output": Out(vectors),
                "saturated": Out(1),
                "clear": In(1),
                "perf": Out(wiring.Signature({"beats": Out(32), "slots": Out(32)})),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from a job's last beat to its first output vector, if it is the last k tile."""
        return self.mpu.latency + self.path.latency

    def elaborate(self, platform: Any) -> Module:
        """Wires only."""
        m = Module()
        m.submodules.mpu = self.mpu
        m.submodules.path = self.path
        for name in ("slices", "weights", "command"):
            wiring.connect(m, wiring.flipped(getattr(self, name)), getattr(self.mpu, name))
        wiring.connect(m, self.mpu.output, self.path.sums)
        wiring.connect(m, wiring.flipped(self.store), self.path.command)
        for name in ("channel", "before", "output"):
            wiring.connect(m, wiring.flipped(getattr(self, name)), getattr(self.path, name))
        m.d.comb += [
            self.saturated.eq(self.path.saturated),
            self.path.clear.eq(self.clear),
            self.perf.beats.eq(self.mpu.perf.beats),
            self.perf.slots.eq(self.mpu.perf.slots),
        ]
        return m
