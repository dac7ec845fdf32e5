"""Layers on the golden core, step by step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dstar.gen.config import Config
from dstar.golden.linear import FMDQLinear, LinearStep
from dstar.golden.mpc.compiler import compile_linear
from dstar.golden.mpc.core import GoldenCore
from dstar.golden.mpc.image import LayerImage
from dstar.golden.mpc.isa import Instruction, Opcode, encode_program
from dstar.golden.mpc.layout import Allocator, LayerShape
from dstar.golden.mpc.memory import Memory
from dstar.golden.mpc.plan import plan_layer
from dstar.golden.vpu.isa import Op

Half = npt.NDArray[np.float16]
END = Instruction.make(Opcode.END)


def same(got: Half, want: Half) -> bool:
    """Whether two binary16 arrays are equal in every bit."""
    return got.shape == want.shape and bool((got.view(np.uint16) == want.view(np.uint16)).all())


class LayersOnCore:
    """Layers, each but the last followed by GELU (``gelu``), on one core."""

    def __init__(
        self,
        cfg: Config,
        layers: Sequence[FMDQLinear],
        tokens: int,
        *,
        order: np.random.Generator | None = None,
        gelu: Op = Op.GELU,
        size: int = 1 << 22,
    ) -> None:
        self.cfg, self.layers, self.gelu = cfg, layers, gelu
        self.memory = Memory(size, base=0x8000, beat=cfg.core.axi_bytes)
        allocator = Allocator(self.memory.base, self.memory.end, 4096)
        self.program = allocator.take(size // 2, "programs")
        self.images: list[LayerImage] = []
        for number, layer in enumerate(layers):
            out, inner = layer.weight.q.shape
            shape = LayerShape(tokens=tokens, inner=inner, out=out)
            plan = plan_layer(cfg, shape, gelu=number + 1 < len(layers))
            after = self.images[-1] if self.images else None
            self.images.append(
                LayerImage.place(
                    plan,
                    self.memory,
                    allocator,
                    weight=layer.weight,
                    bias=layer.bias,
                    after=after,
                )
            )
        self.core = GoldenCore(cfg, self.memory, order)

    def compile(self, steps: Sequence[LinearStep]) -> list[Instruction]:
        """The program of one denoising step."""
        program = []
        for image, layer, step in zip(self.images, self.layers, steps, strict=True):
            program += compile_linear(
                image.plan,
                image.places,
                keyframe=step.keyframe,
                table=step.table,
                mode=layer.mode,
                gelu=self.gelu if image.plan.gelu else None,
            )
        return [*program, END]

    def run(self, program: Sequence[Instruction]) -> None:
        """Write a program to memory and run it."""
        self.memory.write(self.program, encode_program(program))
        self.core.run(self.program, len(program))
