"""Commands of the multiply engine on their way."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Signal

#: Commands that may have started and not be done, each in another part of the engine.
IN_FLIGHT = 4


def unfinished(m: Module, entered: Any, done: Any) -> Signal:
    """Commands that entered a part of the engine and are not done."""
    count = Signal(range(IN_FLIGHT + 2), name="unfinished")
    m.d.sync += count.eq(count + entered - done)
    return count
