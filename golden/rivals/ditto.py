"""DITTO (Kim et al., HPCA 2025): differences of INT8 activations in fewer bits.

Published: A8W8 with one static grid, so that differences of codes are exact integers; the first
step is computed in full.  Multipliers take a difference in [-8, 7] in one 4-bit slot, others in
two, and skip zeros, element by element.

As the DSTAR paper uses it: whole channels at INT4 or INT8, no skipping, 5.4 bits on average.

Assumed in both modes: the grid is one scale a layer, the largest magnitude of the profile over
127, and what exceeds it clips.  Assumed for ``as_dstar``: a channel takes 4 bits where the
differences of all tokens of a sample fit, so that both modes give the same images and differ in
bits alone.  Differences beyond 8 bits count as 8, as in DITTO's own figures.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from dstar.golden.model.method import Moment, State

from .profile import Profiles
from .scheme import MAX_CODE, Encoded, SchemeKernel, int8_kernel

Mode = Literal["as_dstar", "as_published"]
#: Differences that fit a 4-bit slot.
LOW, HIGH = -8, 7


class Ditto:
    """DITTO's linear layers.

    Parameters
    ----------
    profiles:
        Of the layers' activations.
    mode:
        ``as_published``: 0, 4 or 8 bits an element; ``as_dstar``: 4 or 8 bits a channel.
    """

    def __init__(self, profiles: Profiles, *, mode: Mode) -> None:
        self.profiles, self.mode = profiles, mode

    def kernel(self, name: str, linear: nn.Linear) -> SchemeKernel:
        """The kernel of one layer."""
        return int8_kernel(_Layer(self.profiles[name].step, self.mode), linear)


class _Layer:
    """Codes at one static step, and the bits of their differences."""

    def __init__(self, step: float, mode: Mode) -> None:
        self.step, self.mode = step, mode

    def encode(self, x: Tensor, state: State, moment: Moment) -> Encoded:
        """Differences of codes are exact, so the layer multiplies the codes in effect."""
        codes = (x / self.step).round_().clamp_(-MAX_CODE, MAX_CODE)
        before, state["codes"] = state.get("codes"), codes
        x_hat = codes * self.step
        if before is None:
            return Encoded(x_hat, 8.0)
        d = codes - before
        if self.mode == "as_dstar":
            low, high = d.amin(-2), d.amax(-2)
            return Encoded(x_hat, 8 - 4 * _share((low >= LOW) & (high <= HIGH)))
        zero = _share(d == 0)
        return Encoded(x_hat, 8 - 4 * _share((d >= LOW) & (d <= HIGH)) - 4 * zero, zero)


def _share(chosen: Tensor) -> float:
    return float(chosen.float().mean())
