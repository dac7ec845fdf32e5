"""Dumps: a DiT's activations in one safetensors file, with a strict reader.

:class:`DumpReader` opens one lazily and refuses, by name, whatever does not fit;
:class:`DumpWriter` streams one to disk and leaves either a whole file or none.  ``docs/dumps.md``
states the format.
"""

from .container import HEADER_LIMIT, DumpError, TensorSpec
from .index import STATIC_TENSORS, STEP_TENSORS, LayerIndex
from .info import DumpInfo, static_key, step_key
from .reader import DumpReader
from .writer import DumpWriter

__all__ = [
    "HEADER_LIMIT",
    "STATIC_TENSORS",
    "STEP_TENSORS",
    "DumpError",
    "DumpInfo",
    "DumpReader",
    "DumpWriter",
    "LayerIndex",
    "TensorSpec",
    "static_key",
    "step_key",
]
