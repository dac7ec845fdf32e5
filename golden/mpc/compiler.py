"""Compiler: a linear layer, with or without GELU after it, to a program of the core.

Engines are ordered by semaphores alone: for every place in the buffer that is used again, one
that says it is full and one that says it is free.  Each has one engine that waits for it, and the
program would also run one instruction after the other, so it cannot block.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from dstar.golden.bins import BinTable
from dstar.golden.linear import Mode
from dstar.golden.vpu.isa import Op, Source

from .isa import Instruction, Opcode, mask
from .layout import CompileError, Places
from .order import Ring, Visit, WeightUse, boundaries, visits, weight_uses
from .plan import Plan
from .table import table_program

#: VPU register that keeps the mask of missing tokens; GELU works in register 0.
_MASK = Source.R1


class Semaphore(IntEnum):
    """Semaphores by use.

    ``X``: activations with references.  ``R``: next references.  ``W``: weights.  ``P``:
    parameters.  ``B``: last step's outputs.  ``Y``: outputs.  ``V``: outputs that are in memory,
    for the VPU.  ``G``: activated outputs.  ``M``: the mask of missing tokens.
    """

    X_FULL = 0
    X_FREE = 1
    R_FULL = 2
    R_FREE = 3
    W_FULL = 4
    W_FREE = 5
    P_FREE = 6
    B_FULL = 7
    Y_FULL = 8
    Y_FREE = 9
    V_FULL = 10
    G_FULL = 11
    M_FULL = 12


@dataclass
class _Emitter:
    """One layer's program as it grows."""

    plan: Plan
    places: Places
    keyframe: bool
    mode: Mode
    gelu: Op | None
    finest: int
    program: list[Instruction] = field(default_factory=list)

    def __post_init__(self) -> None:
        plan, cols = self.plan, self.plan.tiling.geometry.cfg.array.cols
        channels = max(plan.tiling.k_sizes)
        self.x = Ring(0, channels, plan.inputs)
        self.reference = Ring(self.x.end, channels, plan.inputs)
        self.y = Ring(self.reference.end, cols, plan.outputs)
        self.weights = Ring(self.y.end, plan.weight_words, plan.weights)
        count = min(2, plan.groups)
        top = plan.tiling.geometry.words - count * plan.parameter_words
        self.parameters = Ring(top, plan.parameter_words, count)
        self.mask = top - 1
        self.group_parameters = 0
        self.activated: list[tuple[int, int]] = []

    def add(
        self,
        opcode: Opcode,
        operands: Mapping[str, int],
        *,
        wait: Iterable[Semaphore | None] = (),
        signal: Iterable[Semaphore | None] = (),
    ) -> None:
        """Append an instruction."""
        masks = {
            "wait": mask(s for s in wait if s is not None),
            "signal": mask(s for s in signal if s is not None),
        }
        self.program.append(Instruction.make(opcode, {**operands, **masks}))

    def move(
        self,
        opcode: Opcode,
        address: int,
        word: int,
        buffer: int,
        length: int,
        *,
        wait: Iterable[Semaphore | None] = (),
        signal: Iterable[Semaphore | None] = (),
    ) -> None:
        """LOAD or STORE ``length`` words at ``address`` plus ``word`` words."""
        address += word * self.plan.tiling.geometry.word_bytes
        operands = {"address": address, "buffer": buffer, "length": length, "rows": 1}
        self.add(opcode, operands, wait=wait, signal=signal)

    def quantize(self, visit: Visit) -> None:
        """Load a tile's activations and references, quantize it, store the next references."""
        plan, places, s = self.plan, self.places, Semaphore
        tiling = plan.tiling
        channels = tiling.k_sizes[visit.k]
        start = visit.k * tiling.channels
        word = visit.token_tile * places.x_stride + start
        place = visit.token_tile * tiling.shape.inner + start
        write = visit.group == plan.groups - 1
        x, again = self.x.take()
        first = s.X_FULL if self.keyframe else None
        self.move(Opcode.LOAD, places.x, word, x, channels,
                  wait=[s.X_FREE if again else None], signal=[first])  # fmt: skip
        reference, again, free = 0, False, None
        if write or not self.keyframe:
            reference, again = self.reference.take()
            free = s.R_FREE if again else None
        if not self.keyframe:
            self.move(Opcode.LOAD, places.reference, place, reference, channels,
                      wait=[free], signal=[s.X_FULL])  # fmt: skip
        held = None if write or self.keyframe else s.R_FREE
        operands = {
            "x": x,
            "reference": reference,
            "next": reference,
            "channels": channels,
            "keyframe": self.keyframe,
            "previous": self.mode == "previous",
            "write": write,
        }
        self.add(Opcode.QUANTIZE, operands, wait=[s.X_FULL, free if self.keyframe else None],
                 signal=[s.X_FREE, s.R_FULL if write else held])  # fmt: skip
        if write:
            self.move(Opcode.STORE, places.reference, place, reference, channels,
                      wait=[s.R_FULL], signal=[s.R_FREE])  # fmt: skip

    def begin_group(self, visit: Visit) -> None:
        """Load the parameters of a column group; its first weights, which are loaded after them,
        say that they are there."""
        words = self.plan.tiling.geometry.parameter_words
        self.group_parameters, again = self.parameters.take()
        self.move(Opcode.LOAD, self.places.parameters, visit.columns.start * words,
                  self.group_parameters, len(visit.columns) * words,
                  wait=[Semaphore.P_FREE if again else None])  # fmt: skip

    def multiply(self, visit: Visit, index: int, use: WeightUse, *, ends: bool) -> None:
        """One product, the weights loaded before it, the outputs taken away after it.

        ``ends``: it is the group's last.
        """
        plan, tiling, s = self.plan, self.plan.tiling, Semaphore
        cols = tiling.geometry.cfg.array.cols
        column = visit.columns[index]
        weights = self.weights.base + use.place * plan.weight_words
        sizes = tiling.weight_tile_words
        if use.load:
            word = column * sum(sizes) + sum(sizes[: visit.k])
            self.move(Opcode.LOAD, self.places.weights, word, weights, sizes[visit.k],
                      wait=[s.W_FREE if use.again else None], signal=[s.W_FULL])  # fmt: skip
        last = visit.k == len(tiling.k_sizes) - 1
        # Sums of a single k tile are not kept.
        kept = visit.token_tile % plan.tokens * plan.group + index if len(sizes) > 1 else 0
        operands = {
            "freed": mask([s.W_FREE] if use.frees else []),
            "weights": weights,
            "channels": tiling.k_sizes[visit.k],
            "tiles": 1,
            "base": kept * cols,
            "first": visit.k == 0,
            "last": last,
            "release": index == len(visit.columns) - 1,
            "finest": self.finest,
        }
        wait = [s.W_FULL if use.load else None]
        if not last:
            self.add(Opcode.MULTIPLY, operands, wait=wait)
            return
        y, again = self.y.take()
        free = [s.Y_FREE] if again else []
        place = visit.token_tile * tiling.columns + column * cols
        if self.keyframe:
            wait += free
        else:
            self.move(Opcode.LOAD, self.places.y, place, y, cols, wait=free, signal=[s.B_FULL])
            wait.append(s.B_FULL)
        operands |= {
            "keyframe": self.keyframe,
            "parameters": self.group_parameters + index * tiling.geometry.parameter_words,
            "before": 0 if self.keyframe else y,
            "output": y,
        }
        self.add(Opcode.MULTIPLY, operands, wait=wait,
                 signal=[s.Y_FULL, s.P_FREE if ends else None])  # fmt: skip
        stored = s.Y_FREE if self.gelu is None else s.V_FULL
        self.move(Opcode.STORE, self.places.y, place, y, cols, wait=[s.Y_FULL], signal=[stored])
        if self.gelu is not None:
            self.activate(visit.token_tile, y, place)

    def activate(self, token_tile: int, y: int, place: int) -> None:
        """Outputs that are in memory through the VPU, where they are.

        They leave behind the next outputs, for which the store engine must not wait, if those have
        another place.
        """
        assert self.gelu is not None
        plan, s = self.plan, Semaphore
        cols = plan.tiling.geometry.cfg.array.cols
        function: dict[str, int] = {"op": self.gelu, "a": Source.INPUT}
        if plan.masked and token_tile == plan.tiling.token_tiles - 1:
            self.add(Opcode.OPERATE, function)
            function = {"op": Op.MULTIPLY, "a": Source.R0, "b": _MASK}
        run = {"count": cols, "input": y, "outer": 1, "output": y, "emit": 1}
        self.add(Opcode.VECTOR, {**function, **run}, wait=[s.V_FULL], signal=[s.G_FULL])
        self.activated.append((y, place))
        self.store_activated(0 if plan.outputs == 1 else 1)

    def store_activated(self, keep: int = 0) -> None:
        """Store activated outputs, all but the newest ``keep``."""
        cols = self.plan.tiling.geometry.cfg.array.cols
        while len(self.activated) > keep and self.places.gelu is not None:
            y, place = self.activated.pop(0)
            self.move(Opcode.STORE, self.places.gelu, place, y, cols,
                      wait=[Semaphore.G_FULL], signal=[Semaphore.Y_FREE])  # fmt: skip

    def load_mask(self) -> None:
        """Ones for the tokens of the last tile, zeros for those it lacks, into a VPU register."""
        if self.places.mask is None:
            return
        self.move(Opcode.LOAD, self.places.mask, 0, self.mask, 1, signal=[Semaphore.M_FULL])
        take = {"op": Op.MOVE, "dst": _MASK, "a": Source.INPUT, "input": self.mask, "count": 1}
        self.add(Opcode.VECTOR, take, wait=[Semaphore.M_FULL])


