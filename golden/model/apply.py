"""Wrap a model: ``model = apply(model, FMDQ(...), SAR(...))``, then sample as before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from dstar.gen.config import ConfigError

from .attention import AttentionLayer
from .clock import Clock
from .layer import LinearLayer
from .method import AttentionMethod, LinearMethod, Plain
from .report import AttentionReport, LayerReport, Report

#: Share of a projection's leading rows that only scores need, by the layer's name in its module.
_SCORE_ROWS = {
    "qkv": (2, 3),
    "to_q": (1, 1),
    "to_k": (1, 1),
    "add_q_proj": (1, 1),
    "add_k_proj": (1, 1),
    "to_qkv": (2, 3),
    "to_added_qkv": (2, 3),
    "to_kv": (1, 2),
}


def apply(
    model: nn.Module,
    linear: LinearMethod | None = None,
    attention: AttentionMethod | None = None,
    *,
    layers: str | Sequence[str] | None = None,
    attention_layers: str | Sequence[str] = "*",
    evaluations: int | None = None,
) -> DstarModel:
    """Run a model's linear layers and attention by given methods.

    The model is changed in place, until :meth:`DstarModel.unwrap`: linear layers are replaced,
    attention modules are watched.  Batch elements, the evaluations of classifier-free guidance
    (in the batch or as two calls) and repeated calls of a layer have states of their own.

    Parameters
    ----------
    model:
        Any module tree whose layers are ``nn.Linear`` and whose attention modules call
        ``scaled_dot_product_attention``: the shipped DiT, diffusers' transformers.
    linear:
        For linear layers, such as :class:`~dstar.golden.model.fmdq.FMDQ`; None leaves them.
    attention:
        For attention products, such as :class:`~dstar.golden.model.sar.SAR`; None leaves them.
    layers:
        Globs over the names of linear layers; None: all inside the model's repeated blocks (its
        ``nn.ModuleList`` members), or all if it has none.
    attention_layers:
        Globs over the names of attention modules.
    evaluations:
        Calls of the model in a denoising step; None learns it from the times that the model is
        called with, see :class:`~dstar.golden.model.clock.Clock`.

    Raises
    ------
    ConfigError
        If the model is compiled or wrapped already, or nothing matches (the message lists names).
    """
    refuse_compiled(model, "replaced")
    if any(isinstance(m, LinearLayer | DstarModel) for m in model.modules()):
        raise ConfigError("the model is wrapped already; unwrap() it first")
    wrapped = DstarModel(model, evaluations)
    linears = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    attentions = {n: m for n, m in model.named_modules() if is_attention(m)}
    chosen = _match(linears, layers, default=_inside_blocks(model)) if linear is not None else []
    if linear is not None and not chosen:
        raise ConfigError(
            f"layers must match a linear layer, got {layers!r}; there are {_some(linears)}"
        )
    watched = _match(attentions, attention_layers, default="*") if attention is not None else []
    if attention is not None and not watched:
        raise ConfigError(
            f"attention_layers must match an attention layer, got {attention_layers!r}; there are "
            f"{_some(attentions)}"
        )
    rows = {}
    for name in watched:
        for child, share in _SCORE_ROWS.items():
            if (full := f"{name}.{child}") in linears:
                rows[full] = linears[full].out_features * share[0] // share[1]
    if attention is not None:
        for name in watched:
            wrapped.watch(name, attentions[name], attention)
    split = attention is not None and attention.reuses
    for name, layer in linears.items():
        method = linear if name in chosen else Plain() if split and name in rows else None
        if method is not None:
            wrapped.replace(name, layer, method, rows.get(name, 0), split=split)
    return wrapped


class DstarModel(nn.Module):
    """A wrapped model: called like the model, and with every attribute of it.

    ``model``: the wrapped model.  ``layers``: the replaced linear layers by name.
    ``attention``: the watched attention layers by name.
    """

    def __init__(self, model: nn.Module, evaluations: int | None = None) -> None:
        super().__init__()
        self.model = model
        self.clock = Clock(model.forward, evaluations=evaluations, on_restart=self._forget)
        self.layers: dict[str, LinearLayer] = {}
        self.attention: dict[str, AttentionLayer] = {}

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("model"), name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model."""
        if torch.compiler.is_compiling():
            raise ConfigError("a wrapped model must run eagerly; do not compile it")
        self.clock.tick(args, kwargs)
        return self.model(*args, **kwargs)

    def step(self, index: int) -> None:
        """Say which denoising step the next calls belong to, instead of learning it."""
        self.clock.tell(index)

    def reset(self) -> None:
        """Forget states and statistics; the next call is the first step of a sample."""
        self.clock.rewind()
        self._forget()
        for layer in self.layers.values():
            layer.report = LayerReport(layer.name)
        for attention in self.attention.values():
            attention.report = AttentionReport(attention.name)

    def _forget(self) -> None:
        for layer in self._all:
            layer.reset()

    @property
    def _all(self) -> list[LinearLayer | AttentionLayer]:
        return [*self.layers.values(), *self.attention.values()]

    def report(self) -> Report:
        """Statistics since the last :meth:`reset`."""
        states = [s for layer in self.layers.values() for s in layer.states.values()]
        held = sum(v.nbytes for s in states for v in s.values() if isinstance(v, Tensor))
        return Report(
            linear={n: layer.report for n, layer in self.layers.items() if layer.report.steps},
            attention={n: a.report for n, a in self.attention.items() if a.report.steps},
            silent=tuple(layer.name for layer in self._all if not layer.report.steps),
            linear_cache_bytes=held,
        )

    def unwrap(self) -> nn.Module:
        """The model as it was."""
        for layer in self.layers.values():
            for parent, child in _places(self.model, layer):
                parent._modules[child] = layer.linear
        for attention in self.attention.values():
            attention.remove()
        self.layers, self.attention = {}, {}
        return self.model

    def replace(
        self, name: str, linear: nn.Linear, method: LinearMethod, rows: int, *, split: bool
    ) -> None:
        """Put a layer in the place of a linear one; ``rows`` leading ones only scores need."""
        layer = LinearLayer(name, linear, method, self.clock, rows, split=split)
        for parent, child in list(_places(self.model, linear)):
            parent._modules[child] = layer
        self.layers[name] = layer
        if rows:
            self.attention[name.rpartition(".")[0]].projections.append(layer)

    def watch(self, name: str, module: nn.Module, method: AttentionMethod) -> None:
        """Hand the product of an attention module to a method."""
        self.attention[name] = AttentionLayer(name, module, method, self.clock)


