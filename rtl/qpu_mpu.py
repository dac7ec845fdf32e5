"""QPU and MPU in one: binary16 activations in, integer sums out."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from dstar.gen.config import Config
from dstar.rtl.mpu.mpu import MPU
from dstar.rtl.qpu.qpu import QPU
from dstar.rtl.qpu.streams import header_layout, qpu_command_layout, vector_layout
from dstar.rtl.streams import command_layout, sums_layout, weights_layout


class QPUWithMPU(wiring.Component):
    """A QPU whose encoded tiles go straight into an MPU's slice buffers.

    Members
    -------
    quantize, x, reference, header, next_reference: the QPU's
    (:class:`~dstar.rtl.qpu.qpu.QPU`; ``quantize`` is its ``command``).
    command, weights, output: the MPU's (:class:`~dstar.rtl.mpu.mpu.MPU`).
    status, clear, perf: their flags and counters.
    """

    def __init__(self, cfg: Config) -> None:
        self.cfg = cfg
        self.qpu = QPU(cfg)
        self.mpu = MPU(cfg)
        vectors = stream.Signature(vector_layout(cfg))
        super().__init__(
            {
                "quantize": In(stream.Signature(qpu_command_layout(cfg))),
                "x": In(vectors),
                "reference": In(vectors),
                "header": Out(stream.Signature(header_layout(cfg))),
                "next_reference": Out(vectors),
                "weights": In(stream.Signature(weights_layout(cfg))),
                "command": In(stream.Signature(command_layout())),
                "output": Out(stream.Signature(sums_layout(cfg))),
                "status": self.qpu.signature.members["status"],
                "clear": In(1),
                "perf": self.mpu.signature.members["perf"],
            }
        )

    @property
    def latency(self) -> dict[str, int]:
        """The QPU's latencies and the MPU's."""
        return {**self.qpu.latency, "last_beat_to_output": self.mpu.latency}

    def elaborate(self, platform: Any) -> Module:
        """Both units and the stream between them."""
        m = Module()
        m.submodules.qpu = qpu = self.qpu
        m.submodules.mpu = mpu = self.mpu
        wiring.connect(m, qpu.slices, mpu.slices)
        wiring.connect(m, wiring.flipped(self.quantize), qpu.command)
        for name in ("x", "reference"):
            wiring.connect(m, wiring.flipped(getattr(self, name)), getattr(qpu, name))
        for name in ("header", "next_reference", "status"):
            wiring.connect(m, getattr(qpu, name), wiring.flipped(getattr(self, name)))
        for name in ("weights", "command"):
            wiring.connect(m, wiring.flipped(getattr(self, name)), getattr(mpu, name))
        for name in ("output", "perf"):
            wiring.connect(m, getattr(mpu, name), wiring.flipped(getattr(self, name)))
        m.d.comb += qpu.clear.eq(self.clear)
        return m
