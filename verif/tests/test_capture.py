"""Capturing the shipped DiT: what is in the dump, and that nothing else is left behind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dstar.golden.capture import capture_builtin
from dstar.golden.dit import DiTSpec
from dstar.golden.dit.forward import Floats, plain_attention
from dstar.golden.dump import DumpError, DumpReader

TINY = DiTSpec(hidden=16, depth=2, heads=2, patch=4, image=16, classes=3, frequency=8)
BLOCK = ("adaln", "attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")


def random_weights(spec: DiTSpec) -> dict[str, Floats]:
    rng = np.random.default_rng(5)
    return {n: rng.normal(0, 0.3, s).astype(np.float32) for n, s in spec.tensors.items()}


WEIGHTS = random_weights(TINY)


def test_every_linear_layer_of_the_blocks(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    seen: list[tuple[int, int]] = []
    size = capture_builtin(
        path, steps=4, seed=9, label=1, dtype="float32", weights=WEIGHTS, spec=TINY,
        progress=lambda done, total: seen.append((done, total)),
    )  # fmt: skip
    assert size == path.stat().st_size
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    with DumpReader(path) as dump:
        assert dump.layers == tuple(f"blocks.{i}.{name}" for i in range(2) for name in BLOCK)
        assert (dump.info.steps, dump.info.seed) == (4, 9)
        assert dump.info.extra["class"] == "1"
        assert dump.layer("blocks.0.adaln").tokens == 1
        assert dump.layer("blocks.1.mlp.fc2").tokens == 16
        for name in dump.layers:
            w, b = dump.w(name), dump.b(name)
            np.testing.assert_array_equal(w, WEIGHTS[f"{name}.weight"])
            assert b is not None
            for step in dump.steps:
                # x is rounded to binary16 by the reader, y is what the model computed.
                y = dump.x(name, step).astype(np.float32) @ w.T + b
                np.testing.assert_allclose(dump.y(name, step), y, atol=0.05)


def test_same_seed_same_bytes(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a", "b", "c")]
    for path, seed in zip(files, (0, 0, 1), strict=True):
        capture_builtin(path, steps=4, seed=seed, label=0, weights=WEIGHTS, spec=TINY)
    a, b, c = (path.read_bytes() for path in files)
    assert a == b != c


def test_attention_on_request(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    options = {"steps": 4, "label": 0, "weights": WEIGHTS, "spec": TINY, "dtype": "float32"}
    capture_builtin(path, layers="blocks.1.attn*", attention=True, **options)  # type: ignore[arg-type]
    with DumpReader(path) as dump:
        assert dump.layers == ("blocks.1.attn.qkv", "blocks.1.attn", "blocks.1.attn.proj")
        assert dump.linear_layers == ("blocks.1.attn.qkv", "blocks.1.attn.proj")
        q, k, v = (dump.activation("blocks.1.attn", 2, t).astype(np.float32) for t in "qkv")
        o = dump.output("blocks.1.attn", 2, "o")
        assert q.shape == (2, 16, 8)
        np.testing.assert_allclose(o, plain_attention("", q, k, v), atol=0.05)
        x = dump.x("blocks.1.attn.proj", 2).astype(np.float32)
        np.testing.assert_allclose(o.transpose(1, 0, 2).reshape(16, 16), x, atol=0.01)


def test_refusals_leave_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    with pytest.raises(DumpError, match=r"no layer matches 'x\*'; layers are patch_embed, t_emb"):
        capture_builtin(path, layers="x*", weights=WEIGHTS, spec=TINY)
    with pytest.raises(ValueError, match="steps must be between 4 and 50, got 3"):
        capture_builtin(path, steps=3)
    with pytest.raises(ValueError, match="classes must be between 0 and 10"):
        capture_builtin(path, label=11)
    with pytest.raises(DumpError, match="dtype must be one of"):
        capture_builtin(path, dtype="int8", weights=WEIGHTS, spec=TINY, label=0)
    big = WEIGHTS | {"blocks.1.attn.qkv.weight": WEIGHTS["blocks.1.attn.qkv.weight"] * 1e6}
    with pytest.raises(DumpError, match=r"blocks.1.attn.qkv/000/y: value at .* beyond float16"):
        capture_builtin(path, steps=4, label=0, weights=big, spec=TINY)
    assert list(tmp_path.iterdir()) == []


def test_interrupted_capture_leaves_nothing(tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        capture_builtin(tmp_path / "a", steps=4, label=0, weights=WEIGHTS, spec=TINY, progress=stop)
    assert list(tmp_path.iterdir()) == []


def test_shipped_model(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    capture_builtin(path, steps=4, layers="blocks.3.*")
    with DumpReader(path) as dump:
        assert dump.layers == tuple(f"blocks.3.{name}" for name in BLOCK)
        assert dump.x("blocks.3.mlp.fc2", 3).shape == (256, 512)
