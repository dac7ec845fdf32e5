"""Instruction fetch: a program in memory as a stream of instructions."""

from __future__ import annotations

import dataclasses
from typing import Any

from amaranth.hdl import Module, Signal, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from dstar.rtl.mpc.bursts import COUNT_BITS
from dstar.rtl.mpc.bus import BusShape, status_signature
from dstar.rtl.mpc.convert import Collect, Cut
from dstar.rtl.mpc.dma_read import BurstReader
from dstar.rtl.mpc.queue import StreamQueue


def program_layout(*, address_bits: int) -> data.StructLayout:
    """A program: byte address (a multiple of the beat's bytes) and instructions, at least 1."""
    return data.StructLayout({"address": unsigned(address_bits), "length": unsigned(COUNT_BITS)})


class Fetch(wiring.Component):
    """Reads a program ahead of its use.

    Parameters
    ----------
    shape: the bus; its word and buffer address are not used.  Short bursts (``max_beats``) keep
        the queue small: a program needs little bandwidth.
    instruction_bits: a divisor or a multiple of ``shape.data_bits``.
    ahead_beats: beats read ahead, at least ``shape.max_beats``.
    identifier: as of :class:`~dstar.rtl.mpc.dma_read.BurstReader`.

    Members
    -------
    program: stream of :func:`program_layout`; the next is taken when one has left as a whole.
    axi: :attr:`~dstar.rtl.mpc.bus.BusShape.read`.
    instructions: stream of instructions in order.
    status: :func:`~dstar.rtl.mpc.bus.status_signature`.

    Requests only what it has room for: a full command queue must not hold up the R channel, which
    the loads share that would empty it.
    """

    def __init__(
        self, shape: BusShape, *, instruction_bits: int, ahead_beats: int, identifier: int = 0
    ) -> None:
        small, large = sorted((instruction_bits, shape.data_bits))
        if small < 1 or large % small:
            rule = f"a divisor or a multiple of data_bits ({shape.data_bits})"
            raise ValueError(f"instruction_bits must be {rule}, got {instruction_bits}")
        self.shape = dataclasses.replace(shape, word_bits=large)
        self.instruction_bits = instruction_bits
        self.ahead_beats = ahead_beats
        self.identifier = identifier
        program = program_layout(address_bits=shape.address_bits)
        super().__init__(
            {
                "program": In(stream.Signature(program)),
                "axi": Out(shape.read),
                "instructions": Out(stream.Signature(instruction_bits)),
                "status": Out(status_signature(shape.address_bits)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Reader, queue of beats, conversion to instructions, count of those left."""
        m = Module()
        m.submodules.reader = reader = BurstReader(
            self.shape, identifier=self.identifier, receiver_beats=self.ahead_beats
        )
        m.submodules.queue = queue = StreamQueue(self.shape.data_bits, depth=self.ahead_beats)
        wiring.connect(m, wiring.flipped(self.axi), reader.axi)
        wiring.connect(m, wiring.flipped(self.status), reader.status)
        wiring.connect(m, reader.beats, queue.input)
        m.d.comb += reader.freed.eq(queue.output.valid & queue.output.ready)
        parts = self.shape.word_bits // self.instruction_bits
        converter = (
            Cut(width=self.instruction_bits, count=parts)
            if parts > 1
            else Collect(width=self.shape.data_bits, count=self.shape.word_beats)
        )
        m.submodules.converter = converter
        wiring.connect(m, queue.output, converter.input)

        # Instructions still to leave, and those that fill the last beat and are dropped.
        left, surplus = Signal(COUNT_BITS), Signal(range(max(2, parts)))
        program, transfer = self.program.payload, reader.transfer.payload
        idle = (left == 0) & (surplus == 0)
        m.d.comb += [
            transfer.address.eq(program.address),
            transfer.length.eq((program.length + (parts - 1)) // parts),
            transfer.rows.eq(1),
            reader.transfer.valid.eq(self.program.valid & idle),
            self.program.ready.eq(reader.transfer.ready & idle),
            self.instructions.payload.eq(converter.output.payload),
            self.instructions.valid.eq(converter.output.valid & (left != 0)),
            converter.output.ready.eq(self.instructions.ready | (left == 0)),
        ]
        with m.If(self.program.valid & self.program.ready):
            m.d.sync += [left.eq(program.length), surplus.eq(-program.length % parts)]
        with m.Elif(converter.output.valid & converter.output.ready):
            with m.If(left != 0):
                m.d.sync += left.eq(left - 1)
            with m.Else():
                m.d.sync += surplus.eq(surplus - 1)
        return m
