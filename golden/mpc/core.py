"""Functional simulator of the core: the reference for its RTL.

Instructions are carried out whole, in any order that queues and semaphores allow: the oldest that
can start, or a random one, so that a program that forgets a semaphore is found out.  A MULTIPLY
happens in two parts, since its weights may be replaced before it ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter

import numpy as np

from dstar.gen.config import Config

from .fields import MEANINGS, IsaError, Status
from .isa import (
    HELD_TILES,
    INSTRUCTION_BYTES,
    SEMAPHORE_MAX,
    Engine,
    Instruction,
    Opcode,
    decode,
)
from .memory import BusError, Memory
from .text import format_instruction
from .units import Units

#: Called with the program counter and the instruction as it starts.
Trace = Callable[[int, Instruction], None]

#: How often a random order changes the engines that it favours.
CHANGE = 1 / 16

_BUS = {Engine.LOAD: Status.READ, Engine.STORE: Status.WRITE}


class CoreError(Exception):
    """The core stopped: ``status``, ``pc`` and, for bus errors, ``address`` (else 0)."""

    def __init__(self, status: Status, pc: int, address: int = 0, detail: str = "") -> None:
        text = f"{status.name} at instruction {pc}: {detail or MEANINGS[status]}"
        super().__init__(text)
        self.status, self.pc, self.address = status, pc, address


@dataclass
class _Back:
    """A MULTIPLY whose weights are in the MPU."""

    pc: int
    instruction: Instruction
    finish: Callable[[], None]


@dataclass
class GoldenCore:
    """A core and its memory.

    ``order``: draws which engines go first for a while; without it the oldest instruction that
    can start does.  ``trace``: see :data:`Trace`.

    Buffer, table, registers and column sums keep their contents from program to program.
    """

    cfg: Config
    memory: Memory
    order: np.random.Generator | None = None
    trace: Trace | None = None
    units: Units = field(init=False)

    def __post_init__(self) -> None:
        self.units = Units(self.cfg, self.memory)

    def run(self, address: int, length: int) -> None:
        """Run the program of ``length`` instructions at ``address`` to its END.

        Raises
        ------
        CoreError
            If the core stops with an error.
        """
        _Run(self, address, length).to_end()


class _Run:
    """One program's queues and counters."""

    def __init__(self, core: GoldenCore, address: int, length: int) -> None:
        self.core, self.address, self.length = core, address, length
        self.pc = 0
        self.queues: dict[Engine, deque[tuple[int, Instruction]]] = {
            e: deque() for e in Engine if e != Engine.CONTROL
        }
        self.backs: deque[_Back] = deque()
        self.semaphores = [0] * core.cfg.core.semaphores
        # Tiles begun, and those that a begun MULTIPLY releases.
        self.quantized = self.releasing = 0
        self.body = 0
        self.fetched: Instruction | None = None
        self.done = False
        # Engines, and last the second half of MULTIPLY, by how much they are favoured.
        count = len(Engine) + 1
        self.rank = np.arange(count) if core.order is None else core.order.permutation(count)
        core.units.tiles.clear()
        core.units.body.clear()

    def to_end(self) -> None:
        """Dispatch and run until END."""
        rng = self.core.order
        while not self.done:
            able = self._able()
            if rng is not None:
                # Favour some engines and starve others for a while, as slow memories do.
                if rng.random() < CHANGE:
                    self.rank = rng.permutation(len(self.rank))
                able.sort(key=lambda item: -self.rank[item[1]])
                if able and self.rank[able[0][1]] > self.rank[Engine.CONTROL]:
                    able[0][2]()
                    continue
            if not self._dispatch():
                if not able:
                    self._deadlock()
                able[0][2]()

    def _able(self) -> list[tuple[int, int, Callable[[], None]]]:
        """Whatever can happen, the oldest first: program counter, place in ``rank``, action."""
        ready = [(back.pc, len(Engine), self._finish) for back in list(self.backs)[:1]]
        for engine, queue in self.queues.items():
            if queue and self._startable(queue[0][1]):
                ready.append((queue[0][0], int(engine), partial(self._start, engine)))
        return sorted(ready, key=itemgetter(0))

    # Control.

    def _fetch(self) -> Instruction:
        if self.fetched is not None:
            return self.fetched
        pc, cfg = self.pc, self.core.cfg
        if pc >= self.length:
            raise CoreError(Status.LENGTH, pc)
        try:
            data = self.core.memory.read(self.address + pc * INSTRUCTION_BYTES, INSTRUCTION_BYTES)
            instruction = decode(data.tobytes())
            instruction.check(cfg)
        except BusError as error:
            raise CoreError(Status.FETCH, pc, error.address) from None
        except IsaError as error:
            raise CoreError(error.status, pc, detail=str(error)) from None
        cut = instruction.engine == Engine.CONTROL and self.body
        if cut or (instruction.engine == Engine.VECTOR and self.body >= cfg.vector.program):
            raise CoreError(Status.PROGRAM, pc)
        self.fetched = instruction
        return instruction

    def _dispatch(self) -> bool:
        """Dispatch the next instruction, if it can be."""
        i = self._fetch()
        if i.engine == Engine.CONTROL:
            if any(self.queues.values()) or self.backs:
                return False
            if i.opcode == Opcode.END:
                if self.core.units.tiles:
                    raise CoreError(Status.TILES, self.pc)
                self.done = True
            self.semaphores = [0] * len(self.semaphores)
        else:
            queue = self.queues[i.engine]
            if len(queue) >= self.core.cfg.core.queue:
                return False
            queue.append((self.pc, i))
            if i.engine == Engine.VECTOR:
                self.body = 0 if i.opcode == Opcode.VECTOR else self.body + 1
        self.pc, self.fetched = self.pc + 1, None
        return True

    def _deadlock(self) -> None:
        heads = [
            f"{pc} ({format_instruction(i)})"
            for pc, i in sorted(queue[0] for queue in self.queues.values() if queue)
        ]
        counts = {s: n for s, n in enumerate(self.semaphores) if n}
        raise CoreError(
            Status.DEADLOCK,
            self.pc,
            detail=f"{MEANINGS[Status.DEADLOCK]}; waiting: {', '.join(heads)}; semaphores above "
            f"zero: {counts}",
        )

    # Engines.

    def _startable(self, i: Instruction) -> bool:
        wait = i["wait"]
        if wait and any(wait >> s & 1 and not n for s, n in enumerate(self.semaphores)):
            return False
        if i.opcode == Opcode.QUANTIZE:
            return self.quantized - self.releasing < HELD_TILES
        if i.opcode == Opcode.MULTIPLY:
            return self.quantized > self.releasing and len(self.backs) < 2
        return True

    def _start(self, engine: Engine) -> None:
        pc, i = self.queues[engine].popleft()
        for s in range(len(self.semaphores)):
            self.semaphores[s] -= i["wait"] >> s & 1
        if self.core.trace is not None:
            self.core.trace(pc, i)
        try:
            rest = self.core.units.run(i)
        except BusError as error:
            raise CoreError(_BUS[engine], pc, error.address) from None
        except IsaError as error:
            raise CoreError(error.status, pc, detail=f"{i.name}: {error}") from None
        if i.opcode == Opcode.QUANTIZE:
            self.quantized += 1
        if rest is None:
            self._signal(pc, i["signal"])
        else:
            self.releasing += i["release"]
            self._signal(pc, i["freed"])
            self.backs.append(_Back(pc, i, rest))

    def _finish(self) -> None:
        back = self.backs.popleft()
        try:
            back.finish()
        except IsaError as error:
            raise CoreError(error.status, back.pc, detail=f"MULTIPLY: {error}") from None
        self._signal(back.pc, back.instruction["signal"])

    def _signal(self, pc: int, semaphores: int) -> None:
        for s, count in enumerate(self.semaphores):
            if semaphores >> s & 1:
                if count == SEMAPHORE_MAX:
                    raise CoreError(Status.SEMAPHORE, pc)
                self.semaphores[s] += 1
