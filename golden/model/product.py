"""Integer products in PyTorch, exact, with the output path's two roundings."""

from __future__ import annotations

import torch
from torch import Tensor

from dstar.gen.config import Config

from ..bins import BinTable
from ..fmdq_torch import OVERFLOW, TorchQuantized
from ..half import MAX_HALF
from ..weights import QuantizedWeight

#: binary32 holds every integer up to here.
EXACT = 2**24
#: Sums below this times a bfloat16 scale are exact in binary32: 16 and 8 significant bits.
EXACT_SUM = 2**16
#: Bits of a binary64 significand that a binary32 lacks.
TAIL = 29


class IntegerLinear:
    """INT8 weights and binary16 bias of a layer.

    Parameters
    ----------
    weight:
        Quantized weights (out, in).
    bias:
        (out,) or None; rounded to binary16.
    device:
        Where the products run.

    Raises
    ------
    ValueError
        If the bias is not finite in binary16.
    """

    def __init__(self, weight: QuantizedWeight, bias: Tensor | None, device: torch.device) -> None:
        self.q = torch.from_numpy(weight.q).to(device)
        self.scale = torch.from_numpy(weight.scale).to(device)
        #: Largest sum of a row's weight magnitudes.
        self.row_sum = int(self.q.abs().sum(dim=1, dtype=torch.int64).max())
        out = len(self.q)
        values = torch.zeros(out, device=device) if bias is None else bias.detach()
        self.bias = values.to(torch.float16)
        if not bool(self.bias.isfinite().all()):
            raise ValueError(f"bias must be finite in binary16, got {values.tolist()}")

    def add(
        self,
        done: TorchQuantized,
        table: BinTable,
        before: Tensor | None,
        cfg: Config,
        base: Tensor | None = None,
    ) -> tuple[Tensor, bool]:
        """``before + q * 2**-f @ w``: roundings 3 to 5 of :mod:`dstar.golden.linear`.

        Parameters
        ----------
        done:
            Quantized differences (batch, tokens, in), with q.
        table:
            The table they were quantized by.
        before:
            Last step's y, binary16 (batch, tokens, out), or None for the bias.
        base:
            A further factor of all scales (batch, 1, 1), or None.

        Returns
        -------
        y, binary16 (batch, tokens, out), and whether some value saturated.
        """
        total = self._sums(done, table, cfg.array.rows)
        scale = self.scale * 2.0**-table.finest
        if base is not None:
            product = (total.double() * (scale.double() * base.double())).float()
        elif total.dtype == torch.float32 and float(total.abs().max()) < EXACT_SUM:
            product = total.mul_(scale)
        else:
            product = _to_odd(total.double() * scale.double())
        clipped = _clip(product)
        product = product.half().float().add_(self.bias if before is None else before)
        clipped |= _clip(product)
        return product.half(), clipped

    def _sums(self, done: TorchQuantized, table: BinTable, rows: int) -> Tensor:
        """Exact sums in units of ``2**-finest``, in float32 or float64."""
        assert done.q is not None
        units = done.q.float()
        used = done.precision > 0
        gap = torch.where(used, table.finest - done.exponent.int(), 0)
        bound = table.channel_bound
        if bool(gap.any()):
            factor = torch.ldexp(torch.ones_like(gap, dtype=torch.float32), gap)
            units *= factor.repeat_interleave(rows, dim=-2)[..., : units.shape[-2], :]
        if bound * self.row_sum >= EXACT:
            bound = int(units.abs().max())
        if bound * self.row_sum < EXACT:
            return units @ self.q.float().t()
        return units.double() @ self.q.double().t()


def _to_odd(x: Tensor) -> Tensor:
    """float64 to float32, rounded to odd, so that rounding on to binary16 equals one rounding."""
    bits = x.view(torch.int64)
    tail = 2**TAIL - 1
    sticky = (bits & tail).ne_(0).to(torch.int64) << TAIL
    return ((bits & ~tail) | sticky).view(torch.float64).float()


def _clip(x: Tensor) -> bool:
    """Clip what rounds beyond binary16 in place; true if anything did."""
    low, high = torch.aminmax(x)
    if max(-float(low), float(high)) < OVERFLOW:
        return False
    x.clamp_(-MAX_HALF, MAX_HALF)
    return True
