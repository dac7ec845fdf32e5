# amaranth: UnusedElaboratable=no
"""The binary16 adder against NumPy and Berkeley SoftFloat."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import softfloatpy as softfloat
from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from dstar.rtl.fp16.add import CANONICAL_NAN, FP16Add
from dstar.rtl.hierarchy import shared
from dstar.verif.player import play
from dstar.verif.tests.rtl_bench import build_bench

Bits = npt.NDArray[np.uint16]

LANES = 16
#: Pipelines of 0 to 3 registers.
DEPTHS = 4
#: Every sign, exponent boundary and fraction pattern that an adder may treat specially.
CORNERS = np.array(
    [
        sign << 15 | field << 10 | fraction
        for sign in (0, 1)
        for field in (*range(15), 16, 24, 29, 30, 31)
        for fraction in (0, 1, 2, 3, 0x1FF, 0x200, 0x201, 0x3FE, 0x3FF)
    ],
    np.uint16,
)


class AdderBench(wiring.Component):
    """Adders of every depth side by side, each fed with the same stream of operand pairs."""

    def __init__(self) -> None:
        operands = data.ArrayLayout(16, 2 * LANES)
        sums = data.ArrayLayout(16, LANES * DEPTHS)
        super().__init__(
            {
                "operands": In(stream.Signature(operands)),
                "sums": Out(stream.Signature(sums)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Shorter pipelines get registers behind them, so that all sums leave together."""
        m = Module()
        enable = Signal()
        depth = DEPTHS - 1
        m.d.comb += [
            enable.eq(~self.sums.valid | self.sums.ready),
            self.operands.ready.eq(enable),
        ]
        valid = self.operands.valid
        for stage in range(depth):
            kept = Signal(name=f"valid_{stage}")
            with m.If(enable):
                m.d.sync += kept.eq(valid)
            valid = kept
        m.d.comb += self.sums.valid.eq(valid)
        results = []
        for stages in range(DEPTHS):
            for lane in range(LANES):
                adder = FP16Add(stages=stages)
                m.submodules += shared(platform, adder)
                m.d.comb += [
                    adder.a.eq(self.operands.payload[2 * lane]),
                    adder.b.eq(self.operands.payload[2 * lane + 1]),
                ]
                if stages:
                    m.d.comb += adder.enable.eq(enable)
                result: Any = adder.sum
                for stage in range(depth - adder.latency):
                    kept = Signal(16, name=f"sum_{stages}_{lane}_{stage}")
                    with m.If(enable):
                        m.d.sync += kept.eq(result)
                    result = kept
                results.append(result)
        m.d.comb += self.sums.payload.as_value().eq(Cat(*results))
        return m


def numpy_sum(a: Bits, b: Bits) -> Bits:
    """Sums as NumPy makes them, every NaN as the canonical one."""
    with np.errstate(all="ignore"):
        total = a.view(np.float16) + b.view(np.float16)
    return np.where(np.isnan(total), np.uint16(CANONICAL_NAN), total.view(np.uint16))


def softfloat_sum(a: Bits, b: Bits) -> Bits:
    """Sums as Berkeley SoftFloat makes them, every NaN as the canonical one."""
    softfloat.set_rounding_mode(softfloat.RoundingMode.NEAR_EVEN)
    make = softfloat.Float16.from_bytes
    sums = [
        softfloat.f16_add(make(x.to_bytes(2, "big")), make(y.to_bytes(2, "big"))).to_bytes()
        for x, y in zip(a.tolist(), b.tolist(), strict=True)
    ]
    total = np.frombuffer(b"".join(sums), ">u2").astype(np.uint16)
    return np.where((total & 0x7FFF) > 0x7C00, np.uint16(CANONICAL_NAN), total)


def operands(rng: np.random.Generator, random: int) -> tuple[Bits, Bits]:
    """All pairs of corners, random pairs, pairs of near exponents, pairs that nearly cancel."""
    a, b = (x.ravel() for x in np.meshgrid(CORNERS, CORNERS))
    left, right = [a], [b]
    x, y = rng.integers(0, 2**16, (2, random), np.uint16)
    left += [x, x, x]
    # Exponents within four of each other, and neighbours of the opposite sign.
    near = (x & 0x7C00).astype(np.int64) + (rng.integers(-4, 5, random) << 10)
    right += [
        y,
        (near.clip(0, 0x7C00).astype(np.uint16)) | (y & 0x83FF),
        (x ^ 0x8000) + rng.integers(-3, 4, random).astype(np.uint16),
    ]
    a, b = np.concatenate(left), np.concatenate(right)
    pad = -len(a) % LANES
    return np.append(a, a[:pad]), np.append(b, b[:pad])


@pytest.mark.parametrize("stages", [-1, 4])
def test_refuses_stages(stages: int) -> None:
    with pytest.raises(ValueError, match=f"stages must be from 0 to 3, got {stages}"):
        FP16Add(stages=stages)


def test_models_agree(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = operands(rng, 20_000)
    np.testing.assert_array_equal(numpy_sum(a, b), softfloat_sum(a, b))


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return build_bench("adder_bench", AdderBench(), tmp_path_factory.mktemp("adder"))


def check(bench: Any, a: Bits, b: Bits, seed: int, idle: float = 0.0) -> None:
    """Add through the bench and compare every depth's sums with NumPy's."""
    build, dut = bench
    words = np.stack([a, b], axis=1).reshape(-1, 2 * LANES).astype("<u2")
    result = play(
        build,
        dut,
        inputs={"operands": words.view(np.uint8)},
        expect={"sums": len(words)},
        idle=idle,
        backpressure=idle,
        seed=seed,
    )
    got = result.outputs["sums"].view("<u2").reshape(len(words), DEPTHS, LANES)
    want = numpy_sum(a, b)
    for stages in range(DEPTHS):
        sums = got[:, stages].reshape(-1)
        wrong = np.flatnonzero(sums != want)
        assert not len(wrong), (
            f"{stages} stages: {a[wrong[0]]:#06x} + {b[wrong[0]]:#06x} must be "
            f"{want[wrong[0]]:#06x}, got {sums[wrong[0]]:#06x} ({len(wrong)} of {len(a)} wrong)"
        )


def test_sums(bench: Any, seed: int) -> None:
    check(bench, *operands(np.random.default_rng(seed), 500_000), seed)


def test_holds_when_stalled(bench: Any, seed: int) -> None:
    check(bench, *operands(np.random.default_rng(seed), 20_000), seed, idle=0.5)


@pytest.mark.full
def test_exhaustive_in_one_operand(bench: Any, seed: int, tmp_path: Path) -> None:
    """Every value plus every corner: 23 million sums."""
    everything = np.arange(2**16, dtype=np.uint16)
    for part in np.array_split(CORNERS, 6):
        a, b = (x.ravel() for x in np.meshgrid(everything, part))
        check(bench, a, b, seed)
