"""What the core runs of a dump: layers and chains of two, cut into tokens that one program fits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dstar.gen.config import SLICE_BITS, Config
from dstar.golden.linear import FMDQLinear, LayerTables
from dstar.golden.mpc.compiler import compile_linear
from dstar.golden.mpc.image import LayerImage
from dstar.golden.mpc.isa import INSTRUCTION_BYTES, Instruction, Opcode, encode_program
from dstar.golden.mpc.layout import Allocator, Half, LayerShape, pack_vectors, unpack_vectors
from dstar.golden.mpc.memory import Memory
from dstar.golden.mpc.plan import Plan, plan_layer
from dstar.golden.mpc.registers import REGISTERS
from dstar.golden.vpu.isa import Op
from dstar.golden.vpu.programs import unary
from dstar.golden.vpu.vpu import VPU
from dstar.verif.compare.report import CompareError, Figures
from dstar.verif.compare.select import GoldenStep, Selection
from dstar.verif.mpc.session import Bytes, Program

#: The function between the layers of a chain.
GELU = Op.GELU_TANH
#: Last parts of the names of two layers with a GELU between them.
CHAINS = (("fc1", "fc2"), ("net.0.proj", "net.2"))
#: Longest program, in instructions.
PROGRAM_LENGTH = (1 << REGISTERS["PROGRAM_LENGTH"]["VALUE"].width) - 1
#: First address of the memory: not zero, so that a lost address is found.
BASE = 0x10000
_PAGE = 4096
_END = Instruction.make(Opcode.END)


def layers_and_chains(names: Sequence[str]) -> list[tuple[str, ...]]:
    """Every layer, and behind the second of a chain both of them."""
    found: list[tuple[str, ...]] = []
    for name in names:
        found.append((name,))
        for first, second in CHAINS:
            before = name.removesuffix(second) + first
            if name.endswith(f".{second}") and before in names:
                found.append((before, name))
    return found


def label(names: Sequence[str]) -> str:
    """Name of a layer or chain in the report."""
    if len(names) == 1:
        return names[0]
    end = next(second for _, second in CHAINS if names[1].endswith(f".{second}"))
    return f"{names[0]}+gelu+{end}"


def gelu(y: Half, cfg: Config) -> Half:
    """The golden VPU's GELU of (tokens, channels)."""
    vectors = np.ascontiguousarray(y.T)[:, None, :]
    return VPU((1, len(y)), cfg.vector).run(unary(GELU, len(vectors)), vectors)[:, 0].T


@dataclass(frozen=True, kw_only=True, eq=False)
class StepOfAll:
    """One step of a layer or of each layer of a chain; ``gelu`` between them, else None."""

    layers: tuple[GoldenStep, ...]
    gelu: Half | None


def golden_steps(
    chosen: Selection, index: int, names: tuple[str, ...], tables: Mapping[str, LayerTables]
) -> Iterator[StepOfAll]:
    """The golden model from step 0 on; the selected steps of layer or chain ``index``.

    Figures of a chain are its second layer's, which is compared with the dump's output although
    its input is the first layer's.

    Raises
    ------
    DumpError, CompareError
        As :meth:`~dstar.verif.compare.select.Selection.golden`.
    """
    last = replace(chosen, names=names[-1:], figures=chosen.figures[index : index + 1])
    if len(names) == 1:
        for golden in last.golden(0, tables[names[0]]):
            yield StepOfAll(layers=(golden,), gelu=None)
        return
    first = replace(
        chosen,
        names=names[:1],
        steps=range(chosen.steps.stop),
        figures=(Figures(lanes=chosen.cfg.array.lanes),),
    ).golden(0, tables[names[0]])
    now: list[tuple[GoldenStep, Half]] = []

    def between(step: int) -> Half:
        golden = next(first)
        now[:] = [(golden, gelu(golden.result.y, chosen.cfg))]
        return now[0][1]

    for golden in last.golden(0, tables[names[1]], between):
        yield StepOfAll(layers=(now[0][0], golden), gelu=now[0][1])


@dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """Some tokens of a layer or chain, all compared steps: one run of the simulator.

    ``index``: of the layer or chain.  ``tokens``: which.  ``images``: a layer each.  ``steps``:
    golden, of all tokens.  ``programs``: a step each.
    """

    index: int
    tokens: slice
    memory: Memory
    images: tuple[LayerImage, ...]
    steps: Sequence[StepOfAll]
    programs: Sequence[Program]

    @property
    def products(self) -> int:
        """Tile products of a step."""
        return sum(image.plan.products for image in self.images)

    def slots(self, step: StepOfAll) -> int | None:
        """Lanes that hold a slice, over all beats of a step: every slice meets all column tiles.

        None where it is not known: a chain's missing tokens are not zero in its second layer.
        """
        rows = self.images[0].plan.tiling.geometry.cfg.array.rows
        if len(self.images) > 1 and (self.tokens.stop - self.tokens.start) % rows:
            return None
        tiles = slice(self.tokens.start // rows, -(-self.tokens.stop // rows))
        return sum(
            int(golden.result.precision[tiles].sum(dtype=np.int64))
            // SLICE_BITS
            * image.plan.tiling.column_tiles
            for image, golden in zip(self.images, step.layers, strict=True)
        )

    def tensors(self) -> Iterator[tuple[int, str, LayerImage, int]]:
        """What is read back after each step: layer, name, image, address."""
        for number, image in enumerate(self.images):
            yield number, "y", image, image.places.y
            yield number, "reference", image, image.places.reference
            if image.places.gelu is not None:
                yield number, "gelu", image, image.places.gelu


def _plans(cfg: Config, shapes: Sequence[LayerShape], tokens: int) -> list[Plan]:
    return [
        plan_layer(cfg, replace(shape, tokens=tokens), gelu=n + 1 < len(shapes))
        for n, shape in enumerate(shapes)
    ]


def _fitting(cfg: Config, shapes: Sequence[LayerShape]) -> list[Plan]:
    """Plans for as many tokens as one program can take, in whole tiles.

    Raises
    ------
    CompareError
        If not even one tile's program fits.
    CompileError
        If a layer does not fit the core at all.
    """
    rows, tokens = cfg.array.rows, shapes[0].tokens
    while True:
        plans = _plans(cfg, shapes, tokens)
        length = 1 + sum(plan.instructions for plan in plans)
        if length <= PROGRAM_LENGTH:
            return plans
        if tokens <= rows:
            raise CompareError(
                f"a program must have at most {PROGRAM_LENGTH} instructions, got {length} for "
                f"{tokens} tokens"
            )
        tokens = max(1, tokens * PROGRAM_LENGTH // length // rows) * rows


def parts(
    chosen: Selection, index: int, names: tuple[str, ...], tables: Mapping[str, LayerTables]
) -> Iterator[Part]:
    """The runs of a layer or chain.

    Raises
    ------
    DumpError, CompareError, CompileError
        If a tensor, layer or program is refused.
    """
    cfg, dump = chosen.cfg, chosen.dump
    shapes = [
        LayerShape(tokens=s.tokens, inner=s.in_features, out=s.out_features)
        for s in map(dump.layer, names)
    ]
    layers = [
        FMDQLinear(dump.w(name), dump.b(name), tables=tables[name], cfg=cfg) for name in names
    ]
    steps = list(golden_steps(chosen, index, names, tables))
    size = _fitting(cfg, shapes)[0].tiling.shape.tokens
    for start in range(0, shapes[0].tokens, size):
        tokens = slice(start, min(start + size, shapes[0].tokens))
        yield part_of(index, tokens, _plans(cfg, shapes, tokens.stop - start), layers, steps)


def part_of(
    index: int,
    tokens: slice,
    plans: Sequence[Plan],
    layers: Sequence[FMDQLinear],
    steps: Sequence[StepOfAll],
) -> Part:
    """Memory, images and programs of some tokens.

    ``plans``: of each layer, for so many tokens.  ``steps``: golden, of all tokens.
    """
    cfg = layers[0].cfg
    word = plans[0].tiling.geometry.word_bytes
    program_bytes = INSTRUCTION_BYTES * (1 + sum(plan.instructions for plan in plans))
    words = sum(
        2 * t.x_words() + 2 * t.y_words + t.weight_words + t.parameter_words
        for t in (plan.tiling for plan in plans)
    )
    size = program_bytes + words * word + (1 + 6 * len(plans)) * _PAGE
    memory = Memory(size, base=BASE, beat=cfg.core.axi_bytes)
    allocator = Allocator(BASE, memory.end, _PAGE)
    address = allocator.take(program_bytes, "programs")
    images: list[LayerImage] = []
    for plan, layer in zip(plans, layers, strict=True):
        after = images[-1] if images else None
        images.append(
            LayerImage.place(
                plan, memory, allocator, weight=layer.weight, bias=layer.bias, after=after
            )
        )
    for image, golden in zip(images, steps[0].layers, strict=True):
        if golden.reference is not None and golden.before is not None:
            rows, tiling = cfg.array.rows, image.plan.tiling
            memory.write(image.places.reference, pack_vectors(golden.reference[tokens], rows))
            memory.write(image.places.y, pack_vectors(golden.before[tokens], rows, tiling.columns))
    part = Part(index=index, tokens=tokens, memory=memory, images=tuple(images), steps=steps,
                programs=())  # fmt: skip
    return replace(part, programs=[_program(part, step, address) for step in steps])


def _program(part: Part, step: StepOfAll, address: int) -> Program:
    """A step: its program and activations in, outputs and references out."""
    instructions: list[Instruction] = []
    for image, golden in zip(part.images, step.layers, strict=True):
        instructions += compile_linear(
            image.plan,
            image.places,
            keyframe=golden.result.keyframe,
            table=golden.result.table,
            gelu=GELU if image.plan.gelu else None,
        )
    instructions.append(_END)
    places, rows = part.images[0].places, part.images[0].plan.tiling.geometry.cfg.array.rows
    x = pack_vectors(step.layers[0].x[part.tokens], rows, places.x_stride)
    code = np.frombuffer(encode_program(instructions), np.uint8)
    reads = []
    for _, what, image, at in part.tensors():
        tiling = image.plan.tiling
        words = tiling.x_words() if what == "reference" else tiling.y_words
        reads.append((at, words * tiling.geometry.word_bytes))
    bound = sum(image.plan.cost for image in part.images) + 40 * len(instructions)
    return Program(
        address=address,
        length=len(instructions),
        writes=[(address, code), (places.x, x)],
        reads=reads,
        patience=10_000 + 8 * bound,
    )


def returned(image: LayerImage, what: str, data: Bytes) -> Half:
    """A tensor that was read back, (tokens, channels)."""
    tiling = image.plan.tiling
    shape, rows = tiling.shape, tiling.geometry.cfg.array.rows
    if what == "reference":
        return unpack_vectors(data, rows, shape.tokens, shape.inner, shape.inner)
    return unpack_vectors(data, rows, shape.tokens, tiling.columns, shape.out)
