"""The Diffusion Transformer in NumPy: equal to `model.DiT` within 1e-4, and open to hooks.

Everything is float32; matrix products go to BLAS. Tokens of a batch lie one below the other, so
that activations are matrices of (batch * tokens, hidden) and the rows of one sample are
contiguous: sample b owns rows b * tokens to (b + 1) * tokens - 1. Token r * grid + c is the patch
in row r and column c of the image; inside a patch the order is row, column, channel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

import numpy as np
import numpy.typing as npt

from .spec import DIGITS, DiTSpec

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Weights = Mapping[str, Floats]

Linear = Callable[[str, Floats, Floats, Floats], Floats]
"""Hook (name, x, w, b) -> x w^T + b; x is (rows, in), w (out, in), b (out,), result (rows, out).

`rows` is batch * tokens, or batch in the layers of `DiTSpec.conditioning`. The arrays must not
be written to.
"""
Attention = Callable[[str, Floats, Floats, Floats], Floats]
"""Hook (name, q, k, v) -> o, once a sample; all four are (heads, tokens, head_dim)."""

EPSILON = np.float32(1e-6)
"""Added to the variance in every layer norm."""
TIME_SCALE = np.float32(1000.0)
"""Times in [0, 1] are multiplied by this before their sinusoidal embedding."""


@cache
def frequencies(count: int) -> Floats:
    """`count` angular frequencies, from 1 down towards 1e-4 in a geometric series."""
    table = (10000.0 ** (-np.arange(count) / count)).astype(np.float32)
    table.flags.writeable = False
    return table


@cache
def position_embedding(width: int, grid: int) -> Floats:
    """Fixed sin-cos embedding of a square grid: (grid * grid, width).

    The first half of the channels encodes the row, the second half the column; each half is
    sines, then cosines.
    """
    angles = np.arange(grid, dtype=np.float32)[:, None] * frequencies(width // 4)
    axis = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    table = np.concatenate([np.repeat(axis, grid, axis=0), np.tile(axis, (grid, 1))], axis=1)
    table.flags.writeable = False
    return table


def timestep_embedding(t: Floats, width: int) -> Floats:
    """Sinusoidal embedding of times (batch,) in [0, 1]: (batch, width), cosines first."""
    angles = (t * TIME_SCALE)[:, None] * frequencies(width // 2)
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1)


def plain_linear(name: str, x: Floats, w: Floats, b: Floats) -> Floats:
    """The float layer, x w^T + b: what runs where no hook is given."""
    y: Floats = x @ w.T
    y += b
    return y


def plain_attention(name: str, q: Floats, k: Floats, v: Floats) -> Floats:
    """softmax(q k^T / sqrt(head_dim)) v over the last two axes; any axes in front."""
    scores = np.matmul(q * np.float32(q.shape[-1] ** -0.5), k.swapaxes(-1, -2))
    scores -= np.max(scores, axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    o: Floats = scores @ v
    o /= np.sum(scores, axis=-1, keepdims=True)
    return o


def silu(x: Floats) -> Floats:
    """x * sigmoid(x), through tanh because that cannot overflow."""
    half = np.float32(0.5) * x
    y: Floats = np.tanh(half)
    y *= half
    y += half
    return y


def gelu(x: Floats) -> Floats:
    """x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) / 2: GELU in its tanh form."""
    u: Floats = x * x
    u *= np.float32(0.044715 * 0.7978845608028654)
    u += np.float32(0.7978845608028654)
    u *= x
    np.tanh(u, out=u)
    u += np.float32(1.0)
    u *= x
    u *= np.float32(0.5)
    return u


def _modulate(x: Floats, shift: Floats, scale: Floats) -> Floats:
    """Layer norm of x (batch, tokens, hidden), scaled and shifted by (batch, 1, hidden)."""
    width = np.float32(x.shape[-1])
    y: Floats = x - x.mean(axis=-1, keepdims=True)
    variance = np.einsum("btc,btc->bt", y, y)[..., None] / width
    y *= np.float32(1.0) / np.sqrt(variance + EPSILON)
    y *= scale + np.float32(1.0)
    y += shift
    return y


def patches(x: Floats, spec: DiTSpec) -> Floats:
    """Images (batch, channels, side, side) to token rows (batch * tokens, patch_dim)."""
    x = x.reshape(-1, spec.channels, spec.grid, spec.patch, spec.grid, spec.patch)
    return x.transpose(0, 2, 4, 3, 5, 1).reshape(-1, spec.patch_dim)


def unpatch(rows: Floats, spec: DiTSpec) -> Floats:
    """The inverse of `patches`."""
    x = rows.reshape(-1, spec.grid, spec.grid, spec.patch, spec.patch, spec.channels)
    return x.transpose(0, 5, 1, 3, 2, 4).reshape(-1, spec.channels, spec.image, spec.image)


def forward(
    weights: Weights,
    x: Floats,
    t: Floats,
    y: Ints,
    *,
    spec: DiTSpec = DIGITS,
    linear: Linear | None = None,
    attention: Attention | None = None,
) -> Floats:
    """Predict the velocity of a rectified flow.

    Parameters
    ----------
    weights:
        Tensors named and shaped as in `spec.tensors`, float32.
    x:
        Noised images (batch, channels, side, side).
    t:
        Times (batch,) in [0, 1]; 1 is pure noise.
    y:
        Classes (batch,); `spec.null_class` for none.
    linear, attention:
        Hooks that replace every linear layer and every attention product. They are called in
        the order of `spec.linears`, attention (named `blocks.N.attn`) between `qkv` and `proj`.

    Returns
    -------
    Velocity, of the shape of `x`.
    """
    batch, tokens, hidden, heads = len(x), spec.tokens, spec.hidden, spec.heads
    hook = linear or plain_linear

    def apply(name: str, rows: Floats) -> Floats:
        return hook(name, rows, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def attend(name: str, rows: Floats) -> Floats:
        qkv = rows.reshape(batch, tokens, 3, heads, spec.head_dim).transpose(2, 0, 3, 1, 4)
        q, k, v = np.ascontiguousarray(qkv)
        if attention is None:
            o = plain_attention(name, q, k, v)
        else:
            o = np.stack([attention(name, *sample) for sample in zip(q, k, v, strict=True)])
        return o.transpose(0, 2, 1, 3).reshape(batch * tokens, hidden)

    def parts(name: str, count: int) -> list[Floats]:
        split = apply(name, c).reshape(batch, count, 1, hidden)
        return [split[:, i] for i in range(count)]

    def token_layer(name: str, h: Floats) -> Floats:
        return apply(name, h.reshape(batch * tokens, hidden))

    h = apply("patch_embed", patches(x, spec)).reshape(batch, tokens, hidden)
    h = h + position_embedding(hidden, spec.grid)
    c = silu(apply("t_embed.fc1", timestep_embedding(t, spec.frequency)))
    c = silu(apply("t_embed.fc2", c) + weights["y_embed.weight"][y])
    for i in range(spec.depth):
        block = f"blocks.{i}"
        shift1, scale1, gate1, shift2, scale2, gate2 = parts(f"{block}.adaln", 6)
        a = token_layer(f"{block}.attn.qkv", _modulate(h, shift1, scale1))
        a = apply(f"{block}.attn.proj", attend(f"{block}.attn", a))
        h += gate1 * a.reshape(h.shape)
        m = gelu(token_layer(f"{block}.mlp.fc1", _modulate(h, shift2, scale2)))
        h += gate2 * apply(f"{block}.mlp.fc2", m).reshape(h.shape)
    shift, scale = parts("final.adaln", 2)
    return unpatch(token_layer("final.linear", _modulate(h, shift, scale)), spec)
