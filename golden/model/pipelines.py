"""Capture a diffusers pipeline: load it, draw one image, record its transformer's layers."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from dstar.gen.config import ConfigError

from ..dump import DumpInfo
from .record import Recorded, record

#: Types that a pipeline may be loaded in.
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
#: File of a saved pipeline that lists its parts.
INDEX = "model_index.json"


def load_pipeline(source: str, *, dtype: str = "float32", device: str = "cpu") -> Any:
    """A pipeline from a folder or, over the network, from its name.

    Raises
    ------
    ConfigError
        If diffusers, or a package that one of the pipeline's parts needs, is not installed, the
        pipeline cannot be loaded, or it has no transformer.
    """
    if find_spec("diffusers") is None:
        raise ConfigError(
            "a pipeline needs the package diffusers: pip install 'dstar-rtl[diffusers]'"
        )
    if dtype not in DTYPES:
        raise ConfigError(f"model dtype must be {', '.join(DTYPES)}, got {dtype!r}")
    folder = Path(source)
    if folder.is_dir():
        _check_parts(folder)
    elif source.count("/") != 1 or source.startswith((".", "/", "~")):
        raise ConfigError(f"cannot load {source}: no such folder, and no name of a pipeline")
    library: Any = import_module("diffusers")
    library.utils.logging.disable_progress_bar()
    try:
        pipe = library.DiffusionPipeline.from_pretrained(
            source,
            dtype=DTYPES[dtype],
            local_files_only=folder.is_dir(),
            low_cpu_mem_usage=find_spec("accelerate") is not None,
        )
    except (OSError, ValueError, ImportError, AttributeError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise ConfigError(f"cannot load the pipeline {source}: {reason}") from None
    if getattr(pipe, "transformer", None) is None:
        raise ConfigError(
            f"{source} must have a transformer to capture, {type(pipe).__name__} has none"
        )
    pipe.set_progress_bar_config(disable=True)
    return pipe.to(device)


def _check_parts(folder: Path) -> None:
    """Refuse a saved pipeline whose text encoders need a package that is not installed."""
    try:
        index = json.loads((folder / INDEX).read_text())
    except (OSError, ValueError):
        raise ConfigError(f"cannot load {folder}: no readable {INDEX} in it") from None
    needed = {
        name: part
        for name, part in index.items()
        if isinstance(part, list) and len(part) == 2 and part[0] == "transformers"
    }
    if needed and find_spec("transformers") is None:
        parts = ", ".join(f"{name} ({part[1]})" for name, part in needed.items())
        raise ConfigError(
            f"{folder} needs the package transformers for {parts}: pip install transformers"
        )


def capture_diffusers(
    path: str | Path,
    source: str,
    *,
    prompt: str,
    steps: int,
    seed: int = 0,
    layers: str = "*blocks.*",
    guidance: float | None = None,
    sample: int = 0,
    dtype: str = "float16",
    saturate: bool = False,
    model_dtype: str = "float32",
    device: str = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> Recorded:
    """Draw one image with a diffusers pipeline and write a dump of its transformer's layers.

    Parameters
    ----------
    path:
        The dump to write; see ``docs/dumps.md``.
    source:
        Folder of a saved pipeline, or the name under which diffusers loads it.
    prompt:
        Text; for a class-conditional pipeline a class number or label.
    steps:
        Denoising steps.
    seed:
        Of the starting noise.
    guidance:
        Guidance scale; None: the pipeline's own.
    layers, sample, dtype, saturate, progress:
        As in :func:`~dstar.golden.model.record.record`.
    model_dtype, device:
        What the pipeline runs in and on.

    Raises
    ------
    ConfigError, DumpError
        As :func:`load_pipeline` and :func:`~dstar.golden.model.record.record`; nothing is left
        behind.
    """
    pipe = load_pipeline(source, dtype=model_dtype, device=device)
    known = inspect.signature(type(pipe).__call__).parameters
    arguments: dict[str, Any] = {"num_inference_steps": steps}
    if "class_labels" in known:
        arguments |= {"class_labels": [_label(pipe, prompt)], "output_type": "np"}
    elif "prompt" in known:
        arguments |= {"prompt": prompt, "output_type": "latent"}
    else:
        raise ConfigError(f"{type(pipe).__name__} must take a prompt or class_labels")
    if guidance is not None:
        arguments["guidance_scale"] = guidance

    def run() -> None:
        pipe(**arguments, generator=torch.Generator(device).manual_seed(seed))

    def info() -> DumpInfo:
        # Distinct times: some schedulers visit one twice.
        times = dict.fromkeys(float(t) for t in pipe.scheduler.timesteps)
        return DumpInfo(
            model=f"{type(pipe).__name__} {source}",
            steps=len(times),
            scheduler=type(pipe.scheduler).__name__,
            seed=seed,
            extra={"prompt": prompt, "guidance": str(guidance), "sample": str(sample)},
        )

    return record(
        path,
        pipe.transformer,
        run,
        info=info,
        layers=layers,
        sample=sample,
        dtype=dtype,
        saturate=saturate,
        progress=progress,
    )


def _label(pipe: Any, prompt: str) -> int:
    """A class number from a number or a label."""
    if prompt.isdecimal():
        classes = getattr(pipe.transformer.config, "num_embeds_ada_norm", None)
        if classes is not None and int(prompt) >= classes:
            raise ConfigError(f"class must be below {classes}, got {prompt}")
        return int(prompt)
    labels: dict[str, int] = getattr(pipe, "labels", {})
    if prompt not in labels:
        known = ", ".join(list(labels)[:8]) or "none"
        raise ConfigError(f"prompt must be a class number or a label ({known}...), got {prompt!r}")
    return labels[prompt]