def is_attention(module: nn.Module) -> bool:
    """Whether a module is an attention layer: the shipped model's, or one with a processor."""
    from ..dit.model import Attention

    return isinstance(module, Attention) or callable(getattr(module, "set_processor", None))


def refuse_compiled(model: nn.Module, what: str) -> None:
    """Refuse (ConfigError) a compiled model, in which hooks and replaced layers do not run."""
    for name, module in model.named_modules():
        if getattr(module, "_compiled_call_impl", None) is not None or hasattr(module, "_orig_mod"):
            raise ConfigError(
                f"{name or 'the model'} is compiled, so its layers cannot be {what}; use the "
                "eager model (before torch.compile, or its _orig_mod)"
            )


def _inside_blocks(model: nn.Module) -> list[str]:
    lists = [name for name, m in model.named_children() if isinstance(m, nn.ModuleList)]
    return [f"{name}.*" for name in lists] or ["*"]


def _match(
    names: dict[str, Any], globs: str | Sequence[str] | None, default: str | Sequence[str]
) -> list[str]:
    patterns = default if globs is None else globs
    patterns = [patterns] if isinstance(patterns, str) else patterns
    return [name for name in names if any(fnmatchcase(name, p) for p in patterns)]


def _places(model: nn.Module, module: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Parents and member names under which a module hangs in a tree."""
    for parent in model.modules():
        for child, found in parent._modules.items():
            if found is module:
                yield parent, child


def _some(names: dict[str, Any], most: int = 12) -> str:
    listed = list(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more if listed else "none"
