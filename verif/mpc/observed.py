"""The core as the simulator looks at it: with the state of its engines made visible."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import Out

from dstar.gen.config import Config
from dstar.rtl.mpc.control import ENGINES, Control
from dstar.rtl.mpc.mpc import MPC


class ObservedMPC(MPC):
    """:class:`~dstar.rtl.mpc.mpc.MPC`, unchanged, and a window on its engines.

    Members
    -------
    those of the core, and
    busy, stalled: a bit for each of :data:`~dstar.rtl.mpc.control.ENGINES`, as they are counted.
    """

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        self.busy = Signal(len(ENGINES))
        self.stalled = Signal(len(ENGINES))

    @property
    def signature(self) -> wiring.Signature:
        """The core's, with the window."""
        count = Out(len(ENGINES))
        return wiring.Signature({**super().signature.members, "busy": count, "stalled": count})

    def _registers(self, m: Module, registers: Any, control: Control, *parts: Any) -> None:
        super()._registers(m, registers, control, *parts)
        m.d.comb += [self.busy.eq(control.started), self.stalled.eq(control.waiting)]
