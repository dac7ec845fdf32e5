"""Number formats of dump tensors: bytes to arrays and back, without PyTorch.

bfloat16 is the upper half of a binary32, so it is handled as ``uint16`` shifted by 16 bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .container import DumpError, TensorSpec

#: Largest finite binary16.
MAX_BINARY16 = 65504.0

Float = NDArray[np.float16] | NDArray[np.float32]


def decode(raw: bytes, spec: TensorSpec) -> Float:
    """The values of a tensor's bytes: binary16 as such, bfloat16 and binary32 as binary32."""
    if spec.dtype == "float16":
        return np.frombuffer(raw, "<f2").reshape(spec.shape).astype(np.float16, copy=False)
    if spec.dtype == "bfloat16":
        upper = np.frombuffer(raw, "<u2").astype(np.uint32) << np.uint32(16)
        return upper.view(np.float32).reshape(spec.shape)
    return np.frombuffer(raw, "<f4").reshape(spec.shape).astype(np.float32, copy=False)


def encode(values: NDArray[Any], spec: TensorSpec) -> bytes:
    """The bytes of `values` in the format of `spec`, rounded to nearest even.

    Accepts float16, float32, float64 and ``ml_dtypes.bfloat16`` arrays in any memory order.

    Raises
    ------
    DumpError
        If the shape differs from the spec's, the array holds no floats, or a value is not finite
        in the format of `spec`.
    """
    if values.shape != spec.shape:
        raise DumpError(f"shape must be {list(spec.shape)} as declared, got {list(values.shape)}")
    if values.dtype.name == "bfloat16":
        raw = values.astype(values.dtype.newbyteorder("<")).tobytes()
        values = decode(raw, TensorSpec(spec.shape, "bfloat16"))
    elif values.dtype.kind != "f":
        raise DumpError(f"values must be floating point, got {values.dtype}")
    check_finite(values)
    with np.errstate(over="ignore"):  # reported below, with the position
        if spec.dtype == "bfloat16":
            bits = values.astype(np.float32).view(np.uint32)
            odd = (bits >> np.uint32(16)) & np.uint32(1)
            result: NDArray[Any] = ((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype("<u2")
            finite = (result & 0x7F80) != 0x7F80
        else:
            result = values.astype("<f2" if spec.dtype == "float16" else "<f4")
            finite = np.isfinite(result)
    if not finite.all():
        position = first_true(~finite)
        raise DumpError(
            f"value at {list(position)} is beyond {spec.dtype}: {float(values[position])!r}"
        )
    return result.tobytes(order="C")  # whatever the array's order in memory


def to_binary16(values: Float, *, saturate: bool = False) -> tuple[NDArray[np.float16], int]:
    """Round finite values to binary16 (nearest even; subnormals and -0.0 kept).

    Returns
    -------
    The rounded values, and how many were clipped to +-65504 (0 unless `saturate`).

    Raises
    ------
    DumpError
        If a value rounds beyond binary16 and `saturate` is false; names the position.
    """
    if values.dtype == np.float16:
        return values, 0  # type: ignore[return-value]
    with np.errstate(over="ignore"):
        result = values.astype(np.float16)
    beyond = np.isinf(result)
    count = int(np.count_nonzero(beyond))
    if count and not saturate:
        position = first_true(beyond)
        raise DumpError(
            f"value at {list(position)} is beyond binary16 (at most {MAX_BINARY16:.0f}): "
            f"{float(values[position])!r}; saturate to clip it"
        )
    if count:
        result[beyond] = np.copysign(np.float16(MAX_BINARY16), result[beyond])
    return result, count


def check_finite(values: NDArray[Any]) -> None:
    """Refuse (DumpError) a NaN or an infinity, naming its position."""
    finite = np.isfinite(values)
    if not finite.all():
        position = first_true(~finite)
        raise DumpError(
            f"value at {list(position)} must be finite, got {float(values[position])!r}"
        )


def first_true(mask: NDArray[np.bool_]) -> tuple[int, ...]:
    """Index of the first true element in row-major order."""
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(mask)), mask.shape))
