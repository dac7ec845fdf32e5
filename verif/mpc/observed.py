"""The core as the simulator looks at it: with the state of engines and array made visible."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import Out

from dstar.gen.config import Config
from dstar.golden.mpc.isa import Engine
from dstar.golden.mpc.registers import READERS
from dstar.rtl.mpc.buffer import UnifiedBuffer
from dstar.rtl.mpc.control import ENGINES
from dstar.rtl.mpc.core_control import CoreControl
from dstar.rtl.mpc.mpc import MPC
from dstar.rtl.mpu.mpu import MPU


class ArrayState(IntEnum):
    """What the array does in a cycle, or else what it waits for.

    ``IDLE``: no program runs.  ``COMPUTE``: a beat.  ``DRAIN``: the columns of the product before
    have not left.  ``QUANTIZE``: the next tile is being quantized.  ``WEIGHTS``: the next weights
    enter the MPU.  ``CONFLICT``: either of these waits for a bank.  ``LOAD``, ``VECTOR``,
    ``STORE``: either has not begun; of these engines, the first that has a command under way.
    ``CONTROL``: none has.
    """

    IDLE = 0
    COMPUTE = 1
    DRAIN = 2
    CONFLICT = 3
    QUANTIZE = 4
    WEIGHTS = 5
    LOAD = 6
    VECTOR = 7
    STORE = 8
    CONTROL = 9


class ObservedMPU(MPU):
    """:class:`~dstar.rtl.mpu.mpu.MPU`, unchanged, and what it has.

    Members
    -------
    those of the MPU, and
    running: a product is under way.  beat: it computes in this cycle.
    slices, weights: a tile of them is loaded.
    """

    def __init__(self, cfg: Config, *, weight_channels: int = 1) -> None:
        super().__init__(cfg, weight_channels=weight_channels)
        self.running, self.beat, self.slices_held, self.weights_held = (Signal() for _ in range(4))

    @property
    def signature(self) -> wiring.Signature:
        """The MPU's, with the window."""
        names = ("running", "beat", "slices_held", "weights_held")
        return wiring.Signature({**super().signature.members, **dict.fromkeys(names, Out(1))})

    def elaborate(self, platform: Any) -> Module:
        """The MPU, and a look at its front end and at the books of its buffers."""
        m = super().elaborate(platform)
        issue = m.submodules.issue
        m.d.comb += [
            self.beat.eq(issue.beat),
            self.slices_held.eq(m.submodules.slice_buffers.count != 0),
            self.weights_held.eq(m.submodules.weight_buffers.count != 0),
        ]
        with m.If(issue.begin):
            m.d.sync += self.running.eq(1)
        with m.Elif(issue.done):
            m.d.sync += self.running.eq(0)
        return m


class ObservedMPC(MPC):
    """:class:`~dstar.rtl.mpc.mpc.MPC`, unchanged, and a window on its engines and its array.

    Members
    -------
    those of the core, and
    busy, stalled: a bit for each of :data:`~dstar.rtl.mpc.control.ENGINES`, as they are counted.
    array: the :class:`ArrayState`.
    """

    _mpu = ObservedMPU

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        self.busy = Signal(len(ENGINES))
        self.stalled = Signal(len(ENGINES))
        self.array = Signal(4)

    @property
    def signature(self) -> wiring.Signature:
        """The core's, with the window."""
        count = Out(len(ENGINES))
        window = {"busy": count, "stalled": count, "array": Out(4)}
        return wiring.Signature({**super().signature.members, **window})

    def elaborate(self, platform: Any) -> Module:
        """The core, and a look at its control and its array."""
        m = super().elaborate(platform)
        control: CoreControl = m.submodules.control
        buffer: UnifiedBuffer = m.submodules.buffer
        mpu: Any = m.submodules.matrix.mpu
        m.d.comb += [self.busy.eq(control.started), self.stalled.eq(control.waiting)]
        with m.If(~control.busy):
            m.d.comb += self.array.eq(ArrayState.IDLE)
        with m.Elif(mpu.beat):
            m.d.comb += self.array.eq(ArrayState.COMPUTE)
        with m.Elif(mpu.running):
            m.d.comb += self.array.eq(ArrayState.DRAIN)
        with m.Elif(~mpu.slices_held):
            self._awaits(m, control, buffer, Engine.QUANTIZE, ArrayState.QUANTIZE)
        with m.Elif(~mpu.weights_held):
            self._awaits(m, control, buffer, Engine.MULTIPLY, ArrayState.WEIGHTS)
        with m.Else():
            m.d.comb += self.array.eq(ArrayState.CONTROL)
        return m

    def _awaits(
        self,
        m: Module,
        control: CoreControl,
        buffer: UnifiedBuffer,
        engine: Engine,
        state: ArrayState,
    ) -> None:
        """``state`` while an engine works on what the array lacks; else what it waits for."""
        number = ENGINES.index(engine)
        ports = [
            buffer.readers[reader].address
            for reader, name in enumerate(READERS)
            if name.startswith(engine.name)
        ]
        with m.If(control.started[number] & ~control.waiting[number]):
            conflict = Cat(port.valid & ~port.ready for port in ports).any()
            m.d.comb += self.array.eq(Mux(conflict, ArrayState.CONFLICT, state))
        with m.Elif(control.started[ENGINES.index(Engine.LOAD)]):
            m.d.comb += self.array.eq(ArrayState.LOAD)
        with m.Elif(control.started[ENGINES.index(Engine.VECTOR)]):
            m.d.comb += self.array.eq(ArrayState.VECTOR)
        with m.Elif(control.started[ENGINES.index(Engine.STORE)]):
            m.d.comb += self.array.eq(ArrayState.STORE)
        with m.Else():
            m.d.comb += self.array.eq(ArrayState.CONTROL)
