"""What the engines do to the buffer: each instruction at once, in terms of the golden units."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dstar.gen.config import Config
from dstar.golden.accumulate import Int64, exact_matmul
from dstar.golden.output import dequantize
from dstar.golden.quantize import difference, quantize, reconstruct
from dstar.golden.vpu.float import from_bits
from dstar.golden.vpu.isa import Instruction as VectorInstruction
from dstar.golden.vpu.isa import Op, Program, Source
from dstar.golden.vpu.vpu import VPU

from .fields import IsaError, Status
from .geometry import Geometry
from .isa import Instruction, Opcode
from .memory import Memory
from .table import Row, table_of

Half = npt.NDArray[np.float16]


@dataclass(frozen=True, eq=False)
class HeldTile:
    """An encoded tile as integers: ``units`` (rows, channels) in units of ``2**-finest``."""

    units: Int64
    finest: int


@dataclass
class Units:
    """Buffer, bin table, held tiles, column sums and VPU of a core.

    ``nonfinite``, ``saturated``: sticky flags of QPU and output path.  ``bytes_read``,
    ``bytes_written``: by LOAD and STORE.
    """

    cfg: Config
    memory: Memory
    nonfinite: bool = False
    saturated: bool = False
    bytes_read: int = 0
    bytes_written: int = 0
    tiles: deque[HeldTile] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.geometry = Geometry(self.cfg)
        array, core = self.cfg.array, self.cfg.core
        self.buffer: npt.NDArray[np.uint8] = np.zeros(
            (self.geometry.words, self.geometry.word_bytes), np.uint8
        )
        self.table: list[Row | None] = [None] * 16
        self.sums: Int64 = np.zeros((core.columns, array.rows), np.int64)
        self.vpu = VPU(array.rows, self.cfg.vector)
        self.body: list[VectorInstruction] = []

    def words(self, first: int, count: int) -> Half:
        """A view of words as token vectors: binary16 (count, rows)."""
        return self.buffer[first : first + count].view(np.float16)

    def run(self, i: Instruction) -> Callable[[], None] | None:
        """Carry an instruction out; of a MULTIPLY only the reading of its weights.

        Returns
        -------
        A MULTIPLY's rest, else None.

        Raises
        ------
        IsaError
            ``TABLE``, ``TILES`` or ``RANGE``.
        BusError
            From the memory.
        """
        if i.opcode == Opcode.MULTIPLY:
            return self._multiply(i)
        {
            Opcode.LOAD: self._move,
            Opcode.STORE: self._move,
            Opcode.TABLE: self._table,
            Opcode.QUANTIZE: self._quantize,
            Opcode.OPERATE: self._operate,
            Opcode.VECTOR: self._vector,
        }[i.opcode](i)
        return None

    def _move(self, i: Instruction) -> None:
        v = i.operands
        size = v["length"] * self.geometry.word_bytes
        for row in range(v["rows"]):
            address = (v["address"] + row * v["stride"]) % 2**self.cfg.core.address_bits
            first = v["buffer"] + row * v["step"]
            part = self.buffer[first : first + v["length"]]
            if i.opcode == Opcode.LOAD:
                part[:] = self.memory.read(address, size).reshape(part.shape)
                self.bytes_read += size
            else:
                self.memory.write(address, part.tobytes())
                self.bytes_written += size

    def _table(self, i: Instruction) -> None:
        self.table[i["index"]] = (i["threshold"], i["slices"], i["exponent"])

    def _quantize(self, i: Instruction) -> None:
        v = i.operands
        table = table_of(self.table, self.cfg)
        x = np.ascontiguousarray(self.words(v["x"], v["channels"]).T)
        before = self.words(v["reference"], v["channels"]).T if not v["keyframe"] else None
        before = None if before is None else np.ascontiguousarray(before)
        q = quantize(difference(x, before), table, self.cfg.array.rows)
        self.nonfinite |= q.nonfinite
        units = q.q.astype(np.int64) << (table.finest - q.exponent.astype(np.int64)) * (
            q.precision > 0
        )
        after, lost = (x, False) if v["previous"] else reconstruct(before, q)
        self.saturated |= lost
        if v["write"]:
            self.words(v["next"], v["channels"])[:] = after.T
        self.tiles.append(HeldTile(units, table.finest))

    def _multiply(self, i: Instruction) -> Callable[[], None]:
        v, geometry, cols = i.operands, self.geometry, self.cfg.array.cols
        per_word, words = geometry.rows_per_word, geometry.weight_words(v["channels"])
        weights = []
        for tile in range(v["tiles"]):
            first = v["weights"] + tile * v["weight_step"]
            rows = self.buffer[first : first + words, : per_word * cols].reshape(-1, cols)
            weights.append(rows[: v["channels"]].view(np.int8))
        matrix = np.concatenate(weights, axis=1)
        return lambda: self._products(i, matrix)

    def _products(self, i: Instruction, weights: npt.NDArray[np.int8]) -> None:
        v, tile = i.operands, self.tiles[0]
        if tile.units.shape[1] != v["channels"]:
            raise IsaError(
                Status.TILES,
                f"channels must be those of the tile ({tile.units.shape[1]}), got {v['channels']}",
            )
        if tile.finest != v["finest"]:
            raise IsaError(
                Status.TABLE,
                f"finest must be that of the bin table ({tile.finest}), got {v['finest']}",
            )
        count = v["tiles"] * self.cfg.array.cols
        kept = self.sums[v["base"] : v["base"] + count]
        total = exact_matmul(tile.units, weights).T
        kept[:] = total if v["first"] else kept + total
        if v["last"]:
            scale, bias = self._parameters(v["parameters"], v["tiles"])
            addend = bias if v["keyframe"] else self.words(v["before"], count).T
            y, over = dequantize(kept.T, v["finest"], scale, addend)
            self.saturated |= over
            self.words(v["output"], count)[:] = y.T
        if v["release"]:
            self.tiles.popleft()

    def _parameters(self, first: int, tiles: int) -> tuple[npt.NDArray[np.float32], Half]:
        """Scales and biases of column tiles."""
        each = self.geometry.parameter_words
        used = 4 * self.geometry.parameters_per_word
        words = self.buffer[first : first + tiles * each, :used]
        pairs = np.ascontiguousarray(words).view(np.uint16).reshape(tiles, -1, 2)
        pairs = pairs[:, : self.cfg.array.cols]
        scale = (pairs[..., 0].reshape(-1).astype(np.uint32) << 16).view(np.float32)
        return scale, np.ascontiguousarray(pairs[..., 1]).reshape(-1).view(np.float16)

    def _operate(self, i: Instruction) -> None:
        bits = np.array([i["constant"]], np.uint32)
        self.body.append(
            VectorInstruction(
                Op(i["op"]),
                i["dst"],
                Source(i["a"]),
                Source(i["b"]),
                accumulate=bool(i["accumulate"]),
                emit=bool(i["emit"]),
                constant=float(from_bits(bits)[0]),
            )
        )

    def _vector(self, i: Instruction) -> None:
        self._operate(i)
        v, count = i.operands, i["count"]
        program = Program(tuple(self.body), count)
        self.body = []
        each = program.words(Source.INPUT) // count
        runs, inputs = np.arange(count)[:, None], np.arange(each)[None]
        address = (v["input"] + runs * v["outer"] + inputs * v["inner"]).reshape(-1)
        scalars, rows = program.words(Source.SCALAR), self.cfg.array.rows
        ends = {
            "input": int(address.max(initial=-1)) + 1,
            "scalar": v["scalar"] + -(-scalars // rows) if scalars else 0,
            "output": v["output"] + program.emitted if program.emitted else 0,
        }
        for name, end in ends.items():
            if end > self.geometry.words:
                raise IsaError(
                    Status.RANGE, f"{name} must end within {self.geometry.words} words, got {end}"
                )
        vectors = self.words(0, self.geometry.words)[address]
        words = self.words(v["scalar"], -(-scalars // rows)).reshape(-1)[:scalars]
        given = words.copy()
        out = self._body_at_once(program, vectors) if _independent(program) else None
        if out is None:
            out = self.vpu.run([program], vectors, given)
        self.words(v["output"], len(out))[:] = out

    def _body_at_once(self, program: Program, vectors: Half) -> Half:
        """All runs of a program without state as one run on many lanes."""
        rows, count = self.cfg.array.rows, program.count
        many = VPU((count, rows), self.cfg.vector)
        each = len(vectors) // count
        given = vectors.reshape(count, each, rows).swapaxes(0, 1)
        out = many.run([Program(program.instructions)], given)
        for dst in {i.dst for i in program.instructions}:
            self.vpu.registers[dst] = many.registers[dst][-1]
        return out.swapaxes(0, 1).reshape(-1, rows)


def _independent(program: Program) -> bool:
    """Whether a program's runs need nothing of each other, nor of before, nor scalars."""
    written: set[int] = set()
    for i in program.instructions:
        if i.accumulate or i.op in (Op.READ, Op.TAKE, Op.SUM) or i.reads(Source.SCALAR):
            return False
        if any(int(s) < Source.INPUT and int(s) not in written for s in i.sources):
            return False
        written.add(i.dst)
    return True
