"""Threshold exponents measured on the shipped Diffusion Transformer.

``python bench/fmdq_quality.py --profile`` measures them and prints this table.  Each is tied to
its layer's weights: other weights under the same name do not match.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

#: Layer: exponent b of the step ``T = 2**-b``, and the digest of the layer's weights.
EXPONENTS: dict[str, tuple[int, str]] = {
    "blocks.0.adaln": (9, "32c78dc5de7c00a5"),
    "blocks.0.attn.qkv": (3, "666a7f868a055430"),
    "blocks.0.attn.proj": (5, "5b65d6d77ba4eba4"),
    "blocks.0.mlp.fc1": (7, "1f1665f0a358c91d"),
    "blocks.0.mlp.fc2": (6, "f64b7b053583fe47"),
    "blocks.1.adaln": (9, "8352752347f11f9c"),
    "blocks.1.attn.qkv": (6, "b562b3ae872461d9"),
    "blocks.1.attn.proj": (6, "41a60df7bce7ff55"),
    "blocks.1.mlp.fc1": (6, "96a64979e502cc68"),
    "blocks.1.mlp.fc2": (6, "d1783e2e304215b2"),
    "blocks.2.adaln": (9, "57a25c94c113767d"),
    "blocks.2.attn.qkv": (5, "283e83125f989c22"),
    "blocks.2.attn.proj": (4, "39f424a48560b570"),
    "blocks.2.mlp.fc1": (4, "2aa4f5fdbe8a8e9a"),
    "blocks.2.mlp.fc2": (4, "30ef5817246baffa"),
    "blocks.3.adaln": (9, "d743d5531d711783"),
    "blocks.3.attn.qkv": (4, "daeb74df48289f4a"),
    "blocks.3.attn.proj": (4, "90caacc780101f7a"),
    "blocks.3.mlp.fc1": (2, "f917a09ada4a0b50"),
    "blocks.3.mlp.fc2": (4, "8b194d4ccd3a6c37"),
}


def digest(w: npt.NDArray[np.floating]) -> str:
    """Sixteen hex digits that identify a layer's weights (out, in), to binary16."""
    with np.errstate(over="ignore"):
        half = np.ascontiguousarray(w, np.float16)
    return hashlib.sha256(half.tobytes()).hexdigest()[:16]


def exponent(layer: str, w: npt.NDArray[np.floating]) -> int | None:
    """The measured exponent of a layer, or None if it is not the shipped model's."""
    b, weights = EXPONENTS.get(layer, (0, ""))
    return b if weights and weights == digest(w) else None
