"""External memory as the core sees it: bytes behind AXI, and who answers with an error."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


class BusError(Exception):
    """The memory answered with an error; ``address`` is that of the first such beat."""

    def __init__(self, address: int) -> None:
        super().__init__(f"bus error at {address:#x}")
        self.address = address


class Memory:
    """``size`` zero bytes from address ``base`` on; everything else answers with an error.

    Parameters
    ----------
    base, size:
        In bytes.
    beat:
        Bytes of an AXI beat, in which errors are told.
    """

    def __init__(self, size: int, *, base: int = 0, beat: int = 8) -> None:
        self.base, self.beat = base, beat
        self.data: Bytes = np.zeros(size, np.uint8)
        #: Addresses of further beats that answer with an error.
        self.faults: set[int] = set()

    @property
    def end(self) -> int:
        """First address beyond."""
        return self.base + len(self.data)

    def _check(self, address: int, size: int) -> None:
        for fault in sorted(self.faults):
            if address <= fault < min(address + size, self.end):
                raise BusError(fault)
        if address < self.base:
            raise BusError(address)
        if address + size > self.end:
            raise BusError(max(address, self.end // self.beat * self.beat))

    def read(self, address: int, size: int) -> Bytes:
        """A copy of ``size`` bytes.

        Raises
        ------
        BusError
            If a beat lies outside, or is one of :attr:`faults`.
        """
        self._check(address, size)
        return self.data[address - self.base :][:size].copy()

    def write(self, address: int, values: Bytes | bytes) -> None:
        """Write bytes.

        Raises
        ------
        BusError
            Likewise.
        """
        self._check(address, len(values))
        at = address - self.base
        self.data[at : at + len(values)] = np.frombuffer(values, np.uint8)
