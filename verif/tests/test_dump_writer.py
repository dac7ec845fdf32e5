"""The dump writer: what it writes, what it refuses, and that it leaves a whole file or none."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import load_file

from dstar.golden.dump import (
    DumpError,
    DumpInfo,
    DumpReader,
    DumpWriter,
    TensorSpec,
    container,
    static_key,
    step_key,
)
from dstar.golden.dump.convert import decode, encode
from dstar.verif.tests.dump_tools import INFO, LAYER, save, toy_tensors, write


class Usage(NamedTuple):
    total: int
    used: int
    free: int


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_round_trip(tmp_path: Path, dtype: str) -> None:
    tensors = toy_tensors()
    path = write(tmp_path / "a.safetensors", tensors, dtype)
    kind = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32}[dtype]
    with DumpReader(path) as dump:
        assert dump.layers == dump.linear_layers == dump.match("blocks.*") == (LAYER,)
        assert dump.steps == range(3)
        assert dump.info == INFO
        layer = dump.layer(LAYER)
        assert (layer.tokens, layer.in_features, layer.out_features) == (5, 3, 4)
        expected = {key: value.astype(kind).astype(np.float32) for key, value in tensors.items()}
        np.testing.assert_array_equal(dump.w(LAYER), expected[f"{LAYER}/w"])
        np.testing.assert_array_equal(dump.b(LAYER), expected[f"{LAYER}/b"])
        for step in dump.steps:
            x = dump.x(LAYER, step)
            assert x.dtype == np.float16
            np.testing.assert_array_equal(
                x, expected[f"{LAYER}/00{step}/x"].astype(np.float16), strict=True
            )
            np.testing.assert_array_equal(dump.y(LAYER, step), expected[f"{LAYER}/00{step}/y"])
    assert [p.name for p in tmp_path.iterdir()] == ["a.safetensors"]


def test_library_reads_what_the_writer_wrote(tmp_path: Path) -> None:
    tensors = toy_tensors()
    tensors[f"{LAYER}/w"] = np.asfortranarray(tensors[f"{LAYER}/w"])
    tensors[f"{LAYER}/b"] = np.repeat(tensors[f"{LAYER}/b"], 2)[::2]
    tensors[f"{LAYER}/000/x"] = np.ascontiguousarray(tensors[f"{LAYER}/000/x"].T).T
    tensors[f"{LAYER}/001/x"] = np.repeat(tensors[f"{LAYER}/001/x"], 2, axis=0)[::2]
    loaded = load_file(write(tmp_path / "a.safetensors", tensors))
    assert loaded.keys() == tensors.keys()
    for key, value in tensors.items():
        np.testing.assert_array_equal(loaded[key], value, strict=True)


def test_mixed_formats_in_any_order(tmp_path: Path) -> None:
    tensors = toy_tensors()
    specs = {
        key: TensorSpec(v.shape, ("float16", "float32")[i % 2])
        for i, (key, v) in enumerate(tensors.items())
    }
    path = tmp_path / "a.safetensors"
    with DumpWriter(path, info=INFO, tensors=specs) as writer:
        for key in reversed(tensors):
            writer.write(key, tensors[key])
    assert path.stat().st_size == writer.size
    for key, value in load_file(path).items():
        np.testing.assert_array_equal(value, tensors[key].astype(specs[key].dtype), strict=True)


@given(
    hnp.arrays(np.float32, 8, elements=st.floats(width=32, allow_nan=False, allow_infinity=False))
)
def test_bfloat16_rounds_as_ml_dtypes(values: np.ndarray[Any, Any]) -> None:
    expected = values.astype(ml_dtypes.bfloat16)
    spec = TensorSpec(values.shape, "bfloat16")
    if np.isfinite(expected.astype(np.float32)).all():
        assert encode(values, spec) == expected.tobytes() == encode(expected, spec)
        np.testing.assert_array_equal(decode(expected.tobytes(), spec), expected.astype(np.float32))
    else:
        with pytest.raises(DumpError, match=r"value at \[\d\]"):
            encode(values, spec)


def test_header_too_large_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "HEADER_LIMIT", 100_000)
    specs = {step_key(f"l{i}", s, "q", INFO): TensorSpec((1, 1, 1)) for i in range(600)
             for s in range(3)}  # fmt: skip
    with pytest.raises(DumpError, match=r"header too large: 1,800 tensors need a header of 1\d\d"):
        DumpWriter(tmp_path / "a.safetensors", info=INFO, tensors=specs)
    assert list(tmp_path.iterdir()) == []


def test_bfloat16_ties_go_to_even() -> None:
    ties = np.array([1 + 2**-8, 1 + 3 * 2**-8, -(1 + 2**-8), 2**-133 * 1.5], np.float32)
    even = np.array([1, 1 + 2**-6, -1, 2**-132], np.float32)
    spec = TensorSpec(ties.shape, "bfloat16")
    np.testing.assert_array_equal(decode(encode(ties, spec), spec), even)


@pytest.mark.full
def test_over_a_million_tensors(tmp_path: Path) -> None:
    info = DumpInfo(model="m", steps=50, scheduler="s", seed=0)
    specs = {step_key(f"transformer.blocks.{i}.attn.to_out", s, "q", info): TensorSpec((1, 1, 1))
             for i in range(24_000) for s in range(50)}  # fmt: skip
    with pytest.raises(DumpError, match=r"header too large: 1,200,000 tensors"):
        DumpWriter(tmp_path / "a.safetensors", info=info, tensors=specs)


def test_disk_too_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 9 * 10**8, 10**8))
    info = DumpInfo(model="m", steps=50, scheduler="s", seed=0)
    specs = {"fc/w": TensorSpec((4608, 4608))}
    for step in range(50):
        specs |= {step_key("fc", step, name, info): TensorSpec((4608, 4608)) for name in "xy"}
    with pytest.raises(DumpError) as caught:
        DumpWriter(tmp_path / "a.safetensors", info=info, tensors=specs)
    needed = re.search(r"the dump needs 4.3 GB \(([\d,]+) bytes\)", str(caught.value))
    assert needed is not None
    assert int(needed[1].replace(",", "")) - 101 * 4608**2 * 2 in range(5000, 20000)
    assert "has 100.0 MB (100,000,000 bytes) free" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_disk_fills_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int, data: bytes, offset: int) -> int:
        raise OSError(28, "No space left on device")

    tensors = toy_tensors()
    specs = {key: TensorSpec(value.shape) for key, value in tensors.items()}
    writer = DumpWriter(tmp_path / "a.safetensors", info=INFO, tensors=specs)
    monkeypatch.setattr("os.pwrite", full)
    with pytest.raises(DumpError, match="cannot write: No space left on device at byte"), writer:
        writer.write(f"{LAYER}/w", tensors[f"{LAYER}/w"])
    assert list(tmp_path.iterdir()) == []


def test_nothing_half_written(tmp_path: Path) -> None:
    tensors = toy_tensors()
    path = save(tmp_path / "a.safetensors", tensors)
    before = path.read_bytes()
    specs = {key: TensorSpec(value.shape) for key, value in tensors.items()}

    def interrupted() -> None:
        with DumpWriter(path, info=INFO, tensors=specs) as writer:
            writer.write(f"{LAYER}/w", tensors[f"{LAYER}/w"])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with (
        pytest.raises(DumpError, match=rf"{LAYER}/b: declared but never written \(7 such keys\)"),
        DumpWriter(path, info=INFO, tensors=specs) as writer,
    ):
        writer.write(f"{LAYER}/w", tensors[f"{LAYER}/w"])
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_writer_refuses(tmp_path: Path) -> None:
    tensors = toy_tensors()
    specs = {key: TensorSpec(value.shape) for key, value in tensors.items()}
    path = tmp_path / "a.safetensors"
    writer = DumpWriter(path, info=INFO, tensors=specs)
    w = static_key(LAYER, "w")
    bad: dict[str, tuple[str, Any]] = {
        "not declared": ("other/w", tensors[w]),
        r"shape must be \[4, 3\] as declared, got \[3, 4\]": (w, tensors[w].T),
        "values must be floating point, got int64": (w, np.ones((4, 3), np.int64)),
        r"value at \[2, 0\] must be finite, got nan": (w, np.where(np.arange(12) == 6, np.nan, 1)),
        r"value at \[0, 0\] is beyond float16: 65520.0": (w, np.full((4, 3), 65520.0)),
    }
    for message, (key, value) in bad.items():
        with pytest.raises(DumpError, match=f"{path}: {key}: {message}"):
            writer.write(
                key, value.reshape(4, 3) if value.size == 12 and value.ndim == 1 else value
            )
    writer.write(w, tensors[w])
    with pytest.raises(DumpError, match="already written"):
        writer.write(w, tensors[w])
    writer.abort()
    with pytest.raises(DumpError, match="cannot write: no folder"):
        DumpWriter(tmp_path / "no" / "a", info=INFO, tensors=specs)
    with pytest.raises(DumpError, match="cannot write: is a folder"):
        DumpWriter(tmp_path, info=INFO, tensors=specs)
    del specs[w]
    with pytest.raises(DumpError, match=f"{w}: missing"):
        DumpWriter(path, info=INFO, tensors=specs)
    assert list(tmp_path.iterdir()) == []


def test_header_is_aligned_json(tmp_path: Path) -> None:
    path = write(tmp_path / "a.safetensors", toy_tensors())
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    assert length % 8 == 0
    assert json.loads(raw[8 : 8 + length])["__metadata__"]["steps"] == "3"
