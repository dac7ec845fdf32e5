"""FMDQ in a wrapped model against the NumPy layers, bit by bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dstar.gen.config import ConfigError
from dstar.golden.bins import BinTable
from dstar.golden.linear import FMDQLinear, LayerTables
from dstar.golden.model.apply import DstarModel, apply
from dstar.golden.model.fmdq import FMDQ
from dstar.golden.model.method import Moment
from dstar.verif.tests.model_tools import activations, inputs, run, small_dit

STEPS = 4


def collect(model: DstarModel, batch: int, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Inputs and outputs of the replaced layers, step by step."""
    outputs: dict[str, list[Any]] = {name: [] for name in model.layers}
    hooks = [
        layer.register_forward_hook(
            lambda _, args, y, name=name: outputs[name].append(
                y.reshape(batch, -1, y.shape[-1]).numpy().copy()
            )
        )
        for name, layer in model.layers.items()
    ]
    seen = activations(model, *inputs(batch, seed), STEPS)
    for hook in hooks:
        hook.remove()
    return seen, outputs


@pytest.mark.parametrize("mode", ["reconstructed", "previous"])
@pytest.mark.parametrize("table", ["uniform", "paper"])
@pytest.mark.parametrize("b", [3, 7])
def test_equals_numpy_layer_by_layer(mode: Any, table: Any, b: int, seed: int) -> None:
    settings = FMDQ(mode=mode, table=table, exponents={"*": b})
    model = apply(small_dit(), settings)
    seen, outputs = collect(model, 2, seed)
    bits, values = 0.0, 0
    for name, layer in model.layers.items():
        tables = LayerTables(delta=settings.delta(b))
        weight = layer.weight.detach().numpy()
        bias = None if layer.bias is None else layer.bias.detach().numpy()
        state = layer.states[0, 0, 0]
        for sample in range(2):  # a NumPy layer each: samples are independent
            golden = FMDQLinear(weight, bias, tables=tables, mode=mode)
            for x, y in zip(seen[name], outputs[name], strict=True):
                step = golden.step(x[sample])
                np.testing.assert_array_equal(y[sample], step.y.astype(np.float32), name)
                bits, values = bits + step.average_bits * step.q.size, values + step.q.size
            np.testing.assert_array_equal(state["reference"][sample].numpy(), golden.reference)
    assert model.report().average_bits == pytest.approx(bits / values)


def test_rows_beyond_exact_float32(seed: int) -> None:
    """Wide layers with large weights, whose sums leave binary32's integers."""
    rng = np.random.default_rng(seed)
    linear = nn.Linear(4096, 8)
    with torch.no_grad():
        linear.weight.copy_(torch.from_numpy(rng.choice([-1.0, 1.0], (8, 4096))))
    table = LayerTables(delta=BinTable.uniform(2))
    kernel = FMDQ(tables={"*": table}).kernel("wide", linear)
    golden = FMDQLinear(linear.weight.detach().numpy(), linear.bias.detach().numpy(), tables=table)
    state: dict[str, Any] = {}
    for step in range(3):
        x = np.abs(rng.standard_normal((1, 65, 4096)) * 30).astype(np.float32)
        y, _ = kernel(torch.from_numpy(x), state, Moment(step))
        np.testing.assert_array_equal(y.numpy()[0], golden.step(x[0]).y.astype(np.float32))


def test_batch_elements_are_independent(seed: int) -> None:
    x, y = inputs(3, seed)
    whole = run(apply(small_dit(), FMDQ(exponents={"*": 5})), x, y)
    for i in range(3):
        alone = run(apply(small_dit(), FMDQ(exponents={"*": 5})), x[i : i + 1], y[i : i + 1])
        # Float layers around the quantized ones may round otherwise at another batch size.
        torch.testing.assert_close(whole[i : i + 1], alone, atol=2e-2, rtol=0)


def test_fine_steps_come_close_to_float(seed: int) -> None:
    x, y = inputs(2, seed)
    want = run(small_dit(), x, y)
    fine = run(apply(small_dit(), FMDQ()), x, y)
    coarse = run(apply(small_dit(), FMDQ(exponents={"*": 1})), x, y)
    scale = want.std()
    assert (fine - want).std() < 0.05 * scale
    assert (coarse - want).std() > 2 * (fine - want).std()


def test_dynamic_base_is_as_good_as_static(seed: int) -> None:
    x, y = inputs(2, seed)
    want = run(small_dit(), x, y)
    errors = {}
    for base in ("static", "dynamic"):
        model = apply(small_dit(), FMDQ(base=base, exponents={"*": 6}))
        errors[base] = float((run(model, x, y) - want).std())
        assert 1 < model.report().average_bits < 8
    assert errors["dynamic"] < 2.5 * errors["static"]


def test_keyframes_start_afresh(seed: int) -> None:
    x, y = inputs(1, seed)
    model = apply(small_dit(), FMDQ(exponents={"*": 2}, keyframes=[2]))
    run(model, x, y)
    bits = model.report().bits()["blocks.0.mlp.fc1"]
    assert bits[2] > bits[1]
    assert bits[2] > bits[3]


def test_overrides_by_layer(seed: int) -> None:
    model = apply(small_dit(), FMDQ(exponents={"blocks.0.*": 8, "*": 4}), layers="blocks.*.mlp.*")
    assert list(model.layers) == [f"blocks.{i}.mlp.fc{n}" for i in (0, 1) for n in (1, 2)]
    kernels: list[Any] = [layer.kernels[0] for layer in model.layers.values()]
    names = [kernel.tables.delta.name for kernel in kernels]
    assert names == ["uniform(8)", "uniform(8)", "uniform(4)", "uniform(4)"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mode": "both"}, "mode must be reconstructed or previous, got 'both'"),
        ({"base": "none"}, "base must be static or dynamic, got 'none'"),
        ({"table": "fine"}, "table must be uniform or paper, got 'fine'"),
    ],
)
def test_refusals(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FMDQ(**settings)
