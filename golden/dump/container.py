"""The safetensors container: header, byte layout and limits.

A file is the header's length (8 bytes, little-endian), the header (JSON, padded with spaces to a
multiple of 8 bytes) and the tensors' bytes without gaps.  The container is read and written here
rather than by the ``safetensors`` package because that one can neither stream nor say which tensor
is at fault; the tests read every written file back with it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

#: Longest header in bytes that the safetensors format allows.
HEADER_LIMIT = 100_000_000

#: Accepted number formats by their safetensors name: (name in this package, bytes a value).
DTYPES = {"F16": ("float16", 2), "BF16": ("bfloat16", 2), "F32": ("float32", 4)}
_CODES = {name: code for code, (name, _) in DTYPES.items()}
_METADATA = "__metadata__"


class DumpError(ValueError):
    """A dump that cannot be read or written; the message says what, where, the rule, the value."""


@dataclass(frozen=True)
class TensorSpec:
    """Shape and number format (``float16``, ``bfloat16``, ``float32``) of one tensor."""

    shape: tuple[int, ...]
    dtype: str = "float16"

    def __post_init__(self) -> None:
        if self.dtype not in _CODES:
            raise DumpError(f"dtype must be one of {', '.join(_CODES)}, got {self.dtype!r}")

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return math.prod(self.shape) * DTYPES[_CODES[self.dtype]][1]


@dataclass(frozen=True)
class Entry:
    """Where one tensor lies: its key, its spec and the absolute offset of its first byte."""

    key: str
    spec: TensorSpec
    offset: int


def size_text(count: int) -> str:
    """A byte count for a message, as ``1.6 GB (1,600,000,000 bytes)``."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit} ({count:,} bytes)"
    return f"{count} bytes"


def build_header(
    metadata: Mapping[str, str], tensors: Mapping[str, TensorSpec]
) -> tuple[bytes, dict[str, Entry], int]:
    """Lay out `tensors` and encode the header.

    Wider formats come first, as in the ``safetensors`` package, so that every tensor is aligned;
    within a format the given order holds.

    Returns
    -------
    The bytes before the data (length and header), where each tensor goes, the file's size.

    Raises
    ------
    DumpError
        If the header would exceed :data:`HEADER_LIMIT`.
    """
    header: dict[str, Any] = {_METADATA: dict(metadata)}
    offsets: dict[str, int] = {}
    end = 0
    by_width = sorted(tensors.items(), key=lambda item: -DTYPES[_CODES[item[1].dtype]][1])
    for key, spec in by_width:
        offsets[key] = end
        end += spec.nbytes
        header[key] = {
            "dtype": _CODES[spec.dtype],
            "shape": list(spec.shape),
            "data_offsets": [offsets[key], end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > HEADER_LIMIT:
        raise DumpError(
            f"header too large: {len(tensors):,} tensors need a header of {size_text(len(text))}, "
            f"the safetensors limit is {size_text(HEADER_LIMIT)}; capture fewer layers or steps"
        )
    start = 8 + len(text)
    entries = {key: Entry(key, spec, start + offsets[key]) for key, spec in tensors.items()}
    return len(text).to_bytes(8, "little") + text, entries, start + end


def read_header(path: Path, file: BinaryIO) -> tuple[dict[str, str], dict[str, Entry]]:
    """Metadata and tensors of an open safetensors file, in the order of their bytes.

    Raises
    ------
    DumpError
        If the file is not safetensors, is truncated or too long, its header is too large or
        malformed, or a tensor has an unsupported number format.
    """
    size = os.fstat(file.fileno()).st_size
    start = file.read(9)
    if len(start) < 9 or start[8:] != b"{":
        raise DumpError(f"{path}: not a safetensors file (no header after the first 8 bytes)")
    length = int.from_bytes(start[:8], "little")
    if length > HEADER_LIMIT:
        raise DumpError(
            f"{path}: header too large: {size_text(length)}, "
            f"the safetensors limit is {size_text(HEADER_LIMIT)}"
        )
    if 8 + length > size:
        raise DumpError(
            f"{path}: truncated: the header ends at byte {8 + length:,}, "
            f"the file has {size:,} bytes"
        )
    text = b"{" + file.read(length - 1)
    try:
        header = json.loads(text, object_pairs_hook=_unique)
        metadata = dict(header.pop(_METADATA, {}))
        tensors = {key: (item["dtype"], *_layout(item)) for key, item in header.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DumpError(f"{path}: not a safetensors file (malformed header: {error})") from None
    entries: dict[str, Entry] = {}
    position = 0
    for key, (code, shape, begin, end) in sorted(tensors.items(), key=lambda item: item[1][2:]):
        if code not in DTYPES:
            raise DumpError(f"{path}: {key}: dtype must be one of {', '.join(DTYPES)}, got {code}")
        spec = TensorSpec(shape, DTYPES[code][0])
        if begin != position or end - begin != spec.nbytes:
            raise DumpError(
                f"{path}: {key}: malformed header: {list(shape)} {code} is {spec.nbytes} bytes "
                f"from byte {position} of the data, the header says {begin} to {end}"
            )
        entries[key] = Entry(key, spec, 8 + length + begin)
        position = end
    if (expected := 8 + length + position) != size:
        what = "truncated" if expected > size else "too long"
        raise DumpError(
            f"{path}: {what}: the header describes {expected:,} bytes, the file has {size:,}"
        )
    return {str(key): str(value) for key, value in metadata.items()}, entries


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose keys must differ."""
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"{key!r} appears twice")
        result[key] = value
    return result


def _layout(item: dict[str, Any]) -> tuple[tuple[int, ...], int, int]:
    """Shape, first and last byte of a header item; ValueError unless non-negative integers."""
    begin, end = item["data_offsets"]
    for value in (*item["shape"], begin, end):
        if type(value) is not int or value < 0:
            raise ValueError(f"{value!r} is not a size")
    return tuple(item["shape"]), begin, end
