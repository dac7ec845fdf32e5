"""Random legal programs of the core, and memory for them.

Instructions that use the same words, at least one of them writing, are ordered by a semaphore of
their own, or by SYNC when none is left, except where their engine does it (docs/isa.md); so every
order that the core allows gives the same result.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dstar.gen.config import Config
from dstar.golden.bins import BinTable
from dstar.golden.mpc.geometry import Geometry
from dstar.golden.mpc.isa import Engine, Instruction, Opcode, encode_program
from dstar.golden.mpc.memory import Memory
from dstar.golden.mpc.table import table_program
from dstar.golden.vpu.isa import Op, Source

#: Operations that keep finite values finite.
OPS = (Op.MOVE, Op.MAXIMUM, Op.SIGMOID, Op.SILU, Op.GELU, Op.GELU_TANH)


@dataclass
class _Flying:
    """An instruction since the last SYNC: its place in the program, engine and words."""

    place: int
    engine: Engine
    reads: set[int]
    writes: set[int]


@dataclass
class RandomProgram:
    """Draws a program; ``instructions`` is it, END included.

    The buffer is cut into words of binary16 numbers, of weights and of parameters, so that
    nothing undefined is computed; memory likewise, and stores go to a part that nothing reads.
    """

    cfg: Config
    rng: np.random.Generator
    length: int
    base: int = 0x4000
    instructions: list[Instruction] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.geometry = Geometry(self.cfg)
        words = self.geometry.words
        self.weights = range(words // 2, words - words // 8)
        self.parameters = range(words - words // 8, words)
        self.halves = range(words // 2)
        self.flying: list[_Flying] = []
        self.semaphore = 0
        self.tiles: list[tuple[int, int]] = []
        self.open: tuple[int, int, int] | None = None
        self.table = BinTable.uniform(int(self.rng.integers(2, 8)))
        self.instructions += table_program(self.table)
        # Every word of the buffer gets a value.
        for part in (self.halves, self.weights, self.parameters):
            self._load(part, part.start, len(part))
        self.sync()
        makers = (self.load, self.load, self.store, self.quantize, self.multiply, self.vector)
        while len(self.instructions) < self.length:
            makers[int(self.rng.integers(len(makers)))]()
        while self.tiles:
            self.multiply(release=True)
        self.instructions.append(Instruction.make(Opcode.END))

    # Memory: a copy of what the buffer's words may hold, then as many words to store to.

    def memory(self, address: int) -> Memory:
        """Memory with data, and the program at ``address``, beyond the data."""
        geometry = self.geometry
        memory = Memory(1 << 20, base=self.base, beat=self.cfg.core.axi_bytes)
        words = np.zeros((geometry.words, geometry.word_bytes), np.uint8)
        halves = self.rng.normal(size=(len(self.halves), self.cfg.array.rows))
        words[self.halves] = halves.astype(np.float16).view(np.uint8)
        shape = (len(self.weights), geometry.word_bytes)
        words[self.weights] = self.rng.integers(-127, 128, shape).astype(np.int8).view(np.uint8)
        pairs = np.zeros((len(self.parameters), geometry.word_bytes // 4, 2), np.uint16)
        pairs[..., 0] = self.rng.integers(0x3900, 0x3C00, pairs.shape[:2])
        bias = self.rng.normal(size=pairs.shape[:2]).astype(np.float16)
        pairs[..., 1] = bias.view(np.uint16)
        words[self.parameters] = pairs.view(np.uint8).reshape(len(self.parameters), -1)
        memory.write(self.base, words.tobytes())
        memory.write(address, encode_program(self.instructions))
        return memory

    # Order.

    def add(
        self,
        i: Instruction,
        *,
        reads: set[int],
        writes: set[int],
        prefix: tuple[Instruction, ...] = (),
    ) -> None:
        """Append an instruction behind all that it must not overtake, and right after `prefix`."""
        before = [
            f for f in self.flying
            if reads & f.writes or (f.engine != i.engine and writes & (f.reads | f.writes))
        ]  # fmt: skip
        if self.semaphore + len(before) > self.cfg.core.semaphores:
            self.sync()
            before = []
        wait = 0
        for f in before:
            other = self.instructions[f.place]
            bit = 1 << self.semaphore
            self.instructions[f.place] = Instruction.make(
                other.opcode, {**other.operands, "signal": other["signal"] | bit}
            )
            wait |= bit
            self.semaphore += 1
        self.instructions += prefix
        self.flying.append(_Flying(len(self.instructions), i.engine, reads, writes))
        self.instructions.append(Instruction.make(i.opcode, {**i.operands, "wait": wait}))

    def sync(self) -> None:
        """Wait for everything."""
        self.instructions.append(Instruction.make(Opcode.SYNC))
        self.flying, self.semaphore = [], 0

    def span(self, part: range, size: int) -> tuple[int, set[int]]:
        """``size`` words somewhere in a part of the buffer."""
        first = int(self.rng.integers(part.start, part.stop - size + 1))
        return first, set(range(first, first + size))

    # Instructions.

    def _load(self, part: range, first: int, length: int) -> None:
        offset = int(self.rng.integers(part.start, part.stop - length + 1))
        load = Instruction.make(
            Opcode.LOAD, address=self.base + offset * self.geometry.word_bytes, buffer=first,
            length=length, rows=1,
        )  # fmt: skip
        self.add(load, reads=set(), writes=set(range(first, first + length)))

    def load(self) -> None:
        """Words of one kind, in a row or, of numbers, in several rows."""
        part = (self.halves, self.weights, self.parameters)[int(self.rng.integers(3))]
        rows, gap = (int(n) for n in self.rng.integers(1, 4, 2))
        length = int(self.rng.integers(1, max(2, len(part) // 10)))
        if part != self.halves:
            first, _ = self.span(part, length)
            self._load(part, first, length)
            return
        step = length + gap - 1
        first, _ = self.span(part, (rows - 1) * step + length)
        word = self.geometry.word_bytes
        load = Instruction.make(
            Opcode.LOAD, address=self.base, stride=length * word, buffer=first, step=step,
            length=length, rows=rows,
        )  # fmt: skip
        words = {first + r * step + w for r in range(rows) for w in range(length)}
        self.add(load, reads=set(), writes=words)

    def store(self) -> None:
        """Words to the part of memory that nothing reads."""
        length = int(self.rng.integers(1, len(self.halves) // 4))
        rows = int(self.rng.integers(1, 3))
        first, _ = self.span(self.halves, length)
        word = self.geometry.word_bytes
        address = self.base + self.geometry.words * word
        store = Instruction.make(
            Opcode.STORE, address=address + word * int(self.rng.integers(length)),
            stride=word * length, buffer=first, length=length, rows=rows,
        )  # fmt: skip
        self.add(store, reads=set(range(first, first + length)), writes=set())

    def quantize(self) -> None:
        """A tile, if the MPU has a place."""
        if len(self.tiles) == 2:
            return
        most = min(self.cfg.numeric.k_tile, len(self.halves) // 4)
        channels = int(self.rng.integers(1, most + 1))
        (x, r1), (reference, r2), (after, w) = (self.span(self.halves, channels) for _ in range(3))
        if self.rng.integers(2):
            after, w = reference, r2
        keyframe, previous, write = (int(b) for b in self.rng.integers(0, 2, 3))
        i = Instruction.make(
            Opcode.QUANTIZE, x=x, reference=reference, next=after, channels=channels,
            keyframe=keyframe, previous=previous, write=write,
        )  # fmt: skip
        # Reads run ahead of writes by an unknown number of channels.
        if write and ((w & r1 and after != x) or (not keyframe and w & r2 and after != reference)):
            return
        self.add(i, reads=r1 if keyframe else r1 | r2, writes=w if write else set())
        self.tiles.append((channels, self.table.finest))

    def multiply(self, *, release: bool | None = None) -> None:
        """A product of the oldest tile, if there is one."""
        if not self.tiles:
            return
        cols, geometry = self.cfg.array.cols, self.geometry
        channels, finest = self.tiles[0]
        size = geometry.weight_words(channels)
        most = min(geometry.column_tiles, 2, len(self.weights) // size)
        if most == 0:
            return
        tiles = int(self.rng.integers(1, most + 1))
        base = cols * int(self.rng.integers(0, geometry.column_tiles - tiles + 1))
        first = 1
        if self.open is not None and self.open[1] <= most and self.rng.integers(2):
            base, tiles, finest_before = self.open
            first = int(finest_before != finest)
        last, keyframe = (int(b) for b in self.rng.integers(0, 2, 2))
        if release is None:
            release = bool(self.rng.integers(2))
        weights, reads = self.span(self.weights, size * tiles)
        writes: set[int] = set()
        parameters = before = output = 0
        if last:
            parameters, more = self.span(self.parameters, tiles * geometry.parameter_words)
            reads |= more
            output, writes = self.span(self.halves, tiles * cols)
            if not keyframe:
                before, more = output, writes
                reads |= more
        i = Instruction.make(
            Opcode.MULTIPLY, weights=weights, weight_step=size, channels=channels, tiles=tiles,
            base=base, first=first, last=last, keyframe=keyframe, release=release, finest=finest,
            parameters=parameters, before=before, output=output,
        )  # fmt: skip
        self.add(i, reads=reads, writes=writes)
        self.open = None if last else (base, tiles, finest)
        if release:
            self.tiles.pop(0)

    def vector(self) -> None:
        """One or two operations on some words; two inputs for a maximum."""
        count = int(self.rng.integers(1, 6))
        op = OPS[int(self.rng.integers(len(OPS)))]
        two = op == Op.MAXIMUM
        source, reads = self.span(self.halves, 2 * count if two else count)
        target, writes = self.span(self.halves, count)
        if reads & writes:
            return
        move = Instruction.make(Opcode.OPERATE, op=Op.MOVE, dst=1, a=Source.INPUT)
        i = Instruction.make(
            Opcode.VECTOR, op=op, a=Source.INPUT, b=Source.R1 if two else 0, emit=1, count=count,
            input=source, inner=count if two else 0, outer=1, output=target,
        )  # fmt: skip
        self.add(i, reads=reads, writes=writes, prefix=(move,) if two else ())
