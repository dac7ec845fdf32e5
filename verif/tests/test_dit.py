"""The shipped Diffusion Transformer: NumPy against PyTorch, the sampler, the hooks, the weights."""

from __future__ import annotations

import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from dstar.golden.dit import DIGITS, DiTSpec
from dstar.golden.dit.data import cubic_matrix, enlarge, load_data, load_source, reduce
from dstar.golden.dit.forward import (
    Floats,
    forward,
    gelu,
    patches,
    plain_attention,
    plain_linear,
    silu,
    unpatch,
)
from dstar.golden.dit.sampler import noise, sample
from dstar.golden.dit.weights import load_metadata, load_weights

TINY = DiTSpec(hidden=16, depth=2, heads=2, patch=4, image=16, channels=3, classes=3, frequency=8)


@pytest.fixture(scope="module")
def weights() -> dict[str, Floats]:
    return load_weights()


def random_weights(spec: DiTSpec, seed: int = 0) -> dict[str, Floats]:
    rng = np.random.default_rng(seed)
    return {
        name: (0.3 * rng.standard_normal(shape)).astype(np.float32)
        for name, shape in spec.tensors.items()
    }


# Description


def test_spec_describes_the_shipped_model() -> None:
    assert (DIGITS.tokens, DIGITS.head_dim, DIGITS.patch_dim, DIGITS.mlp_hidden) == (
        256,
        32,
        4,
        512,
    )
    assert 1_000_000 <= DIGITS.parameters <= 2_000_000
    assert len(DIGITS.linears) == 5 + 5 * DIGITS.depth
    assert len(DIGITS.conditioning) == 3 + DIGITS.depth


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": 3}, "heads must divide hidden 128, got 3"),
        ({"hidden": 126, "heads": 2}, "hidden must be a multiple of 4, got 126"),
        ({"patch": 3}, "patch must divide image 32, got 3"),
        ({"frequency": 7}, "frequency must be even, got 7"),
        ({"depth": 0}, "depth must be at least 1, got 0"),
    ],
)
def test_spec_refuses(change: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        DiTSpec(**change)


# Data and training


def test_interpolation_keeps_constants_and_straight_lines() -> None:
    matrix = cubic_matrix(8, 32)
    np.testing.assert_allclose(matrix.sum(axis=1), 1.0, rtol=1e-6)
    line = matrix @ np.arange(8, dtype=np.float32)
    # Away from the repeated edge a cubic reproduces a line.
    np.testing.assert_allclose(np.diff(line)[8:-8], 0.25, rtol=1e-5)


def test_data_is_in_range_and_reduces_to_its_source() -> None:
    images, classes = load_data(32)
    source, again = load_source()
    assert images.shape == (1797, 32, 32)
    assert images.dtype == np.float32
    assert (images.min(), images.max()) == (-1.0, 1.0)
    np.testing.assert_array_equal(classes, again)
    assert np.abs(reduce(images) - source).mean() < 0.1
    np.testing.assert_array_equal(enlarge(source[:3], 32), images[:3])
    with pytest.raises(ValueError, match=r"^side must divide the image side 32, got 7$"):
        reduce(images, 7)


def test_training_writes_weights_and_log_and_continues(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from safetensors import safe_open

    from dstar.golden.dit import train

    out, log = tmp_path / "w.safetensors", tmp_path / "train.log"
    options = ["--out", str(out), "--log", str(log), "--batch", "2", "--every", "1"]
    train.main([*options, "--steps", "2", "--threads", "1"])
    train.main([*options, "--steps", "1", "--threads", "1", "--init", str(out), "--seed", "4"])
    with safe_open(out, framework="numpy") as file:
        assert set(file.keys()) == DIGITS.tensors.keys()
        assert (file.metadata()["training_steps"], file.metadata()["seed"]) == ("3", "0, 4")
    lines = log.read_text(encoding="utf-8").splitlines()
    steps = [line.split() for line in lines if not line.startswith("#")]
    assert [int(words[1]) for words in steps] == [1, 2, 3]
    # Untrained, the network predicts zero: the loss is the mean square of eps - x_0, from 1 to 2.
    assert all(1.0 < float(words[3]) < 2.5 for words in steps)
    rates = [train.learning_rate(s, steps=100, warmup=10, peak=1.0) for s in (0, 9, 10, 99)]
    assert rates == pytest.approx([0.1, 1.0, 1.0, 0.01], abs=1e-3)


# Weights


def test_weights_file() -> None:
    path = files("dstar.golden.dit") / "weights.safetensors"
    assert len(path.read_bytes()) <= 6_000_000
    metadata = load_metadata()
    assert metadata.keys() == {"model", "parameters", "dataset", "training_steps", "seed"}
    assert metadata["parameters"] == str(DIGITS.parameters)


def test_weights_are_exactly_those_of_the_spec(weights: dict[str, Floats]) -> None:
    assert {name: w.shape for name, w in weights.items()} == DIGITS.tensors
    assert all(w.dtype == np.float32 and np.isfinite(w).all() for w in weights.values())
    assert sum(w.size for w in weights.values()) == DIGITS.parameters


def test_numpy_path_imports_no_torch() -> None:
    code = "import sys, dstar.golden.dit.sampler, dstar.golden.dit.weights; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "torch" not in run.stdout.split()


# NumPy against PyTorch


@pytest.mark.parametrize("t", [1.0, 0.75, 0.3, 0.02, 0.0])
def test_forward_equals_torch(weights: dict[str, Floats], t: float) -> None:
    torch = pytest.importorskip("torch")
    from dstar.golden.dit.model import load_model

    images, classes = load_data(32)
    x = ((1 - t) * images[:11, None] + t * noise(1, 11)).astype(np.float32)
    y = np.append(classes[:10], DIGITS.null_class)
    times = np.full(11, t, np.float32)
    ours = forward(weights, x, times, y)
    with torch.inference_mode():
        want = load_model(weights)(*map(torch.from_numpy, (x, times, y))).numpy()
    assert ours.dtype == np.float32
    assert ours.shape == x.shape
    assert np.abs(ours - want).max() <= 1e-4


def test_forward_equals_torch_in_another_shape() -> None:
    torch = pytest.importorskip("torch")
    from dstar.golden.dit.model import load_model

    tensors = random_weights(TINY)
    x, times = noise(2, 4, TINY), np.array([0.9, 0.5, 0.1, 0.0], np.float32)
    y = np.array([0, 1, 2, TINY.null_class])
    ours = forward(tensors, x, times, y, spec=TINY)
    with torch.inference_mode():
        want = load_model(tensors, TINY)(*map(torch.from_numpy, (x, times, y))).numpy()
    assert np.abs(ours - want).max() <= 1e-4


@pytest.mark.parametrize("guidance", [1.0, 2.0])
def test_sampler_equals_torch(weights: dict[str, Floats], guidance: float) -> None:
    pytest.importorskip("torch")
    from dstar.golden.dit import model

    ours = sample(weights, classes=[3, 8], steps=6, seed=5, guidance=guidance)
    want = model.sample(
        model.load_model(weights), classes=[3, 8], steps=6, seed=5, guidance=guidance
    )
    assert np.abs(ours - want).max() <= 1e-3


def test_activations_against_their_formulas() -> None:
    x = np.linspace(-90, 90, 3001, dtype=np.float32)
    exact = x.astype(np.float64)
    inner = np.sqrt(2 / np.pi) * (exact + 0.044715 * exact**3)
    np.testing.assert_allclose(gelu(x), 0.5 * exact * (1 + np.tanh(inner)), atol=1e-5)
    np.testing.assert_allclose(silu(x), exact / (1 + np.exp(-exact)), atol=1e-5)


def test_patches_and_back() -> None:
    x = noise(3, 2, TINY)
    rows = patches(x, TINY)
    assert rows.shape == (2 * TINY.tokens, TINY.patch_dim)
    # Sample 1, patch row 2, patch column 3; inside the patch row 1, column 0, channel 2.
    token, value = 1 * TINY.tokens + 2 * TINY.grid + 3, (1 * TINY.patch + 0) * TINY.channels + 2
    assert rows[token, value] == x[1, 2, 2 * TINY.patch + 1, 3 * TINY.patch]
    np.testing.assert_array_equal(unpatch(rows, TINY), x)


# Hooks


def test_hooks_see_every_layer_in_order(weights: dict[str, Floats]) -> None:
    seen: dict[str, tuple[int, int]] = {}
    attended: list[str] = []

    def linear(name: str, x: Floats, w: Floats, b: Floats) -> Floats:
        assert name not in seen
        assert w is weights[f"{name}.weight"]
        assert b is weights[f"{name}.bias"]
        assert x.dtype == np.float32
        assert x.shape[1] == w.shape[1]
        seen[name] = (w.shape[0], x.shape[1])
        assert len(x) == (3 if name in DIGITS.conditioning else 3 * DIGITS.tokens)
        return plain_linear(name, x, w, b)

    def attention(name: str, q: Floats, k: Floats, v: Floats) -> Floats:
        assert q.shape == k.shape == v.shape == (DIGITS.heads, DIGITS.tokens, DIGITS.head_dim)
        attended.append(name)
        return plain_attention(name, q, k, v)

    x, t, y = noise(0, 3), np.full(3, 0.5, np.float32), np.arange(3)
    hooked = forward(weights, x, t, y, linear=linear, attention=attention)
    assert list(seen.items()) == list(DIGITS.linears.items())
    assert attended == [f"blocks.{i}.attn" for i in range(DIGITS.depth) for _ in range(3)]
    np.testing.assert_allclose(hooked, forward(weights, x, t, y), atol=1e-5)


def test_rows_of_a_sample_are_contiguous(weights: dict[str, Floats]) -> None:
    batches: list[dict[str, Floats]] = []

    def linear(name: str, x: Floats, w: Floats, b: Floats) -> Floats:
        batches[-1][name] = x
        return plain_linear(name, x, w, b)

    x, t, y = noise(0, 2), np.array([0.9, 0.4], np.float32), np.array([4, 7])
    for part in (slice(0, 2), slice(1, 2)):
        batches.append({})
        forward(weights, x[part], t[part], y[part], linear=linear)
    both, second = batches
    for name, rows in second.items():
        np.testing.assert_allclose(both[name][len(rows) :], rows, atol=1e-3, err_msg=name)


# Sampler


def test_sampler_is_deterministic(weights: dict[str, Floats]) -> None:
    first = sample(weights, classes=[1, 2], steps=4, seed=9)
    np.testing.assert_array_equal(first, sample(weights, classes=[1, 2], steps=4, seed=9))
    assert np.abs(first - sample(weights, classes=[1, 2], steps=4, seed=10)).max() > 0.1
    np.testing.assert_array_equal(noise(9, 5)[:2], noise(9, 2))


def test_on_step_sees_times_and_images() -> None:
    seen: list[tuple[int, float]] = []
    inputs: list[Floats] = []

    def on_step(step: int, t: float, x: Floats) -> None:
        seen.append((step, t))
        inputs.append(x)

    sample(
        random_weights(TINY), classes=[0], steps=4, seed=3, guidance=1.5, spec=TINY, on_step=on_step
    )
    assert seen == [(0, 1.0), (1, 0.75), (2, 0.5), (3, 0.25)]
    np.testing.assert_array_equal(inputs[0], noise(3, 1, TINY))
    assert all(x.shape == (1, 3, 16, 16) for x in inputs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 3}, "steps must be between 4 and 50, got 3"),
        ({"steps": 51}, "steps must be between 4 and 50, got 51"),
        ({"guidance": -0.5}, "guidance must be finite and at least 0, got -0.5"),
        ({"guidance": float("nan")}, "guidance must be finite and at least 0, got nan"),
        ({"classes": []}, "classes must hold at least one class, got none"),
        ({"classes": [0, 11]}, r"classes must be between 0 and 10 \(none\), got 11"),
        ({"classes": [-1]}, r"classes must be between 0 and 10 \(none\), got -1"),
    ],
)
def test_sampler_refuses(change: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {"classes": [0]} | change
    with pytest.raises(ValueError, match=f"^{message}$"):
        sample({}, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("steps", [4, 10])
def test_samples_are_recognisable(weights: dict[str, Floats], steps: int) -> None:
    """A classifier that has only seen real digits names at least 80 % of the samples."""
    neighbors = pytest.importorskip("sklearn.neighbors")
    real, labels = load_source()
    judge = neighbors.KNeighborsClassifier(n_neighbors=3).fit(real.reshape(len(real), -1), labels)
    classes = np.repeat(np.arange(10), 4)
    images = sample(weights, classes=classes.tolist(), steps=steps, seed=0)
    small = reduce(np.clip(images[:, 0], -1.0, 1.0))
    accuracy = float((judge.predict(small.reshape(len(small), -1)) == classes).mean())
    assert accuracy >= 0.8, f"{accuracy:.0%} of {len(classes)} samples were recognised"
