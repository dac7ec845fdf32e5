"""The output path's stream words as bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dstar.gen.config import EXPONENT_BITS, Config
from dstar.verif.packing import Field, Words, output_fields, pack

Half = npt.NDArray[np.float16]

#: :func:`dstar.rtl.output.path.channel_layout`: scale (bfloat16 without sign), bias.
CHANNEL = (Field(15), Field(16))


def command_fields(columns: int) -> tuple[Field, ...]:
    """:func:`dstar.rtl.output.path.output_command_layout`: first, last, keyframe, finest, base."""
    base = Field(max(1, (columns - 1).bit_length()))
    return Field(1), Field(1), Field(1), Field(EXPONENT_BITS, signed=True), base


def command_words(rows: Sequence[Sequence[int]], columns: int) -> Words:
    """Words of (first, last, keyframe, finest, base) each, for a unit that keeps ``columns``."""
    return pack(command_fields(columns), list(np.array(rows, np.int64).T))


def sums_words(sums: npt.NDArray[np.int64], exponents: npt.NDArray[np.int64], cfg: Config) -> Words:
    """Words of column sums int64 (columns, rows) and their exponents (columns,).

    The words' ``last`` bits are left 0: the output path counts columns itself.
    """
    return pack(output_fields(cfg), [sums, exponents, np.zeros(len(sums), np.int64)])


def channel_words(scale: npt.NDArray[np.float32], bias: Half) -> Words:
    """Words of weight scales, positive bfloat16 values (channels,), and biases (channels,)."""
    bits = (np.ascontiguousarray(scale).view(np.uint32) >> 16).astype(np.int64)
    return pack(CHANNEL, [bits, np.ascontiguousarray(bias).view(np.uint16).astype(np.int64)])


def vector_words(vectors: Half) -> Words:
    """Words of token vectors, binary16 (vectors, rows)."""
    return np.ascontiguousarray(vectors).view(np.uint8)
