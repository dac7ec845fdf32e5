"""What the VPU computes on a dump: the operations of a DiT block, on the dump's own values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dstar.gen.config import Config
from dstar.golden.dump import DumpReader
from dstar.golden.vpu.generate import ulp
from dstar.golden.vpu.isa import Op, Program
from dstar.golden.vpu.programs import layer_norm, normalize, residual, softmax, unary
from dstar.golden.vpu.unary import Name
from dstar.golden.vpu.vpu import VPU

Half = npt.NDArray[np.float16]
Float64 = npt.NDArray[np.float64]

#: LayerNorm's usual epsilon in Diffusion Transformers.
EPSILON = 1e-6
_ACTIVATIONS: tuple[tuple[Op, Name], ...] = (
    (Op.GELU, "gelu"),
    (Op.GELU_TANH, "gelu_tanh"),
    (Op.SILU, "silu"),
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Work:
    """One operation on all token tiles of a tensor.

    ``what``: its name.  ``programs``: the same for every tile.  ``vectors``: input stream,
    binary16 (vectors, tiles, lanes).  ``golden``: output stream of the golden model, likewise.
    ``exact``: the part of it that is the result, in float64, and ``result`` where it starts.
    ``tokens``: real tokens; the last tile is padded.
    """

    what: str
    programs: list[Program]
    vectors: Half
    golden: Half
    exact: Float64
    result: int
    tokens: int

    @property
    def worst_ulp(self) -> float:
        """Largest distance of a golden result from the correctly rounded one, in units."""
        with np.errstate(over="ignore"):
            want = self.exact.astype(np.float16).astype(np.float64)
        got = self.golden[self.result :].astype(np.float64)
        flat = (a.reshape(len(a), -1)[:, : self.tokens] for a in (got, want, ulp(self.exact)))
        got, want, unit = flat
        return float((np.abs(got - want) / unit).max(initial=0.0))


def token_tiles(x: npt.NDArray[np.generic], rows: int) -> npt.NDArray[np.generic]:
    """(tokens, channels) as token vectors (channels, tiles, rows), padded with zeros."""
    tiles = -(-len(x) // rows)
    padded = np.zeros((tiles * rows, x.shape[1]), x.dtype)
    padded[: len(x)] = x
    return np.ascontiguousarray(padded.reshape(tiles, rows, -1).transpose(2, 0, 1))


def _run(programs: list[Program], vectors: Half, cfg: Config) -> Half:
    with np.errstate(over="ignore", invalid="ignore"):
        return VPU(vectors.shape[1:], cfg.vector).run(programs, vectors)


def _half(x: npt.NDArray[np.generic]) -> Half:
    """binary16, clipped to its finite range."""
    return np.clip(x.astype(np.float64), -65504, 65504).astype(np.float16)


def normalization(x: Half, cfg: Config) -> Work:
    """LayerNorm over the channels of (tokens, channels)."""
    tiles = token_tiles(x, cfg.array.rows).astype(np.float16)
    vectors = np.concatenate([tiles] * 3)
    programs = layer_norm(len(tiles), epsilon=EPSILON)
    wide = tiles.astype(np.longdouble)
    centred = wide - wide.mean(axis=0)
    exact = centred / np.sqrt((centred**2).mean(axis=0) + np.longdouble(EPSILON))
    return Work(
        what="layer_norm",
        programs=programs,
        vectors=vectors,
        golden=_run(programs, vectors, cfg),
        exact=exact.astype(np.float64),
        result=0,
        tokens=len(x),
    )


def activations(y: npt.NDArray[np.float32], cfg: Config) -> Iterator[Work]:
    """GELU in both forms and SiLU of (tokens, channels)."""
    from dstar.golden.vpu.generate import reference

    vectors = token_tiles(_half(y), cfg.array.rows).astype(np.float16)
    for op, name in _ACTIVATIONS:
        programs = unary(op, len(vectors))
        exact = reference(name)[vectors.view(np.uint16)]
        yield Work(
            what=name,
            programs=programs,
            vectors=vectors,
            golden=_run(programs, vectors, cfg),
            exact=exact,
            result=0,
            tokens=len(y),
        )


def residual_sum(x: Half, y: npt.NDArray[np.float32], cfg: Config) -> Work:
    """``x + y``, both (tokens, channels)."""
    a, b = (token_tiles(_half(v), cfg.array.rows).astype(np.float16) for v in (x, y))
    vectors = np.stack([b, a], axis=1).reshape(-1, *a.shape[1:])
    programs = residual(len(a))
    return Work(
        what="residual",
        programs=programs,
        vectors=vectors,
        golden=_run(programs, vectors, cfg),
        exact=a.astype(np.float64) + b.astype(np.float64),
        result=0,
        tokens=len(x),
    )


def attention_rows(q: Half, k: Half, cfg: Config) -> Work:
    """Softmax of one head's scores: q, k (tokens, head dimension); keys are the vectors."""
    scores = q.astype(np.float64) @ k.astype(np.float64).T / np.sqrt(q.shape[1])
    tiles = token_tiles(_half(scores), cfg.array.rows).astype(np.float16)
    first, second = softmax(len(tiles)), normalize(len(tiles))
    both = np.concatenate([tiles, tiles])
    unit = VPU(tiles.shape[1:], cfg.vector)
    exponentials = unit.run(first, both)
    probabilities = unit.run(second, exponentials)
    exact = np.exp(tiles.astype(np.float64) - tiles.max(axis=0).astype(np.float64))
    return Work(
        what="softmax",
        programs=[*first, *second],
        vectors=np.concatenate([both, exponentials]),
        golden=np.concatenate([exponentials, probabilities]),
        exact=exact / exact.sum(axis=0),
        result=len(tiles),
        tokens=len(q),
    )


def layer_work(dump: DumpReader, name: str, step: int, cfg: Config) -> Iterator[Work]:
    """All operations on one layer at one step.

    A linear layer gives LayerNorm of its input, GELU and SiLU of its output and, where it keeps
    its width, the residual sum of both; the attention beside a layer ``A.qkv`` or ``A.to_q``
    gives, where the dump holds it, softmax of each head's scores.
    """
    x, y = dump.x(name, step), dump.y(name, step)
    yield normalization(x, cfg)
    yield from activations(y, cfg)
    if x.shape == y.shape:
        yield residual_sum(x, y, cfg)
    attention = name.rpartition(".")[0]
    if name.endswith((".qkv", ".to_q")) and attention in dump.layers:
        q, k = (dump.activation(attention, step, tensor) for tensor in "qk")
        for head in range(len(q)):
            yield attention_rows(q[head], k[head], cfg)
