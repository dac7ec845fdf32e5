# amaranth: UnusedElaboratable=no
"""binary16 multiplication and conversion against NumPy and Berkeley SoftFloat."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import softfloatpy as softfloat
from amaranth.hdl import Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from dstar.golden.fp16 import CANONICAL_NAN, fp16_add, fp16_from_integer, fp16_multiply
from dstar.rtl.fp16.mul import FP16FromInteger, FP16Mul
from dstar.rtl.hierarchy import shared
from dstar.verif.player import play
from dstar.verif.tests.rtl_bench import build_bench

Bits = npt.NDArray[np.uint16]

LANES, WIDTH = 16, 24
CORNERS = np.array(
    [
        sign << 15 | field << 10 | fraction
        for sign in (0, 1)
        for field in (*range(6), 9, 10, 14, 15, 16, 19, 20, 24, 29, 30, 31)
        for fraction in (0, 1, 2, 3, 0x155, 0x1FF, 0x200, 0x201, 0x3FE, 0x3FF)
    ],
    np.uint16,
)


def pairs(seed: int, count: int) -> tuple[Bits, Bits]:
    """All pairs of corner patterns, pairs whose products lie about the ends of the normal range,
    and random ones up to ``count``, NaN included."""
    rng = np.random.default_rng(seed)
    a, b = (grid.ravel() for grid in np.meshgrid(CORNERS, CORNERS))
    rest = count - len(a)
    x, y = rng.integers(0, 2**16, (2, rest), dtype=np.uint16)
    # Half of them with exponents that add up to the smallest or largest normal ones.
    half = rest // 2
    field = (x[:half] >> 10 & 31).astype(int)
    near = np.clip(rng.choice([15, 16, 4, 45, 46], half) + rng.integers(-2, 3, half) - field, 0, 31)
    y[:half] = y[:half] & 0x83FF | near.astype(np.uint16) << 10
    return np.concatenate([a, x]), np.concatenate([b, y])


def softfloat_bits(operation: Any, a: Bits, b: Bits) -> Bits:
    """SoftFloat's results, NaN made canonical."""
    values = [softfloat.Float16.from_bytes(i.to_bytes(2, "big")) for i in range(2**16)]
    result = [
        int.from_bytes(operation(values[x], values[y]).to_bytes(), "big")
        for x, y in zip(a.tolist(), b.tolist(), strict=True)
    ]
    bits = np.array(result, np.uint16)
    return np.where((bits & 0x7FFF) > 0x7C00, np.uint16(CANONICAL_NAN), bits)


@pytest.mark.parametrize("name", ["multiply", "add"])
def test_golden_equals_softfloat(name: str, seed: int) -> None:
    check_golden(name, seed, 500_000)


@pytest.mark.full
@pytest.mark.parametrize("name", ["multiply", "add"])
def test_golden_equals_softfloat_on_ten_million_pairs(name: str, seed: int) -> None:
    for part in range(20):
        check_golden(name, seed + part, 500_000)


def check_golden(name: str, seed: int, count: int) -> None:
    golden = {"multiply": fp16_multiply, "add": fp16_add}[name]
    operation = {"multiply": softfloat.f16_mul, "add": softfloat.f16_add}[name]
    a, b = pairs(seed, count)
    np.testing.assert_array_equal(golden(a, b), softfloat_bits(operation, a, b))


def test_golden_conversion_equals_softfloat() -> None:
    integers = np.arange(-(2**17), 2**17)
    want = [
        int.from_bytes(softfloat.i32_to_f16(softfloat.Int32.from_int(i)).to_bytes(), "big")
        for i in integers.tolist()
    ]
    np.testing.assert_array_equal(fp16_from_integer(integers), np.array(want, np.uint16))


class Bench(wiring.Component):
    """Multipliers and converters side by side on one stream of operand pairs."""

    def __init__(self) -> None:
        word = data.StructLayout({"pairs": data.ArrayLayout(16, 2 * LANES), "integer": WIDTH})
        super().__init__(
            {
                "operands": In(stream.Signature(word)),
                "results": Out(stream.Signature(data.ArrayLayout(16, LANES + 1))),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """One register behind all results."""
        m = Module()
        payload, results = self.operands.payload, self.results
        enable = Signal()
        converter = FP16FromInteger(width=WIDTH)
        m.submodules.converter = shared(platform, converter)
        m.d.comb += [
            enable.eq(~results.valid | results.ready),
            self.operands.ready.eq(enable),
            converter.integer.eq(payload.integer),
        ]
        with m.If(enable):
            m.d.sync += [
                results.valid.eq(self.operands.valid),
                results.payload[LANES].eq(converter.half),
            ]
        for lane in range(LANES):
            multiplier = FP16Mul()
            m.submodules[f"lane{lane}"] = shared(platform, multiplier)
            m.d.comb += [
                multiplier.a.eq(payload.pairs[2 * lane]),
                multiplier.b.eq(payload.pairs[2 * lane + 1]),
            ]
            with m.If(enable):
                m.d.sync += results.payload[lane].eq(multiplier.product)
        return m


def test_rtl_equals_golden(seed: int, tmp_path: Path) -> None:
    build, dut = build_bench("fp16_mul_bench", Bench(), tmp_path)
    words = 2**15
    a, b = pairs(seed, words * LANES)
    rng = np.random.default_rng(seed)
    integers = rng.integers(-(2**23), 2**23, words)
    integers[: 2**14] >>= rng.integers(0, 23, 2**14)
    integers[-4:] = [65519, 65520, -(2**23), 0]
    operands = np.stack([a, b], axis=1).reshape(words, -1).view(np.uint8)
    low = integers.astype("<i4").view(np.uint8).reshape(words, 4)[:, : WIDTH // 8]
    result = play(
        build,
        dut,
        inputs={"operands": np.hstack([operands, low])},
        expect={"results": words},
        idle=0.1,
        backpressure=0.1,
        seed=seed,
    )
    got = result.outputs["results"].view(np.uint16)
    np.testing.assert_array_equal(got[:, :LANES].ravel(), fp16_multiply(a, b))
    np.testing.assert_array_equal(got[:, LANES], fp16_from_integer(integers))


def test_width_is_checked() -> None:
    with pytest.raises(ValueError, match="width must be from 13 to 64, got 12"):
        FP16FromInteger(width=12)
