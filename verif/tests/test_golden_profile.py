"""Choosing thresholds: the rule, its limits, measured exponents, and the allocation of bits."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pytest

from dstar.gen.config import PRESETS
from dstar.golden import shipped
from dstar.golden.allocate import COARSEST, allocate, average_bits, predict
from dstar.golden.bins import BinTable
from dstar.golden.linear import FMDQLinear, LayerTables
from dstar.golden.profile import MAX_B, MIN_B, default_tables, dump_tables, profile_layer

CFG = PRESETS["paper"]


def walk(scale: float, steps: int = 6, seed: int = 0) -> list[npt.NDArray[np.float16]]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(70, 12))
    out = []
    for _ in range(steps):
        out.append((x * scale).astype(np.float16))
        x = x + 0.02 * rng.normal(size=x.shape)
    return out


class FakeDump:
    """One layer, named as asked, with weights of ones."""

    steps = range(6)

    def x(self, layer: str, step: int) -> npt.NDArray[np.float16]:
        return walk(1.0)[step]

    def w(self, layer: str) -> npt.NDArray[np.float32]:
        return np.ones((3, 12), np.float32)


def test_a_profile_holds_what_it_says() -> None:
    xs = walk(1.0)
    got = profile_layer(xs)
    wide = np.array(xs, np.float64)
    assert got.token_step == pytest.approx(np.abs(wide).max(axis=2).mean() / 127)
    assert got.largest_difference == pytest.approx(np.abs(np.diff(wide, axis=0)).max(), rel=1e-3)
    assert got.largest_start == np.abs(wide[0]).max()
    assert got.span == CFG.numeric.exponent_span


@pytest.mark.parametrize("scale", [2.0**-12, 1 / 3, 1.0, 100.0, 5000.0])
def test_the_rule_takes_the_step_of_int8_and_scales_with_the_data(scale: float) -> None:
    profile = profile_layer(walk(scale))
    tables = profile.tables()
    b = tables.delta.finest
    assert abs(-np.log2(profile.token_step) - b) <= 0.5 or b == profile.limit
    tables.check(CFG)
    assert tables.keyframe is not None
    assert tables.keyframe.entries[-1].threshold >= profile.largest_start
    assert tables == profile_layer(walk(scale)).tables()


def test_differences_of_the_profile_do_not_clip() -> None:
    xs = walk(1.0)
    xs[3] = xs[2] + np.float16(7)
    profile = profile_layer(xs)
    assert profile.tables(20).delta == BinTable.uniform(profile.limit)
    reach = profile.tables(20).delta.entries[-1].threshold
    assert reach >= profile.largest_difference > reach / 2


@pytest.mark.parametrize("value", [0.0, 2.0**-24, 65504.0])
def test_extreme_activations_get_legal_tables(value: float) -> None:
    xs = [np.full((3, 4), v, np.float16) for v in (value, -value)]
    profile = profile_layer(xs)
    assert MIN_B <= profile.limit <= MAX_B
    for b in (None, -40, 40):
        profile.tables(b).check(CFG)
    assert profile_layer(xs[:1]).limit == MAX_B


def test_nonfinite_activations_are_left_out() -> None:
    xs = walk(1.0)
    bad = [x.copy() for x in xs]
    bad[0][0, 0], bad[2][1, 1] = np.nan, np.inf
    got = profile_layer(bad)
    assert np.isfinite([got.token_step, got.largest_difference, got.largest_start]).all()
    assert got.tables().delta == profile_layer(xs).tables().delta


def test_a_profile_without_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="needs the activation of at least one step, got none"):
        profile_layer([])


def test_measured_exponents_win_over_the_rule() -> None:
    got = default_tables({"a": walk(1.0), "b": walk(1.0)}, exponents={"a": 2})
    assert got["a"].delta == BinTable.uniform(2)
    assert got["b"] == profile_layer(walk(1.0)).tables()


def test_dump_tables_use_measured_exponents_for_the_measured_weights_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dump = FakeDump()
    rule = profile_layer(walk(1.0)).tables()
    assert dump_tables(dump, ["a"]) == {"a": rule}
    key = shipped.digest(dump.w("a"))
    monkeypatch.setattr(shipped, "EXPONENTS", {"a": (3, key), "b": (3, "0" * 16)})
    got = dump_tables(dump, ["a", "b", "c"])
    assert got["a"].delta == BinTable.uniform(3)
    assert got["b"] == got["c"] == rule


def test_shipped_exponents_fit_the_shipped_weights() -> None:
    from dstar.golden.dit.weights import load_weights

    weights = load_weights()
    blocks = {n.removesuffix(".weight") for n in weights if n.startswith("blocks.")}
    assert set(shipped.EXPONENTS) == {n for n in blocks if not n.endswith(".bias")}
    for name, (b, _) in shipped.EXPONENTS.items():
        assert shipped.exponent(name, weights[f"{name}.weight"]) == b


def test_average_bits_equal_a_layer_with_feedback() -> None:
    xs = walk(1.0)
    tables = profile_layer(xs).tables(4)
    fmdq = FMDQLinear(np.ones((2, 12)), tables=tables)
    want = np.mean([fmdq.step(x).average_bits for x in xs])
    assert average_bits(xs, tables) == pytest.approx(want)
    with pytest.raises(ValueError, match="must have a keyframe table, got None"):
        average_bits(xs, LayerTables(delta=BinTable.paper(4)))


def test_predictions_interpolate_and_extrapolate() -> None:
    known = {4: 1.0, 8: 1e-4}
    assert predict(known, 4) == 1.0
    assert predict(known, 5) == pytest.approx(0.1)
    assert predict(known, 7) == pytest.approx(1e-3)
    assert predict(known, 9) == pytest.approx(1e-4 / 4)
    assert predict(known, 2) == pytest.approx(16)
    assert predict({4: 1.0, 6: 0.0}, 5) == 1.0


def test_allocation_refines_what_matters_until_the_target_is_met() -> None:
    activations = {n: walk(1.0, seed=i) for i, n in enumerate("abc")}
    profiles = {n: profile_layer(xs) for n, xs in activations.items()}
    weights = {"a": 1.0, "b": 1e-3, "c": 1e-7}
    calls = []

    def error(name: str, b: int) -> float:
        # At coarse steps worse than the square law that a first guess extrapolates.
        return weights[name] * (4.0**-b + 100 * 16.0**-b)

    def measure(exponents: Mapping[str, int]) -> dict[str, float]:
        calls.append(dict(exponents))
        return {n: error(n, b) for n, b in exponents.items()}

    chosen = allocate(measure, profiles, activations, 1e-4)
    assert calls[0] == {n: p.exponent for n, p in profiles.items()}
    assert all((n, b) in [i for call in calls for i in call.items()] for n, b in chosen.items())
    assert 1e-4 / 16 < sum(error(n, b) for n, b in chosen.items()) <= 1e-4
    assert chosen["a"] > chosen["b"] > chosen["c"] == profiles["c"].exponent - COARSEST
    limits = {n: p.limit for n, p in profiles.items()}
    assert allocate(measure, profiles, activations, 0.0) == limits
