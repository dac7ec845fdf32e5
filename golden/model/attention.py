"""Attention of a wrapped model: its product goes to a kernel, whatever code surrounds it.

An attention module runs as it is, with the processor it has; only its call of
``scaled_dot_product_attention`` is taken over.  So the shipped model, every diffusers processor
that uses that function, rotary embeddings and joint text streams need no code of their own.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from .clock import Clock
from .layer import LinearLayer
from .method import AttentionMethod, Moment, State
from .report import AttentionReport


class AttentionError(RuntimeError):
    """An attention module that a method cannot take over."""


class AttentionLayer:
    """Watches one attention module while it runs.

    Parameters
    ----------
    name:
        Dotted name of the module.
    module:
        The module; its tree is not changed.
    method:
        Makes the kernel.
    clock:
        Of the model.
    """

    def __init__(self, name: str, module: nn.Module, method: AttentionMethod, clock: Clock) -> None:
        self.name, self.clock = name, clock
        #: The replaced layers whose leading rows make q and k.
        self.projections: list[LinearLayer] = []
        self.kernel = method.kernel(name, module)
        self.report = AttentionReport(name)
        self._hooks = [
            module.register_forward_pre_hook(self._enter),
            module.register_forward_hook(self._leave, always_call=True),
        ]
        self.reset()

    def reset(self) -> None:
        """Forget all states."""
        self.states: dict[tuple[int, int], State] = {}
        self._seen, self._call = -1, 0
        self._mode: _Intercept | None = None

    def remove(self) -> None:
        """Stop watching."""
        for hook in self._hooks:
            hook.remove()

    def _enter(self, module: nn.Module, args: Any) -> None:
        fresh = self.clock.calls != self._seen
        self._call = 0 if fresh else self._call + 1
        self._seen = self.clock.calls
        moment = Moment(max(self.clock.step, 0), self.clock.evaluation, self._call)
        state = self.states.setdefault((moment.evaluation, moment.call), {})
        skip = not self.kernel.needs_scores(state, moment)
        for layer in self.projections:
            layer.skip = skip
        self._mode = _Intercept(self, state, moment)
        self._mode.__enter__()  # type: ignore[no-untyped-call]

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        mode, self._mode = self._mode, None
        if mode is None:
            return
        mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        for layer in self.projections:
            layer.skip = False
        if output is not None and mode.count != 1:
            raise AttentionError(
                f"{self.name} must call scaled_dot_product_attention once, called it {mode.count} "
                f"times with {_processor(module)}; set a processor that does, such as "
                "AttnProcessor2_0"
            )


def _processor(module: nn.Module) -> str:
    return type(getattr(module, "processor", module)).__name__


class _Intercept(TorchFunctionMode):
    """Takes over the product while the module of one layer runs."""

    def __init__(self, layer: AttentionLayer, state: State, moment: Moment) -> None:
        super().__init__()
        self.layer, self.state, self.moment, self.count = layer, state, moment, 0

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is not functional.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        self.count += 1
        return self._attend(*args, **(kwargs or {}))

    @torch.no_grad()
    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        for name, given in (("dropout_p", dropout_p), ("enable_gqa", enable_gqa)):
            if given:
                raise AttentionError(f"{self.layer.name}: {name} must be off, got {given}")
        if query.dim() != 4:
            shape = tuple(query.shape)
            raise AttentionError(
                f"{self.layer.name}: q must be (batch, heads, tokens, width), got {shape}"
            )
        if is_causal:
            size = query.shape[-2], key.shape[-2]
            attn_mask = torch.ones(size, dtype=torch.bool, device=query.device).tril()
        o, stats = self.layer.kernel(
            query,
            key,
            value,
            mask=attn_mask,
            scale=1 / math.sqrt(query.shape[-1]) if scale is None else scale,
            state=self.state,
            moment=self.moment,
        )
        self.layer.report.add(self.moment, stats, query.shape[-1], value.shape[-1])
        return o
