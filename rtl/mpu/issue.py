"""The MPU's front end: groups slices of equal exponent into beats."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, unsigned
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from dstar.gen.config import Config


def words_per_tile(cfg: Config) -> int:
    """Slice words of a full tile."""
    return -(-cfg.numeric.max_tile_slices // cfg.array.lanes)


def count_bits(cfg: Config) -> int:
    """Width of a number of slices in a tile."""
    return (words_per_tile(cfg) * cfg.array.lanes).bit_length()


class Issue(wiring.Component):
    """Walks a tile's slices in order and issues one beat a cycle.

    The window over the next ``lanes`` slices may begin at any slice.  Its first slice and those
    behind it with shift 0 form the beat; the others wait, their lanes idle.  A first slice with
    shift 1 doubles the accumulators in the same beat; a shift of ``s`` costs ``s - 1`` beats
    without slices before it (paper, figure 11, where every doubling costs a cycle).

    A tile's first beat also begins the accumulation anew, which pushes the finished sums into the
    shadow registers: it waits for ``capture_ready``.  When no tile follows at once, an empty beat
    does that.

    Members
    -------
    go: a job with both operands is waiting; taken in the cycle in which ``begin`` is set.
    begin: from the next cycle on, ``count`` and ``shifts`` belong to the waiting job.
    done: the running job issues its last beat.
    count: slices of the running job's tile.
    shifts: shift counts of the window's slices, by lane.
    next_position: slice at which the window stands in the next cycle.
    position: slice at which it stands now.
    active: lanes that take part in this cycle's beat.
    keep, double: the beat's control; both 0 in a beat that captures.
    capture: this beat captures a finished tile (not after reset).
    capture_ready: a capture is permitted.
    beat: this cycle is a compute cycle of a job (with or without active lanes).
    """

    def __init__(self, cfg: Config) -> None:
        self.cfg = cfg
        lanes, bits = cfg.array.lanes, count_bits(cfg)
        super().__init__(
            {
                "go": In(1),
                "begin": Out(1),
                "done": Out(1),
                "count": In(bits),
                "shifts": In(data.ArrayLayout(unsigned(cfg.numeric.shift_bits), lanes)),
                "next_position": Out(bits),
                "position": Out(bits),
                "active": Out(lanes),
                "keep": Out(1),
                "double": Out(1),
                "capture": Out(1),
                "capture_ready": In(1),
                "beat": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Group the window, decide the beat, move on."""
        m = Module()
        lanes = self.cfg.array.lanes
        rotation = self.position[: lanes.bit_length() - 1] if lanes > 1 else Const(0, 1)

        # The window in slice order: slice `position + rank` waits in lane `rank + rotation`.
        remaining = Signal.like(self.count)
        m.d.comb += remaining.eq(self.count - self.position)
        shift_flags = Cat(*(shift != 0 for shift in self.shifts))
        same: list[Signal] = []
        for rank in range(lanes):
            joins = remaining > rank
            if rank:
                lane = Signal(range(lanes), name=f"lane_{rank}")
                m.d.comb += lane.eq(rotation + rank)
                joins = joins & same[-1] & ~shift_flags.bit_select(lane, 1)
            joined = Signal(name=f"joins_{rank}")
            m.d.comb += joined.eq(joins)
            same.append(joined)
        taken = Signal(range(lanes + 1))
        m.d.comb += taken.eq(sum(same, Const(0, 1)))

        # Doublings that the window's first slice still waits for.
        busy, first = Signal(), Signal()
        doubled = Signal(self.cfg.numeric.shift_bits)
        head_shift = Signal(self.cfg.numeric.shift_bits)
        missing = Signal(self.cfg.numeric.shift_bits)
        window = self.shifts.as_value().word_select(rotation, self.cfg.numeric.shift_bits)
        m.d.comb += [
            head_shift.eq(Mux(first, 0, window)),
            missing.eq(head_shift - doubled),
        ]

        # After reset the accumulators hold anything; the first beat clears them for nobody.
        pending, unknown = Signal(), Signal(init=1)
        stalled, flush, captures = Signal(), Signal(), Signal()
        m.d.comb += [
            captures.eq((busy & first & (pending | unknown)) | flush),
            stalled.eq(busy & first & (pending | unknown) & ~self.capture_ready),
            flush.eq(~busy & (pending | unknown) & self.capture_ready),
            self.beat.eq(busy & ~stalled),
            self.capture.eq(captures & ~stalled & pending),
            self.double.eq(self.beat & (missing != 0)),
            self.keep.eq(~self.double & ~(captures & ~stalled)),
        ]
        advance = Signal()
        m.d.comb += [
            advance.eq(self.beat & (missing <= 1)),
            self.active.eq(Mux(advance, _rotate(m, same, rotation), 0)),
            self.done.eq(advance & (remaining == taken)),
            self.begin.eq(self.go & (~busy | self.done)),
        ]
        with m.If(self.begin | ~busy):
            m.d.comb += self.next_position.eq(0)
        with m.Elif(advance):
            m.d.comb += self.next_position.eq(self.position + taken)
        with m.Else():
            m.d.comb += self.next_position.eq(self.position)

        m.d.sync += self.position.eq(self.next_position)
        with m.If(captures & ~stalled):
            m.d.sync += [unknown.eq(0), pending.eq(0)]
        with m.If(self.done):
            m.d.sync += [busy.eq(0), pending.eq(1)]
        with m.If(self.begin):
            m.d.sync += [busy.eq(1), first.eq(1)]
        with m.Elif(self.beat):
            m.d.sync += first.eq(0)
        m.d.sync += doubled.eq(Mux(self.beat & ~advance, doubled + 1, 0))
        return m


def _rotate(m: Module, flags: list[Signal], rotation: Any) -> Signal:
    """Flags by rank to flags by lane."""
    rotated = Signal(len(flags))
    with m.Switch(rotation):
        for amount in range(len(flags)):
            with m.Case(amount):
                m.d.comb += rotated.eq(Cat(*flags).rotate_left(amount))
    return rotated
