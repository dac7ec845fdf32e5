"""The PyTorch model against the NumPy one, bit for bit."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dstar.golden import fmdq_torch
from dstar.golden.bins import BinTable
from dstar.golden.fmdq_torch import TorchQuantized, fake_quantize
from dstar.golden.fmdq_torch import quantize as torch_quantize
from dstar.golden.quantize import difference, quantize, reconstruct

Array = npt.NDArray[Any]


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def same(
    got: TorchQuantized, x: Array, reference: Array | None, table: BinTable, rows: int
) -> None:
    """Compare every output with the NumPy model's."""
    want = quantize(difference(x, reference), table, rows)
    zero = np.zeros_like(x) if reference is None else reference
    x_hat, saturated = reconstruct(zero, want)
    assert got.q is not None
    np.testing.assert_array_equal(got.q.numpy(), want.q)
    np.testing.assert_array_equal(got.precision.numpy(), want.precision)
    np.testing.assert_array_equal(got.exponent.numpy(), want.exponent)
    np.testing.assert_array_equal(got.x_hat.numpy().view(np.uint16), x_hat.view(np.uint16))
    assert got.nonfinite == want.nonfinite
    assert got.saturated == saturated


def both(x: Array, reference: Array | None, table: BinTable, rows: int = 64) -> None:
    ref = None if reference is None else torch.from_numpy(reference)
    got = torch_quantize(torch.from_numpy(x), table, reference=ref, rows=rows)
    same(got, x, reference, table, rows)


TABLES = [BinTable.paper(4), BinTable.uniform(6), BinTable.keyframe(5.0), BinTable.paper(-9)]


@pytest.mark.parametrize("table", TABLES, ids=lambda t: t.name)
@pytest.mark.parametrize("shape", [(64, 8), (1, 3), (63, 5), (65, 5), (2, 128, 4), (3, 2, 70, 3)])
@pytest.mark.parametrize("delta", [False, True])
def test_random_tensors(table: BinTable, shape: tuple[int, ...], delta: bool) -> None:
    rng = np.random.default_rng(len(shape))
    x = (rng.normal(size=shape) * 2.0 ** rng.integers(-12, 6, shape[-1])).astype(np.float16)
    noise = rng.normal(size=shape) * 2.0 ** rng.integers(-12, 3, shape[-1])
    both(x, (x + noise).astype(np.float16) if delta else None, table)


@pytest.mark.parametrize("table", TABLES, ids=lambda t: t.name)
def test_every_binary16_pattern(table: BinTable) -> None:
    x = np.arange(2**16, dtype=np.uint16).view(np.float16)
    both(x.reshape(64, 1024), None, table, rows=1)
    both(x.reshape(1024, 64).T.copy(), None, table, rows=8)
    finite = np.where(np.isfinite(x), x, np.float16(0)).reshape(64, 1024)
    both(x.reshape(64, 1024), finite[::-1].copy(), table, rows=2)


@pytest.mark.parametrize("f", [-8, 0, 5, 20])
def test_ties_and_clips(f: int) -> None:
    units = [0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 126.5, -126.5, 127.5, -127.5, -127.75, -0.0]
    x = (np.array(units) * 2.0**-f).astype(np.float16)
    for table in (BinTable.uniform(f), BinTable.paper(f)):
        both(x[:, None].copy(), None, table, rows=len(units))
        both(x[:, None].copy(), None, table, rows=1)


def test_saturation_is_flagged() -> None:
    table = BinTable.uniform(-9)
    x, reference = np.full((2, 1), 65504, np.float16), np.full((2, 1), 1024, np.float16)
    both(x, reference, table)
    got = torch_quantize(torch.from_numpy(x), table, reference=torch.from_numpy(reference))
    assert got.saturated
    assert got.x_hat.tolist() == [[65504.0], [65504.0]]


@settings(max_examples=40)
@given(
    st.integers(0, 2**32 - 1), st.integers(1, 20), st.integers(1, 5), st.sampled_from([1, 4, 16])
)
def test_random_patterns(seed: int, tokens: int, channels: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 2**16, (tokens, channels), np.uint16).view(np.float16)
    reference = rng.integers(0, 0x7C00, (tokens, channels), np.uint16).view(np.float16)
    both(x, reference, BinTable.paper(int(rng.integers(-9, 23))), rows)


def test_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 100, 6)).astype(np.float16)
    for chunk in (1, 100, 10**6):
        monkeypatch.setattr(fmdq_torch, "CHUNK", chunk)
        both(x, x[::-1].copy(), BinTable.paper(3), rows=16)


def test_other_types_and_layouts() -> None:
    x = torch.randn(5, 70).t()
    want = fake_quantize(x.half().contiguous(), BinTable.paper(4))
    assert want.dtype == torch.float16
    assert torch.equal(fake_quantize(x, BinTable.paper(4)), want)
    brain = x.to(torch.bfloat16)
    assert torch.equal(
        fake_quantize(brain, BinTable.paper(4)), fake_quantize(brain.half(), BinTable.paper(4))
    )
    assert torch_quantize(x, BinTable.paper(4), with_q=False).q is None


def test_inputs_are_left_alone() -> None:
    x, reference = torch.randn(64, 8).half(), torch.randn(64, 8).half()
    copies = x.clone(), reference.clone()
    torch_quantize(x, BinTable.paper(4), reference=reference)
    assert torch.equal(x, copies[0])
    assert torch.equal(reference, copies[1])


def test_refusals() -> None:
    x = torch.zeros(4, 4, dtype=torch.float16)
    with pytest.raises(TypeError, match=r"x must be float16, bfloat16 or float32, got torch\.int8"):
        fake_quantize(x.to(torch.int8), BinTable.paper(4))
    with pytest.raises(ValueError, match=r"reference must have the shape of x, \(4, 4\), got"):
        fake_quantize(x, BinTable.paper(4), reference=x[:2])
    with pytest.raises(ValueError, match=r"x must have tokens and channels, got shape \(0, 4\)"):
        fake_quantize(x[:0], BinTable.paper(4))


def test_only_whole_models_import_torch() -> None:
    code = (
        "import sys, dstar.golden as g; "
        "[getattr(g, n) for n in set(g.__all__) - {'FMDQ', 'SAR', 'apply'}]; "
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
