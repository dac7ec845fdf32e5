"""Bit-exact golden models of every unit, and the FMDQ algorithm on whole layers.

The names below are imported on first use, so that importing this package stays cheap; only whole
models (``apply``, ``FMDQ``, ``SAR``) import PyTorch.  Functions that are named like their module
are imported from it: ``from dstar.golden.quantize import quantize``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .bins import BinEntry, BinTable
    from .encode import EncodedTile, decode, encode_layer
    from .linear import FMDQLinear, LayerTables, LinearStep
    from .model.apply import apply
    from .model.fmdq import FMDQ
    from .model.sar import SAR
    from .quantize import Quantized, difference, reconstruct
    from .schedule import Schedule
    from .weights import QuantizedWeight, quantize_weight

_MODULES = {
    "bins": ("BinEntry", "BinTable"),
    "encode": ("EncodedTile", "decode", "encode_layer"),
    "linear": ("FMDQLinear", "LayerTables", "LinearStep"),
    "model.apply": ("apply",),
    "model.fmdq": ("FMDQ",),
    "model.sar": ("SAR",),
    "quantize": ("Quantized", "difference", "reconstruct"),
    "schedule": ("Schedule",),
    "weights": ("QuantizedWeight", "quantize_weight"),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "FMDQ",
    "SAR",
    "BinEntry",
    "BinTable",
    "EncodedTile",
    "FMDQLinear",
    "LayerTables",
    "LinearStep",
    "Quantized",
    "QuantizedWeight",
    "Schedule",
    "apply",
    "decode",
    "difference",
    "encode_layer",
    "quantize_weight",
    "reconstruct",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
