"""Record the linear layers of a PyTorch model, step by step, into a dump.

The model is run twice: a probe, which ends after its first evaluation, tells every layer's shape,
so that the size of the dump is known before anything is written; then the real run streams each
tensor to the file as it appears.  Only one tensor is held at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..dump import DumpError, DumpInfo, DumpWriter, TensorSpec, static_key, step_key
from ..dump.convert import MAX_BINARY16
from .apply import refuse_compiled
from .clock import Clock

#: Magnitudes from here on round beyond binary16.
OVERFLOW = 65520.0


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """What was recorded.

    ``size``: bytes of the file.  ``layers``: names of the layers in it.  ``silent``: layers that
    matched and never ran.  ``clipped``: values clipped to binary16.
    """

    size: int
    layers: tuple[str, ...]
    silent: tuple[str, ...]
    clipped: int

    def notes(self) -> list[str]:
        """What a user should know, a line each."""
        notes = []
        if self.silent:
            notes.append(f"matched but never ran, so not in the dump: {', '.join(self.silent)}")
        if self.clipped:
            notes.append(f"{self.clipped} values clipped to +-{MAX_BINARY16:.0f}")
        return notes


class _Enough(Exception):  # noqa: N818 - it reports no error
    """Ends the probe after the first evaluation."""


def record(
    path: str | Path,
    model: nn.Module,
    run: Callable[[], Any],
    *,
    info: Callable[[], DumpInfo],
    layers: str = "*",
    sample: int = 0,
    dtype: str = "float16",
    saturate: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Recorded:
    """Write the inputs and outputs of linear layers at every step of a run.

    Parameters
    ----------
    path:
        The dump to write.
    model:
        The network that ``run`` calls.
    run:
        Draws one image; called twice and must do the same both times.
    info:
        The dump's metadata, asked for after the probe; its steps are those of the run.
    layers:
        Glob over layer names.
    sample:
        Element of the batch that is recorded; of further evaluations in a step the first.
    dtype:
        Format of the file: ``float16``, ``bfloat16`` or ``float32``.
    saturate:
        Clip values beyond binary16 and count them, instead of refusing them.
    progress:
        Called with the steps done and the steps in all.

    Raises
    ------
    DumpError
        If no layer matches or none that matches runs (the message lists names), the dump does not
        fit on the disk (with the numbers), the run has other steps than the metadata say, or a
        value does not fit (with layer, step and position).  Nothing is left behind.
    ConfigError
        If the model is compiled: its layers cannot be watched.
    """
    refuse_compiled(model, "captured")
    linears = {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear)}
    chosen = {n: m for n, m in linears.items() if fnmatchcase(n, layers)}
    if not chosen:
        raise DumpError(f"no layer matches {layers!r}; layers are {', '.join(linears)}")
    shapes = _probe(model, chosen, run, sample)
    silent = tuple(name for name in chosen if name not in shapes)
    if not shapes:
        raise DumpError(f"no layer that matches {layers!r} ever ran: {', '.join(silent)}")
    metadata = info()
    tensors: dict[str, TensorSpec] = {}
    for name, shape in shapes.items():
        static = {"w": chosen[name].weight, "b": chosen[name].bias}
        for key, value in static.items():
            if value is not None:
                tensors[static_key(name, key)] = TensorSpec(tuple(value.shape), dtype)
        for step in range(metadata.steps):
            for key, size in shape.items():
                tensors[step_key(name, step, key, metadata)] = TensorSpec(size, dtype)
    clipped = 0
    with DumpWriter(path, info=metadata, tensors=tensors) as writer:

        def put(key: str, values: Tensor) -> None:
            nonlocal clipped
            array = values.detach().float().cpu().numpy()
            if saturate:
                array, count = _saturate(array)
                clipped += count
            writer.write(key, array)

        def on_layer(name: str, step: int, x: Tensor, y: Tensor) -> None:
            if step >= metadata.steps:
                raise DumpError(
                    f"{path}: the run must have the {metadata.steps} steps that were asked for, "
                    f"it goes on with step {step}"
                )
            put(step_key(name, step, "x", metadata), x)
            put(step_key(name, step, "y", metadata), y)

        def on_step(step: int) -> None:
            if progress is not None:
                progress(step + 1, metadata.steps)

        for name in shapes:
            put(static_key(name, "w"), chosen[name].weight)
            if chosen[name].bias is not None:
                put(static_key(name, "b"), chosen[name].bias)
        with _watched(model, {n: chosen[n] for n in shapes}, sample, on_layer, on_step):
            run()
    return Recorded(size=writer.size, layers=tuple(shapes), silent=silent, clipped=clipped)


def _probe(
    model: nn.Module, layers: Mapping[str, nn.Linear], run: Callable[[], Any], sample: int
) -> dict[str, dict[str, tuple[int, ...]]]:
    """Shapes of x and y of one sample, for each layer that the first evaluation runs."""
    shapes: dict[str, dict[str, tuple[int, ...]]] = {}

    def on_layer(name: str, step: int, x: Tensor, y: Tensor) -> None:
        shapes[name] = {"x": tuple(x.shape), "y": tuple(y.shape)}

    def on_step(step: int) -> None:
        raise _Enough

    with _watched(model, layers, sample, on_layer, on_step):
        try:
            run()
        except _Enough:
            return {name: shapes[name] for name in layers if name in shapes}
    raise DumpError("the run never called the model")


@contextmanager
def _watched(
    model: nn.Module,
    layers: Mapping[str, nn.Linear],
    sample: int,
    on_layer: Callable[[str, int, Tensor, Tensor], None],
    on_step: Callable[[int], None],
) -> Iterator[None]:
    """Call back for each layer's first call in a step, and after each evaluation of the model."""
    clock = Clock(model.forward)
    done: set[str] = set()

    def before(module: nn.Module, args: Any, kwargs: Any) -> None:
        clock.tick(args, kwargs)
        if clock.evaluation == 0:
            done.clear()

    def after(module: nn.Module, args: Any, output: Any) -> None:
        on_step(clock.step)

    def layer(name: str) -> Callable[[nn.Module, Any, Tensor], None]:
        def hook(module: nn.Module, args: Any, output: Tensor) -> None:
            if name in done or clock.evaluation:
                return
            done.add(name)
            on_layer(name, clock.step, _one(args[0]), _one(output))

        return hook

    def _one(x: Tensor) -> Tensor:
        """The sample's tokens (tokens, channels)."""
        flat = x.reshape(-1, x.shape[-1])
        batch = clock.batch if len(flat) % clock.batch == 0 else 1
        if batch > 1 and sample >= batch:
            raise DumpError(f"sample must be below the batch of {batch}, got {sample}")
        return flat.reshape(batch, -1, x.shape[-1])[sample if batch > 1 else 0]

    hooks = [
        model.register_forward_pre_hook(before, with_kwargs=True),
        model.register_forward_hook(after),
        *(module.register_forward_hook(layer(name)) for name, module in layers.items()),
    ]
    try:
        with torch.no_grad():
            yield
    finally:
        for hook in hooks:
            hook.remove()


def _saturate(values: NDArray[np.float32]) -> tuple[NDArray[np.float32], int]:
    """Clip finite values that round beyond binary16, and count them."""
    beyond = (np.abs(values) >= OVERFLOW) & np.isfinite(values)
    count = int(np.count_nonzero(beyond))
    if count:
        values = np.where(beyond, np.copysign(np.float32(MAX_BINARY16), values), values)
    return values, count
