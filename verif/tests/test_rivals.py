"""Golden models of the rivals: arithmetic against NumPy, bits by hand, states, both modes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dstar.golden.model.apply import apply
from dstar.golden.model.method import LinearMethod, LinearStats, Moment, State
from dstar.golden.rivals import (
    ActivationProfile,
    CambriconD,
    Ditto,
    FFNReuse,
    GroupInt8,
    MergedInt8,
    MergeTokens,
    TokenInt8,
    TopKeys,
    ZeroSmall,
    profile_activations,
)
from dstar.golden.rivals.exion import leading_one
from dstar.golden.rivals.int8 import group_quantize
from dstar.golden.rivals.sdma import Merge, windows


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def profile(
    largest: float = 127.0, values: float = 1.0, differences: float = 1.0
) -> ActivationProfile:
    """A profile whose distributions are uniform up to a maximum."""
    ramp = torch.linspace(0, 1, 1001)
    return ActivationProfile(largest, values * ramp, differences * ramp)


def identity(channels: int) -> nn.Linear:
    """A layer that gives 127 times what it multiplies: exact in INT8 and in binary16."""
    linear = nn.Linear(channels, channels, bias=False)
    linear.weight.data = 127 * torch.eye(channels)
    return linear


def feed(
    method: LinearMethod, *xs: Tensor, name: str = "layer"
) -> list[tuple[Tensor, LinearStats]]:
    """What a layer multiplies, and its statistics, over steps."""
    kernel = method.kernel(name, identity(xs[0].shape[-1]))
    state: State = {}
    found = [kernel(x, state, Moment(step)) for step, x in enumerate(xs)]
    return [(y / 127, stats) for y, stats in found]


def mean_bits(stats: LinearStats) -> float:
    return stats.bits / stats.values


def codes(*rows: list[float]) -> Tensor:
    """One sample of tokens."""
    return torch.tensor([rows])


def test_group_quantize_is_symmetric_int8_by_group(rng: np.random.Generator) -> None:
    x = rng.standard_normal((3, 5, 300)).astype(np.float32)
    got = group_quantize(torch.from_numpy(x), 128).numpy()
    for start in range(0, 300, 128):
        part = x[..., start : start + 128]
        scale = np.abs(part).max(-1, keepdims=True) / np.float32(127)
        want = np.rint(part / scale) * scale
        np.testing.assert_allclose(got[..., start : start + 128], want, atol=1e-6)
    assert torch.equal(group_quantize(torch.zeros(2, 4)), torch.zeros(2, 4))


def test_groups_quantize_weights_too(rng: np.random.Generator) -> None:
    linear = nn.Linear(256, 8)
    kernel = GroupInt8(group=64).kernel("layer", linear)
    assert torch.equal(kernel.weight, group_quantize(linear.weight.detach(), 64))
    assert mean_bits(feed(GroupInt8(), torch.ones(2, 3, 4))[0][1]) == 8
    with pytest.raises(ValueError, match=r"group must be at least 1, got 0"):
        GroupInt8(group=0)


def test_ditto_counts_zero_four_and_eight_bits_by_element() -> None:
    method = Ditto({"layer": profile()}, mode="as_published")
    first, second = feed(method, codes([0, 0, 0, 0]), codes([0, 7, -8, 8]))
    assert mean_bits(first[1]) == 8
    assert mean_bits(second[1]) == (0 + 4 + 4 + 8) / 4
    assert second[1].skipped == 1
    assert torch.equal(second[0], codes([0, 7, -8, 8]))


def test_ditto_counts_whole_channels_of_a_sample() -> None:
    method = Ditto({"layer": profile()}, mode="as_dstar")
    x = torch.zeros(2, 3, 2)
    moved = x.clone()
    moved[0, 1, 0] = 20  # one token of one channel of the first sample
    second = feed(method, x, moved)[1][1]
    assert mean_bits(second) == (8 + 4 + 4 + 4) / 4
    assert second.skipped == 0


def test_ditto_modes_give_the_same_images(rng: np.random.Generator) -> None:
    xs = [torch.from_numpy(rng.standard_normal((2, 4, 8)).astype(np.float32)) for _ in range(3)]
    profiles = {"layer": profile(largest=3.0)}
    a, b = (feed(Ditto(profiles, mode=m), *xs) for m in ("as_dstar", "as_published"))
    assert all(torch.equal(p[0], q[0]) for p, q in zip(a, b, strict=True))
    assert mean_bits(b[1][1]) <= mean_bits(a[1][1])


def test_cambricon_keeps_the_first_four_outliers_of_a_group() -> None:
    method = CambriconD({"layer": profile(differences=3.5 / (1 - 4 / 64))}, mode="as_published")
    x = torch.zeros(1, 1, 128)
    d = x.clone()
    d[0, 0, :6] = 50.0
    d[0, 0, 64] = -9.0
    d[0, 0, 65] = 2.0
    first, second = feed(method, x, d)
    want = torch.zeros(128)
    want[:4], want[4:6], want[64], want[65] = 50.0, 3.0, -9.0, 2.0
    assert mean_bits(first[1]) == 16
    torch.testing.assert_close(second[0][0, 0], want, atol=2e-2, rtol=0)
    assert mean_bits(second[1]) == pytest.approx(3 + 13 * 5 / 128)


def test_cambricon_sends_whole_channels_to_floating_point() -> None:
    method = CambriconD({"layer": profile()}, mode="as_dstar")
    first, second = feed(method, codes([0, 0], [0, 0]), codes([1.25, 1.25], [9.5, 1.25]))
    assert mean_bits(first[1]) == 16
    assert second[0].tolist() == [[[1.25, 1.0], [9.5, 1.0]]]
    assert mean_bits(second[1]) == (16 + 4) / 2


def test_exion_zeroes_small_differences_against_what_was_multiplied() -> None:
    method = ZeroSmall({"layer": profile(differences=10.0)}, zeroed=0.3)  # threshold 3
    steps = [codes([v, 0.0]) for v in (0.0, 2.0, 3.5, 5.0)]
    got = feed(method, *steps)
    assert [y[0, 0, 0].item() for y, _ in got] == [0.0, 0.0, 3.5, 3.5]
    assert [mean_bits(s) for _, s in got] == [16, 0, 8, 0]


def test_ffn_reuse_recomputes_marked_elements_only() -> None:
    method = FFNReuse({"m.fc2": profile(values=10.0)}, unmarked=0.5, iterations=2)
    kernels = {n: method.kernel(f"m.{n}", identity(2)) for n in ("fc1", "fc2", "proj")}
    states: dict[str, State] = {n: {} for n in kernels}
    got = []
    for step, x in enumerate([[8.0, 1.0], [7.0, 9.0], [6.0, 9.0], [1.0, 9.0], [2.0, 2.0]]):
        bits = {}
        for name, kernel in kernels.items():
            bits[name] = mean_bits(kernel(codes(x), states[name], Moment(step))[1])
        got.append(bits)
    assert [b["fc1"] for b in got] == [16, 8, 8, 16, 8]
    assert [b["fc2"] for b in got] == [16, 8, 8, 16, 8]
    assert {b["proj"] for b in got} == {16}


def test_ffn_reuse_takes_the_rest_from_the_dense_iteration() -> None:
    method = FFNReuse({"m.fc2": profile(values=10.0)}, unmarked=0.5, iterations=2)
    xs = [codes(row) for row in ([8.0, 1.0], [7.0, 9.0], [1.0, 9.0], [1.0, 9.0])]
    got = [y[0, 0].tolist() for y, _ in feed(method, *xs, name="m.fc2")]
    assert got == [[8, 1], [7, 1], [1, 1], [1, 9]]


def test_leading_one() -> None:
    x = torch.tensor([[127.0, 64.0, 63.0, -3.0, 1.0, 0.0, 0.4]])
    assert leading_one(x).tolist() == [[64, 64, 32, -2, 1, 0, 0]]


@pytest.mark.parametrize("keep", [0.25, 0.5, 0.83, 1.0])
def test_top_keys_attend_to_the_best(keep: float, rng: np.random.Generator) -> None:
    q, k, v = torch.from_numpy(rng.standard_normal((3, 2, 2, 8, 16))).float().unbind(0)
    o, stats = TopKeys(keep)(q, k, v, mask=None, scale=0.25, state={}, moment=Moment(0))
    count = math.ceil(keep * 8)
    assert stats.computed == stats.used == 2 * 2 * 8 * count
    assert stats.scores == 2 * 2 * 8 * 8
    predicted = leading_one(q) @ leading_one(k).mT
    bar = predicted.sort(-1, descending=True).values[..., count - 1 : count]
    # Ties may go either way: compare rows without any.
    plain = ((predicted >= bar).sum(-1) == count).unsqueeze(-1)
    scores = (q @ k.mT * 0.25).masked_fill(predicted < bar, -math.inf)
    want = scores.softmax(-1) @ v
    assert plain.any()
    torch.testing.assert_close(o.where(plain, want), want)


def test_top_keys_refuses_nothing() -> None:
    with pytest.raises(ValueError, match=r"keep must be above 0 and at most 1, got 0"):
        TopKeys(0)


def test_windows_cover_the_grid() -> None:
    place = windows(8, 4)
    assert sorted(place.flatten().tolist()) == list(range(64))
    assert place[1, :5].tolist() == [4, 5, 6, 7, 12]
    with pytest.raises(ValueError, match=r"window must be even and divide the grid 8, got 3"):
        windows(8, 3)


def test_merge_averages_and_gives_back(rng: np.random.Generator) -> None:
    x = torch.from_numpy(rng.standard_normal((2, 64, 32))).float()
    merge = Merge(x, ratio=0.25, grid=8, window=4)
    small = merge.merge(x)
    assert small.shape == (2, 48, 32)
    for b in range(2):
        for place in range(48):
            mine = x[b, merge.place[b] == place]
            torch.testing.assert_close(small[b, place], mine.mean(0))
    back = merge.unmerge(small)
    assert torch.equal(back[0, merge.kept[0]], small[0])
    nothing = Merge(x, ratio=0.0, grid=8, window=4)
    assert torch.equal(nothing.unmerge(nothing.merge(x)), x)
    with pytest.raises(ValueError, match=r"ratio must be between 0 and 0.75, got 0.8"):
        Merge(x, ratio=0.8, grid=8, window=4)


def test_merge_joins_tokens_of_equal_signs() -> None:
    x = torch.ones(1, 16, 4)
    x[0, 5], x[0, 0] = -2.0, -4.0  # token 0 stays; 5 is the only one whose signs match it
    merge = Merge(x, ratio=1 / 16, grid=4, window=4)
    assert merge.place[0, 5] == merge.place[0, 0] == 0
    assert torch.equal(merge.merge(x)[0, 0], torch.full((4,), -3.0))


class Toy(nn.Module):
    """A block list with one FFN over 64 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(16, 16), nn.GELU())])

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.blocks[0](x)


