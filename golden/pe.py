"""Processing element, cycle by cycle: the model of :class:`dstar.rtl.mpu.pe.PE`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dstar.gen.config import Config


@dataclass(kw_only=True)
class PE:
    """Accumulator and shadow register of one PE, as integers modulo ``2**acc_width``.

    Members
    -------
    cfg: widths and lanes.
    acc, shadow: register contents, 0 to ``2**acc_width - 1``.
    """

    cfg: Config
    acc: int = 0
    shadow: int = 0

    @property
    def bias(self) -> int:
        """Constant that every cycle adds besides the products; the array subtracts it again."""
        return self.cfg.array.lanes << self.cfg.numeric.weight_bits

    def step(
        self,
        digits: Sequence[int],
        weights: Sequence[int],
        *,
        keep: bool,
        double: bool,
        shift: bool = False,
        shadow_i: int = 0,
    ) -> None:
        """One clock cycle.

        ``digits``: signed digits, -2 to 1.  ``weights``: signed.  The accumulator starts from
        itself (``keep``), twice itself (``double``), or 0 (neither: a new tile begins, and the
        finished sum moves to the shadow register).
        """
        if not (keep or double):
            self.shadow = self.acc
        elif shift:
            self.shadow = shadow_i
        base = self.acc * (int(keep) + 2 * int(double))
        products = sum(d * w for d, w in zip(digits, weights, strict=True))
        self.acc = (base + products + self.bias) % (1 << self.cfg.numeric.acc_width)
