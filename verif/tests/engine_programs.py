"""Random legal instructions for the computing engines, and a buffer's contents for them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dstar.gen.config import Config
from dstar.golden.bins import BinTable
from dstar.golden.mpc.geometry import Geometry
from dstar.golden.mpc.isa import Instruction, Opcode
from dstar.golden.mpc.table import table_program
from dstar.golden.vpu.isa import Instruction as Operation
from dstar.golden.vpu.isa import Op, Source, nearest_constant

Bytes = npt.NDArray[np.uint8]

#: Parts of the buffer, in shares of it.  The engines run side by side, so none reads what another
#: writes.
SHARES = {"x": 4, "next": 3, "weights": 4, "parameters": 2, "before": 2, "output": 2, "input": 2,
          "scalar": 1, "result": 2}  # fmt: skip


@dataclass(frozen=True)
class Region:
    """Words from ``start`` to before ``end``."""

    start: int
    end: int

    def place(self, rng: np.random.Generator, words: int) -> int:
        """A random place for so many words."""
        return int(rng.integers(self.start, self.end - words + 1))


def apart(a: int, b: int, words: int) -> bool:
    """Whether two operands of so many words are one or do not meet."""
    return a == b or abs(a - b) >= words


class Programs:
    """Draws instructions."""

    def __init__(self, cfg: Config, rng: np.random.Generator) -> None:
        self.cfg, self.rng, self.geometry = cfg, rng, Geometry(cfg)
        self.uses = np.zeros(cfg.core.columns, np.int64)
        self.finest = 0
        total, at = sum(SHARES.values()), 0
        self.regions: dict[str, Region] = {}
        for name, share in SHARES.items():
            end = at + self.geometry.words * share // total
            self.regions[name] = Region(at, end)
            at = end

    def place(self, name: str, words: int) -> int:
        return self.regions[name].place(self.rng, words)

    def contents(self) -> Bytes:
        """Numbers of every size; among the activations some that are none."""
        rng, rows = self.rng, self.cfg.array.rows
        words = rng.integers(0, 256, (self.geometry.words, 2 * rows), dtype=np.uint8)
        halves = words.view(np.float16)
        scale = np.exp2(rng.integers(-12, 4, (len(words), 1)))
        for name in ("x", "next", "before", "output", "input", "scalar", "result"):
            part = slice(self.regions[name].start, self.regions[name].end)
            halves[part] = rng.standard_normal(halves[part].shape) * scale[part]
        part = slice(self.regions["x"].start, self.regions["x"].end)
        few = rng.random(halves[part].shape) < 0.002
        halves[part][few] = rng.choice(np.array([np.inf, -np.inf, np.nan, 65504]), int(few.sum()))
        part = slice(self.regions["parameters"].start, self.regions["parameters"].end)
        pairs = words[part].view(np.uint16).reshape(len(words[part]), -1, 2)
        exponents = rng.integers(100, 132, pairs.shape[:2])
        pairs[..., 0] = exponents << 7 | rng.integers(0, 128, pairs.shape[:2])
        bias = rng.standard_normal(pairs.shape[:2]).astype(np.float16)
        pairs[..., 1] = bias.view(np.uint16)
        return words

    def table(self) -> list[Instruction]:
        """A new bin table."""
        span, kind = self.cfg.numeric.exponent_span, self.rng.integers(3)
        if kind == 0:
            table = BinTable.keyframe(float(self.rng.uniform(0.5, 20)), span=span)
        else:
            maker = BinTable.paper if kind == 1 else BinTable.uniform
            table = maker(int(self.rng.integers(1, 9)), span=span)
        self.finest = table.finest
        return table_program(table)

    def quantize(self, channels: int) -> Instruction:
        rng = self.rng
        while True:
            x, after = self.place("x", channels), self.place("next", channels)
            reference = self.place(rng.choice(["x", "next"]), channels)
            choice = rng.integers(4)
            if choice == 0:
                reference = after
            elif choice == 1:
                x = self.place("next", channels)
            if apart(x, after, channels) and apart(reference, after, channels):
                break
        return Instruction.make(
            Opcode.QUANTIZE,
            x=x,
            reference=reference,
            next=after,
            channels=channels,
            keyframe=int(rng.random() < 0.3),
            previous=int(rng.random() < 0.2),
            write=int(rng.random() < 0.8),
        )

    def multiply(self, channels: int, *, release: bool) -> Instruction:
        rng, cfg, geometry = self.rng, self.cfg, self.geometry
        cols, words = cfg.array.cols, geometry.weight_words(channels)
        tiles = int(rng.integers(1, min(4, geometry.column_tiles) + 1))
        step = int(rng.integers(0, words + 3))
        base = cols * int(rng.integers(0, geometry.column_tiles - tiles + 1))
        kept = slice(base, base + tiles * cols)
        uses = self.uses[kept]
        first = not uses.all() or uses.max() >= cfg.core.k_tiles // 2 or rng.random() < 0.5
        last = rng.random() < 0.6
        self.uses[kept] = 0 if last else 1 if first else uses + 1
        output = self.place("output", tiles * cols)
        while True:
            before = self.place(rng.choice(["before", "output"]), tiles * cols)
            if rng.random() < 0.3:
                before = output
            if apart(before, output, tiles * cols):
                break
        return Instruction.make(
            Opcode.MULTIPLY,
            weights=self.place("weights", (tiles - 1) * step + words),
            weight_step=step,
            channels=channels,
            tiles=tiles,
            base=base,
            first=int(first),
            last=int(last),
            keyframe=int(rng.random() < 0.3),
            release=int(release),
            finest=self.finest,
            parameters=self.place("parameters", tiles * geometry.parameter_words),
            before=before,
            output=output,
        )

    def matrix(self, tiles: int) -> list[Instruction]:
        """Tiles, each quantized and then multiplied once or more."""
        program, rng = self.table(), self.rng
        for _ in range(tiles):
            if rng.random() < 0.1:
                program += self.table()
            k = self.cfg.numeric.k_tile
            channels = int(rng.choice([1, k, int(rng.integers(1, k + 1))]))
            program.append(self.quantize(channels))
            products = int(rng.integers(1, 4))
            for number in range(products):
                program.append(self.multiply(channels, release=number == products - 1))
        return program

    def operation(self, opcode: Opcode, **more: int) -> Instruction:
        """An OPERATE or VECTOR of any operation."""
        rng = self.rng
        a, b = (int(v) for v in rng.integers(7, size=2))
        if {a, b} == {Source.SCALAR, Source.CONSTANT}:
            b = a
        constant = Operation(Op.MOVE, constant=nearest_constant(float(rng.standard_normal())))
        values = {
            "op": int(rng.integers(len(Op))),
            "dst": int(rng.integers(4)),
            "a": a,
            "b": b,
            "accumulate": int(rng.random() < 0.3),
            "emit": int(rng.random() < 0.5),
            "constant": constant.constant_bits,
        }
        return Instruction.make(opcode, values | more)

    def vector(self) -> list[Instruction]:
        """One program."""
        rng = self.rng
        body = [
            self.operation(Opcode.OPERATE)
            for _ in range(int(rng.integers(0, min(4, self.cfg.vector.program))))
        ]
        last = self.operation(Opcode.VECTOR)
        count = int(rng.integers(1, 9))
        inner, outer = (int(rng.integers(0, 3)) for _ in range(2))
        reach = 4 * 2 + 9 * 2 + 1
        while True:
            given = self.place(str(rng.choice(["input", "result"])), reach)
            output = self.place("result", 5 * count)
            if output + 5 * count <= given or given + reach <= output:
                break
        run = {"count": count, "inner": inner, "outer": outer, "input": given, "output": output}
        run["scalar"] = self.place("scalar", -(-5 * count // self.cfg.array.rows))
        return [*body, Instruction.make(Opcode.VECTOR, {**last.operands, **run})]

    def vectors(self, programs: int) -> list[Instruction]:
        """The VPU's registers and accumulators set, then programs."""
        start = [
            self.operation(
                Opcode.VECTOR, op=Op.MOVE, dst=i, a=Source.INPUT, accumulate=0, emit=0, count=1,
                input=self.place("input", 1),
            )
            for i in range(4)
        ]  # fmt: skip
        take = {"op": Op.TAKE, "dst": 0, "accumulate": 0, "emit": 0, "count": 1}
        start.append(self.operation(Opcode.VECTOR, **take))
        return start + [i for _ in range(programs) for i in self.vector()]