def compile_linear(
    plan: Plan,
    places: Places,
    *,
    keyframe: bool,
    table: BinTable,
    mode: Mode = "reconstructed",
    gelu: Op | None = None,
) -> list[Instruction]:
    """The program of one step of a layer, without END; it ends with SYNC.

    It quantizes x, updates the references in place, and computes y in place: from the bias at a
    ``keyframe``, else from the y that memory holds.  The next tile's activations are loaded and
    quantized amid a tile's products.

    Parameters
    ----------
    table:
        The step's bin table; checked against the plan's configuration.
    gelu:
        Function of the VPU that is applied to y on its way, to go to ``places.gelu``.

    Raises
    ------
    ConfigError
        If the table breaks the accumulator's bound.
    CompileError
        If the core has too few semaphores.
    IsaError
        If an address does not fit the core's.
    ValueError
        If ``gelu`` is given without a place for it, or the plan was made without it.
    """
    cfg = plan.tiling.geometry.cfg
    if cfg.core.semaphores < len(Semaphore):
        raise CompileError(
            f"core.semaphores must be at least {len(Semaphore)} for compiled layers, got "
            f"{cfg.core.semaphores}"
        )
    if (gelu is not None) != plan.gelu or (gelu is not None) != (places.gelu is not None):
        raise ValueError(
            f"gelu, plan.gelu and places.gelu must agree, got {gelu}, {plan.gelu}, {places.gelu}"
        )
    table.check(cfg)
    emit = _Emitter(plan, places, keyframe, mode, gelu, table.finest)
    emit.program += table_program(table)
    emit.load_mask()
    order = visits(plan)
    emit.quantize(order[0])
    uses = weight_uses(plan, order)
    for n, (visit, begins, ends) in enumerate(boundaries(order)):
        if begins:
            emit.begin_group(visit)
        middle = (len(visit.columns) + 1) // 2
        for index, use in enumerate(uses[n]):
            is_last = index == len(visit.columns) - 1
            emit.multiply(visit, index, use, ends=ends and is_last)
            if index + 1 == middle and n + 1 < len(order):
                emit.quantize(order[n + 1])
    emit.store_activated()
    emit.add(Opcode.SYNC, {})
    for instruction in emit.program:
        instruction.check(cfg)
    return emit.program
