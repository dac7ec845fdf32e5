"""Runs instructions on the computing engines and compares with the golden units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from amaranth.hdl import Shape

from dstar.gen.config import Config
from dstar.golden.mpc.isa import Engine, Instruction
from dstar.golden.mpc.memory import Memory
from dstar.golden.mpc.units import Units
from dstar.rtl.mpc.decode import command_layout
from dstar.verif.harness import Dut
from dstar.verif.player import PlayResult, play
from dstar.verif.tests.engine_bench import ENGINES, EngineBench
from dstar.verif.tests.rtl_bench import build_bench
from dstar.verif.verilate import Build

Bytes = npt.NDArray[np.uint8]


def command_words(cfg: Config, engine: Engine, program: Sequence[Instruction]) -> Bytes:
    """An engine's instructions as words of its command stream."""
    layout = command_layout(cfg, engine)
    size = -(-layout.size // 8)
    words = []
    for instruction in program:
        values = {"opcode": int(instruction.opcode), **instruction.operands}
        word = 0
        for name, item in layout:
            width = Shape.cast(item.shape).width
            word |= (values.get(name, 0) & ((1 << width) - 1)) << item.offset
        words.append(np.frombuffer(word.to_bytes(size, "little"), np.uint8))
    return np.stack(words) if words else np.zeros((0, size), np.uint8)


def load_words(cfg: Config, contents: Bytes) -> Bytes:
    """Words of ``load`` that fill the buffer from word 0 on."""
    bits = (cfg.core.words - 1).bit_length()
    size = -(-(bits + 8 * contents.shape[1]) // 8)
    words = [
        (at | int.from_bytes(row.tobytes(), "little") << bits).to_bytes(size, "little")
        for at, row in enumerate(contents)
    ]
    return np.frombuffer(b"".join(words), np.uint8).reshape(len(contents), size)


def address_words(cfg: Config, addresses: npt.NDArray[np.int64]) -> Bytes:
    """Words of ``read`` and ``noise``."""
    size = -(-(cfg.core.words - 1).bit_length() // 8)
    return addresses.astype("<u4").view(np.uint8).reshape(-1, 4)[:, :size].copy()


@dataclass(frozen=True)
class Bench:
    """A compiled :class:`EngineBench`."""

    build: Build
    dut: Dut
    cfg: Config

    def run(
        self,
        contents: Bytes,
        program: Sequence[Instruction],
        *,
        faults: int = 0,
        noise: npt.NDArray[np.int64] | None = None,
        **options: Any,
    ) -> PlayResult:
        """Fill the buffer, carry the instructions out, read the buffer back."""
        cfg, inputs = self.cfg, {"load": load_words(self.cfg, contents)}
        for engine in ENGINES:
            own = [i for i in program if i.engine == engine]
            inputs[engine.name.lower()] = command_words(cfg, engine, own)
        every = np.arange(0 if faults else cfg.core.words)
        inputs["read"] = address_words(cfg, every)
        if noise is not None:
            inputs["noise"] = address_words(cfg, noise)
        return play(
            self.build,
            self.dut,
            inputs=inputs,
            expect={"word": len(every), "fault": faults},
            scalars={"loads": len(contents), "commands": len(program)},
            max_cycles=400_000,
            **options,
        )

    def check(self, contents: Bytes, program: Sequence[Instruction], **options: Any) -> PlayResult:
        """The same, and every word of the buffer must be the golden model's."""
        units = Units(self.cfg, Memory(64))
        units.buffer[:] = contents
        with np.errstate(all="ignore"):
            for instruction in program:
                instruction.check(self.cfg)
                rest = units.run(instruction)
                if rest is not None:
                    rest()
        result = self.run(contents, program, **options)
        np.testing.assert_array_equal(result.outputs["word"], units.buffer)
        return result


def make(folder: Path, cfg: Config) -> Bench:
    """Compile the bench of a configuration."""
    return Bench(*build_bench("engine_bench", EngineBench(cfg), folder, cfg), cfg)
