"""The dump reader: every way in which it refuses a file, and what it makes of values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dstar.golden.dump import (
    DumpError,
    DumpInfo,
    DumpReader,
    DumpWriter,
    TensorSpec,
)
from dstar.verif.tests.dump_tools import LAYER, read_everything, refusal, save, toy_tensors


def test_negative_zero_and_subnormals_pass(tmp_path: Path) -> None:
    tensors = toy_tensors()
    tensors[f"{LAYER}/001/x"][0] = [-0.0, 2.0**-24, -(2.0**-15)]
    with DumpReader(save(tmp_path / "a.safetensors", tensors)) as dump:
        x = dump.x(LAYER, 1)
    assert x[0].view(np.uint16).tolist() == [0x8000, 0x0001, 0x8200]


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        (f"{LAYER}/w", "a linear layer has x, y and w; this one has ['x', 'y', 'b']"),
        (f"{LAYER}/001/x", "the dump has 3 steps, and other steps of this layer have 'x'"),
        (f"{LAYER}/002/y", "the dump has 3 steps, and other steps of this layer have 'y'"),
    ],
)
def test_missing_key(tmp_path: Path, key: str, reason: str) -> None:
    tensors = toy_tensors()
    del tensors[key]
    assert refusal(save(tmp_path / "a.safetensors", tensors)) == f"{key}: missing ({reason})"


def test_missing_last_step_of_every_layer(tmp_path: Path) -> None:
    path = save(tmp_path / "a.safetensors", toy_tensors(), steps="4")
    assert refusal(path).startswith(f"{LAYER}/003/x: missing (the dump has 4 steps")


@pytest.mark.parametrize(
    ("key", "shape", "message"),
    [
        (f"{LAYER}/w", (4, 2), "must be [4, 3] (x is tokens x in), got [4, 2]"),
        (f"{LAYER}/b", (5,), "must be [4] (w is out x in), got [5]"),
    ],
)
def test_shape_does_not_fit(tmp_path: Path, key: str, shape: tuple[int, ...], message: str) -> None:
    tensors = toy_tensors() | {key: np.zeros(shape, np.float16)}
    path = save(tmp_path / "a.safetensors", tensors)
    assert refusal(path) == f"{key}: shape does not fit: {message}"


def test_y_does_not_fit(tmp_path: Path) -> None:
    tensors = toy_tensors()
    tensors |= {f"{LAYER}/00{step}/y": np.zeros((5, 3), np.float32) for step in range(3)}
    assert refusal(save(tmp_path / "a.safetensors", tensors)) == (
        f"{LAYER}/000/y: shape does not fit: must be [5, 4] (x is tokens x in, w out x in), "
        "got [5, 3]"
    )


def test_shape_changes_between_steps(tmp_path: Path) -> None:
    tensors = toy_tensors() | {f"{LAYER}/002/x": np.zeros((6, 3), np.float32)}
    message = f"{LAYER}/002/x: shape must be [5, 3] as at step 0, got [6, 3]"
    assert refusal(save(tmp_path / "a.safetensors", tensors)) == message


@pytest.mark.parametrize("shape", [(15,), (0, 3), (1, 5, 3)])
def test_wrong_axes(tmp_path: Path, shape: tuple[int, ...]) -> None:
    tensors = toy_tensors() | {f"{LAYER}/000/x": np.zeros(shape, np.float32)}
    assert refusal(save(tmp_path / "a.safetensors", tensors)) == (
        f"{LAYER}/000/x: shape must be tokens x features, none zero, got {list(shape)}"
    )


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("key", [f"{LAYER}/001/x", f"{LAYER}/002/y", f"{LAYER}/w"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_non_finite(tmp_path: Path, value: str, key: str, dtype: Any) -> None:
    tensors = {name: array.astype(dtype) for name, array in toy_tensors().items()}
    tensors[key][3, 1] = float(value)
    path = save(tmp_path / "a.safetensors", tensors)
    assert refusal(path) == f"{key}: value at [3, 1] must be finite, got {value}"


def test_beyond_binary16(tmp_path: Path) -> None:
    """A bfloat16 activation of 70144, as Flux reaches, is finite but no binary16."""
    x = np.ones((64, 64), np.float32)
    x[3, 5], x[9, 0], x[9, 1] = 70144, -1e9, 65504 + 15
    values: dict[str, np.ndarray[Any, Any]] = {
        "blk/w": np.ones((2, 64)),
        "blk/000/x": x,
        "blk/000/y": np.ones((64, 2)),
    }
    info = DumpInfo(model="flux", steps=1, scheduler="euler", seed=0)
    path = tmp_path / "a.safetensors"
    dtypes = dict.fromkeys(values, "float32")
    for form in ("float32", "bfloat16"):
        dtypes["blk/000/x"] = form
        specs = {key: TensorSpec(v.shape, dtypes[key]) for key, v in values.items()}
        with DumpWriter(path, info=info, tensors=specs) as writer:
            for key, value in values.items():
                writer.write(key, value.astype(np.float32))
        assert refusal(path) == (
            "blk/000/x: value at [3, 5] is beyond binary16 (at most 65504): "
            "70144.0; saturate to clip it"
        )
        with DumpReader(path, saturate=True) as dump:
            got = dump.x("blk", 0)
            dump.x("blk", 0)
            # bfloat16 rounds 65519 to 65536, which is beyond binary16 as well.
            assert dump.saturated == {"blk/000/x": 2 if form == "float32" else 3}
        assert got[3, 5] == got[9, 1] == 65504
        assert got[9, 0] == -65504
        assert np.count_nonzero(got != 1) == 3


def test_saturate_does_not_hide_infinity(tmp_path: Path) -> None:
    tensors = toy_tensors()
    tensors[f"{LAYER}/001/x"][0, 0] = np.inf
    path = save(tmp_path / "a.safetensors", tensors)
    with DumpReader(path, saturate=True) as dump, pytest.raises(DumpError, match="must be finite"):
        dump.x(LAYER, 1)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (f"{LAYER}/000/z", "a tensor of a step is one of x, y, q, k, v, o, got 'z'"),
        (f"{LAYER}/000/w", "a tensor of a step is one of x, y, q, k, v, o, got 'w'"),
        (f"{LAYER}/x", "a tensor without a step is one of w, b, got 'x'"),
        ("w", "key must be LAYER/STEP/TENSOR or LAYER/w or LAYER/b"),
        (f"{LAYER}/0/0/x", "key must be LAYER/STEP/TENSOR or LAYER/w or LAYER/b"),
        (f"{LAYER}/1/x", "step must be zero-padded to 3 digits in this file, got '1'"),
        (f"{LAYER}/003/x", "step must be below the dump's 3 steps, got 3"),
    ],
)
def test_bad_key(tmp_path: Path, key: str, message: str) -> None:
    tensors = toy_tensors() | {key: np.zeros((5, 3), np.float32)}
    assert refusal(save(tmp_path / "a.safetensors", tensors)) == f"{key}: {message}"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model": None, "seed": None},
            "metadata lacks model, seed; it must name model, steps, scheduler, seed, writer",
        ),
        ({"steps": "many"}, "metadata 'steps' must be an integer, got 'many'"),
        ({"steps": "0"}, "metadata 'steps' must be a positive integer, got 0"),
        ({"seed": "1.5"}, "metadata 'seed' must be an integer, got '1.5'"),
        ({"writer": ""}, "metadata 'writer' must not be empty"),
        ({"steps": "2"}, f"{LAYER}/002/x: step must be below the dump's 2 steps, got 2"),
    ],
)
def test_bad_metadata(tmp_path: Path, changes: dict[str, str | None], message: str) -> None:
    assert refusal(save(tmp_path / "a.safetensors", toy_tensors(), **changes)) == message


def test_unsupported_format(tmp_path: Path) -> None:
    tensors = toy_tensors() | {f"{LAYER}/w": np.zeros((4, 3))}
    message = f"{LAYER}/w: dtype must be one of F16, BF16, F32, got F64"
    assert refusal(save(tmp_path / "a.safetensors", tensors)) == message


def test_cannot_open(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.safetensors") == "cannot open: no such file or directory"
    assert refusal(tmp_path) == "cannot open: is a directory"


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY\x01\x00v\x00", b"# a text file\n" * 9])
def test_not_safetensors(tmp_path: Path, content: bytes) -> None:
    (path := tmp_path / "a.safetensors").write_bytes(content)
    assert refusal(path) == "not a safetensors file (no header after the first 8 bytes)"


def test_truncated(tmp_path: Path) -> None:
    path = save(tmp_path / "a.safetensors", toy_tensors())
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    for size in (header - 5, header, header + 20, len(whole) - 1):
        path.write_bytes(whole[:size])
        if size < header:
            expected = f"the header ends at byte {header:,}, the file has {size:,} bytes"
        else:
            expected = f"the header describes {len(whole):,} bytes, the file has {size:,}"
        assert refusal(path) == f"truncated: {expected}"
    path.write_bytes(whole + b"\0")
    assert refusal(path).startswith("too long: ")


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b'{"a": ', "malformed header: "),
        (b'{"__metadata__": 3}', "malformed header: 'int'"),
        (b'{"a": {"dtype": "F16", "shape": [-1], "data_offsets": [0, 0]}}', "-1 is not a size"),
        (b'{"a": {"dtype": "F16", "shape": [1]}}', "data_offsets"),
        (b'{"a": 1, "a": 2}', "'a' appears twice"),
        (
            b'{"a": {"dtype": "F16", "shape": [2], "data_offsets": [0, 2]}}',
            "a: malformed header: [2] F16 is 4 bytes from byte 0 of the data, "
            "the header says 0 to 2",
        ),
    ],
)
def test_malformed_header(tmp_path: Path, header: bytes, message: str) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\0\0")
    assert message in refusal(path)


def test_header_too_large_to_read(tmp_path: Path) -> None:
    with (path := tmp_path / "a.safetensors").open("wb") as file:
        file.write((122_000_000).to_bytes(8, "little") + b"{")
        file.truncate(200_000_000)  # sparse
    assert refusal(path) == (
        "header too large: 122.0 MB (122,000,000 bytes), "
        "the safetensors limit is 100.0 MB (100,000,000 bytes)"
    )


def test_attention_shapes(tmp_path: Path) -> None:
    """Cross-attention: 100 queries, 77 keys, two heads."""
    shapes = {"q": (2, 100, 64), "k": (2, 77, 64), "v": (2, 77, 32), "o": (2, 100, 32)}
    tensors = {f"attn/00{s}/{n}": np.ones(shapes[n], np.float16) for s in range(3) for n in shapes}
    path = save(tmp_path / "a.safetensors", tensors)
    with DumpReader(path) as dump:
        assert dump.layers == ("attn",)
        assert dump.linear_layers == ()
        assert dump.activation("attn", 2, "k").shape == (2, 77, 64)
        assert dump.output("attn", 2, "o").dtype == np.float32
        with pytest.raises(DumpError, match="attn: has no tensor 'x'; has k, o, q, v"):
            dump.x("attn", 0)
    for name, shape in (("k", (3, 77, 64)), ("v", (2, 78, 32)), ("o", (2, 77, 32))):
        bad = {f"attn/00{s}/{name}": np.ones(shape, np.float16) for s in range(3)}
        assert refusal(save(path, tensors | bad)).startswith(
            f"attn/000/{name}: shape does not fit: "
        )


def test_names(tmp_path: Path) -> None:
    with DumpReader(save(tmp_path / "a.safetensors", toy_tensors())) as dump:
        with pytest.raises(DumpError, match=f"no linear layer matches 'x\\*'; layers are {LAYER}"):
            dump.match("x*")
        with pytest.raises(DumpError, match=f"no layer 'fc'; layers are {LAYER}"):
            dump.x("fc", 0)
        with pytest.raises(DumpError, match="step must be from 0 to 2, got 3"):
            dump.x(LAYER, 3)


def test_other_padding_is_accepted(tmp_path: Path) -> None:
    tensors = {key.replace("/00", "/"): value for key, value in toy_tensors().items()}
    with DumpReader(save(tmp_path / "a.safetensors", tensors)) as dump:
        assert dump.x(LAYER, 2).shape == (5, 3)


def test_damaged_files_never_crash(tmp_path: Path) -> None:
    """Random damage is either refused with a DumpError or changes values only."""
    path = save(tmp_path / "a.safetensors", toy_tensors())
    whole = path.read_bytes()
    rng = np.random.default_rng(4)
    refused = 0
    for _ in range(400):
        damaged = bytearray(whole)
        for at in rng.integers(0, len(whole), rng.integers(1, 4)):
            damaged[at] = rng.integers(256)
        path.write_bytes(damaged)
        try:
            read_everything(path)
        except DumpError:
            refused += 1
    assert refused > 100
