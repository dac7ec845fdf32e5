"""Capture: run a DiT and write a dump of its layers."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from dstar.gen.config import ConfigError

from .dit.forward import Floats, plain_attention, plain_linear
from .dit.sampler import DEFAULT_STEPS, MAX_STEPS, MIN_STEPS, check, sample
from .dit.spec import DIGITS, DiTSpec
from .dit.weights import load_weights
from .dump import (
    STATIC_TENSORS,
    DumpError,
    DumpInfo,
    DumpWriter,
    TensorSpec,
    static_key,
    step_key,
)

#: Progress hook: called with the steps done and the steps in all.
Progress = Callable[[int, int], None]


def check_source(
    builtin: bool, pipeline: str | None, prompt: str | None, steps: int, *, attention: bool
) -> None:
    """Refuse (ConfigError) what ``dstar capture`` cannot do.

    Parameters
    ----------
    builtin, pipeline, prompt, steps, attention:
        As given on the command line.
    """
    if builtin == (pipeline is not None):
        raise ConfigError(
            "capture needs a model: --builtin runs the shipped DiT, --diffusers a pipeline"
        )
    if builtin and not MIN_STEPS <= steps <= MAX_STEPS:
        raise ConfigError(
            f"--steps must be greater than or equal to {MIN_STEPS} and at most {MAX_STEPS} with "
            f"--builtin, got {steps}"
        )
    if pipeline is not None and prompt is None:
        raise ConfigError("--diffusers needs --prompt: text, or a class number or label")
    if pipeline is not None and attention:
        raise ConfigError("--attention works with --builtin only")


def capture_builtin(
    path: str | Path,
    *,
    steps: int = DEFAULT_STEPS,
    seed: int = 0,
    label: int = 3,
    layers: str = "blocks.*",
    attention: bool = False,
    dtype: str = "float16",
    progress: Progress | None = None,
    weights: Mapping[str, Floats] | None = None,
    spec: DiTSpec = DIGITS,
) -> int:
    """Draw one image with the shipped DiT, without guidance, and write its dump.

    Parameters
    ----------
    path:
        The dump to write; see ``docs/dumps.md``.
    steps:
        Denoising steps, 4 to 50.
    seed:
        Of the starting noise.
    label:
        Class of the image; ``spec.null_class`` for none.
    layers:
        Which layers, as a glob over their names.  Their input and output are written at every
        step, weight and bias once.
    attention:
        Also write q, k, v and o of the attention products (``blocks.N.attn``) that match.
    dtype:
        Format of the file: ``float16``, ``bfloat16`` or ``float32``.
    progress:
        Called after each step.
    weights, spec:
        Another model than the shipped one.

    Returns
    -------
    The size of the file in bytes.

    Raises
    ------
    DumpError
        If no layer matches (the message lists the names), the dump does not fit on the disk, or a
        value does not fit the format.  Nothing is left behind.
    ValueError
        If steps or label are out of range.
    """
    check([label], steps, 1.0, spec)
    shapes = _shapes(spec, attention)
    chosen = [name for name in shapes if fnmatch.fnmatchcase(name, layers)]
    if not chosen:
        raise DumpError(f"no layer matches {layers!r}; layers are {', '.join(shapes)}")
    info = DumpInfo(
        model=f"shipped DiT, hidden {spec.hidden}, depth {spec.depth}, heads {spec.heads}",
        steps=steps,
        scheduler="rectified flow, Euler",
        seed=seed,
        extra={"class": str(label)},
    )
    tensors = {
        _key(name, step, tensor, info): TensorSpec(shape, dtype)
        for step in range(steps)
        for name in chosen
        for tensor, shape in shapes[name].items()
    }
    model = load_weights() if weights is None else weights
    with DumpWriter(path, info=info, tensors=tensors) as writer:
        step = 0

        def put(name: str, **values: NDArray[Any]) -> None:
            if name in chosen:
                for tensor, value in values.items():
                    if step == 0 or tensor not in STATIC_TENSORS:
                        writer.write(_key(name, step, tensor, info), value)

        def linear(name: str, x: Floats, w: Floats, b: Floats) -> Floats:
            y = plain_linear(name, x, w, b)
            put(name, x=x, y=y, w=w, b=b)
            return y

        def attend(name: str, q: Floats, k: Floats, v: Floats) -> Floats:
            o = plain_attention(name, q, k, v)
            put(name, q=q, k=k, v=v, o=o)
            return o

        def on_step(index: int, t: float, x: Floats) -> None:
            nonlocal step
            step = index
            if progress is not None and index:
                progress(index, steps)

        sample(
            model,
            classes=[label],
            steps=steps,
            seed=seed,
            spec=spec,
            linear=linear,
            attention=attend if attention else None,
            on_step=on_step,
        )
    if progress is not None:
        progress(steps, steps)
    return writer.size


def _key(name: str, step: int, tensor: str, info: DumpInfo) -> str:
    if tensor in STATIC_TENSORS:
        return static_key(name, tensor)
    return step_key(name, step, tensor, info)


def _shapes(spec: DiTSpec, attention: bool) -> dict[str, dict[str, tuple[int, ...]]]:
    """Tensors of every layer of one sample, in order of execution: name -> tensor -> shape."""
    shapes: dict[str, dict[str, tuple[int, ...]]] = {}
    heads = (spec.heads, spec.tokens, spec.head_dim)
    for name, (out, inner) in spec.linears.items():
        rows = 1 if name in spec.conditioning else spec.tokens
        shapes[name] = {"x": (rows, inner), "y": (rows, out), "w": (out, inner), "b": (out,)}
        if attention and name.endswith(".qkv"):
            shapes[name.removesuffix(".qkv")] = dict.fromkeys("qkvo", heads)
    return shapes
