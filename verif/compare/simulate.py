"""What a comparison asks of a simulator, whatever it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dstar.verif.compare.plan import Stimulus
from dstar.verif.packing import Words


@dataclass(frozen=True, kw_only=True, eq=False)
class Played:
    """What the unit did with one stimulus.

    ``words``: the sums of every tile product, a word a column.  ``stamps``: the cycle in which each
    left the MPU.  ``outputs``: binary16 token vectors, a word a column.  ``seconds``: simulation
    time.  ``beats``, ``slots``: its counters of compute cycles and lanes used in them.
    """

    words: Words
    outputs: Words
    stamps: npt.NDArray[np.uint64]
    seconds: float
    beats: int
    slots: int


#: Called with the words of sums so far; it may raise to end the simulation.
Poll = Callable[[int], None]
#: Runs one stimulus; several threads may call it at once.
Simulator = Callable[[Stimulus, Poll], Played]