def test_merged_tokens_cost_no_bits(rng: np.random.Generator) -> None:
    model, x = Toy(), torch.from_numpy(rng.standard_normal((2, 64, 16))).float()
    hooks = MergeTokens(model.blocks[0], ratio=0.25, grid=8)
    wrapped = apply(model, MergedInt8(ratio=0.25, layers=["blocks.*"]))
    assert wrapped(x, torch.ones(2)).shape == x.shape
    report = wrapped.report()
    assert report.average_bits == pytest.approx(6.0)
    assert report.skipped_fraction == pytest.approx(0.25)
    hooks.remove()
    wrapped.unwrap()
    plain = apply(model, TokenInt8())
    plain(x, torch.ones(2))
    assert plain.report().average_bits == 8.0


def test_profile_reads_magnitudes_and_differences() -> None:
    model, layers = Toy(), ["blocks.0.0"]

    def sample() -> None:
        for value in (0.0, 1.0, -1.0):
            model(torch.full((1, 64, 16), value), torch.ones(1))

    found = profile_activations(model, layers, sample)["blocks.0.0"]
    assert found.largest == 1.0
    assert (found.difference(0.4), found.difference(0.6)) == (1.0, 2.0)
    assert (found.value(0.2), found.value(0.8)) == (0.0, 1.0)
    with pytest.raises(ValueError, match=r"blocks.0.0 needs at least two steps"):
        profile_activations(model, layers, lambda: None)
