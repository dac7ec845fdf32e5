"""Golden VPU: runs programs on streams of vectors, bit for bit as the RTL does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dstar.gen.config import VectorConfig

from .float import (
    Accumulator,
    Half,
    Private,
    add,
    fold,
    from_half,
    maximum,
    multiply,
    to_half,
)
from .isa import REGISTERS, Instruction, Op, Program, Source
from .unary import FUNCTIONS, Unary


class VPU:
    """Registers and accumulators of all lanes.

    Parameters
    ----------
    lanes:
        Lanes of the unit; or a shape whose last axis is lanes, to run the same programs on many
        independent units at once.
    """

    def __init__(self, lanes: int | tuple[int, ...], cfg: VectorConfig | None = None) -> None:
        self.cfg = cfg or VectorConfig()
        self.shape = (lanes,) if isinstance(lanes, int) else tuple(lanes)
        self.unary = Unary(self.cfg)
        self.registers: list[Private] = [np.zeros(self.shape, np.float32)] * REGISTERS
        self.accumulator = Accumulator(self.shape, self.cfg.acc_width, self.cfg.acc_fraction)

    def run(
        self,
        programs: Sequence[Program],
        vectors: Half,
        scalars: Half | None = None,
    ) -> Half:
        """Run programs one after the other.

        Parameters
        ----------
        vectors:
            Input stream, binary16 (vectors, ..., lanes).
        scalars:
            Scalar stream, binary16 (scalars,) or (scalars, ..., 1), one word for all lanes.

        Returns
        -------
        Output stream, binary16 (vectors, ..., lanes).

        Raises
        ------
        ValueError
            If the streams have other lengths than the programs take, or a program is too long.
        """
        given = {Source.INPUT: vectors, Source.SCALAR: np.zeros(0, np.float16)}
        if scalars is not None:
            given[Source.SCALAR] = scalars
        for source, words in given.items():
            want = sum(program.words(source) for program in programs)
            if len(words) != want:
                name = source.name.lower()
                raise ValueError(f"the programs take {want} {name} words, got {len(words)}")
        streams = {source: iter(from_half(words)) for source, words in given.items()}
        out: list[Half] = []
        for program in programs:
            if len(program.instructions) > self.cfg.program:
                raise ValueError(
                    f"a program must have at most {self.cfg.program} instructions, "
                    f"got {len(program.instructions)}"
                )
            for _ in range(program.count):
                for instruction in program.instructions:
                    taken = {s: next(streams[s]) for s in streams if instruction.reads(s)}
                    result = self.execute(instruction, taken)
                    if instruction.emit:
                        out.append(to_half(result))
        return np.array(out, np.float16).reshape(len(out), *self.shape)

    def execute(self, instruction: Instruction, streams: dict[Source, Private]) -> Private:
        """Run one instruction; ``streams`` holds the word of each stream that it reads."""
        constant = np.array(instruction.constant, np.float32)
        values = {Source.CONSTANT: constant, **streams}
        values |= {Source(i): register for i, register in enumerate(self.registers)}
        operands = [np.broadcast_to(values[s], self.shape) for s in instruction.sources]
        result = self._compute(instruction.op, *operands)
        self.registers[instruction.dst] = result
        if instruction.accumulate:
            self.accumulator.add(result)
        return result

    def _compute(self, op: Op, *operands: Private) -> Private:
        if op in (Op.READ, Op.TAKE, Op.SUM):
            result = self.accumulator.read()
            if op != Op.READ:
                self.accumulator.clear()
            return fold(result) if op == Op.SUM else result
        a = operands[0]
        if op == Op.MOVE:
            return a.copy()
        if op == Op.PEAK:
            peak = a
            for lane in range(1, a.shape[-1]):
                peak = maximum(peak[..., :1], a[..., lane : lane + 1])
            return np.broadcast_to(peak[..., :1], self.shape)
        if op == Op.MAXIMUM:
            return maximum(a, operands[1])
        if op == Op.ADD:
            return add(a, operands[1])
        if op == Op.SUBTRACT:
            return add(a, -operands[1])
        if op == Op.MULTIPLY:
            return multiply(a, operands[1])
        return self.unary(FUNCTIONS[op - Op.EXP], a)
