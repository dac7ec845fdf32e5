"""Random activations for the QPU, and one run of it on them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dstar.gen.config import Config
from dstar.golden.bins import BinEntry, BinTable, max_q
from dstar.verif.generated import generate
from dstar.verif.harness import Dut, build_harness
from dstar.verif.player import PlayResult, play
from dstar.verif.qpu.stimulus import (
    Activation,
    Float16,
    QPUStimulus,
    canonical,
    first_difference,
    pack_vectors,
    unpack_vectors,
)
from dstar.verif.verilate import Build


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A compiled QPU."""

    build: Build
    dut: Dut
    cfg: Config

    @classmethod
    def make(cls, cfg: Config, folder: Path, fault: tuple[str, str] | None = None) -> Bench:
        """Generate and compile; ``fault`` is a text of the Verilog and what replaces it."""
        dut = generate("qpu", cfg, folder)
        if fault is not None:
            source = dut.sources[0].read_text()
            assert fault[0] in source, f"the Verilog has no {fault[0]!r}"
            dut.sources[0].write_text(source.replace(*fault))
        return cls(build=build_harness(dut), dut=dut, cfg=cfg)

    def play(self, want: QPUStimulus, **options: Any) -> PlayResult:
        """Run a stimulus, with more patience than any pattern of gaps needs."""
        total = sum(map(len, [*want.inputs.values(), *want.outputs.values()]))
        return play(
            self.build,
            self.dut,
            inputs=want.inputs,
            expect={name: len(words) for name, words in want.outputs.items()},
            max_cycles=1000 + 50 * total,
            **options,
        )

    def run(self, want: QPUStimulus, **options: Any) -> PlayResult:
        """Run a stimulus and compare every word and flag with the golden ones."""
        result = self.play(want, **options)
        for name, words in want.outputs.items():
            got = result.outputs[name]
            if name == "next_reference":
                got = pack_vectors(canonical(unpack_vectors(got, self.cfg)), self.cfg)
            place = first_difference(got, words)
            assert place is None, (
                f"{name}, word {place} of {len(words)}: must be {words[place].tobytes().hex()}, "
                f"got {got[place].tobytes().hex()}"
            )
        for flag in ("nonfinite", "saturated"):
            assert result.probes[f"status__{flag}"] == getattr(want, flag), flag
        assert result.probes["status__dropped"] == 0
        return result


def tables(cfg: Config) -> tuple[BinTable, ...]:
    """Tables of both families, at ordinary scales and where differences are subnormal."""
    span = cfg.numeric.exponent_span
    return (
        BinTable.paper(4, span=min(span, 8)),
        BinTable.uniform(3, span=min(span, 8)),
        BinTable.paper(19, span=min(span, 8)),
        BinTable.keyframe(60000.0, span=min(span, 8)),
    )


def random_table(rng: np.random.Generator, cfg: Config, name: str) -> BinTable:
    """Any legal table: precisions and exponents in no order, thresholds anywhere."""
    count = int(rng.integers(1, 17))
    finest = int(rng.integers(-7, 25))
    thresholds = np.sort(rng.choice(0x7C00, count, replace=False)).astype(np.uint16)
    entries: list[BinEntry] = []
    for bits in thresholds:
        precision = int(rng.choice([0, 2, 4, 6, 8])) if len(entries) else 8
        room = cfg.numeric.channel_bound // max(1, max_q(precision))
        lowest = max(finest - room.bit_length() + 1, -9 if precision == 8 else -11)
        exponent = int(rng.integers(min(lowest, finest), finest + 1)) if precision else 0
        threshold = float(bits.view(np.float16))
        entries.append(BinEntry(threshold=threshold, precision=precision, exponent=exponent))
    table = BinTable(tuple(entries), name)
    table.check(cfg)
    return table


def values(rng: np.random.Generator, shape: tuple[int, int], table: BinTable) -> Float16:
    """Numbers around the table's thresholds, uniform over exponents, some of few bits.

    Half of the sub-channels have their peak at a threshold or one place beside it.
    """
    tokens, channels = shape
    top = int(np.clip(np.log2(max(table.entries[-1].threshold, 2.0**-24)) + 2, -20, 15))
    bottom = int(max(-24, -table.finest - 3))
    peak = rng.integers(min(bottom, top), top + 1, (1, channels))
    exponent = peak - rng.integers(0, 5, shape) * rng.integers(0, 2, shape)
    fraction = rng.integers(0, 2**10, shape) & ~((1 << rng.integers(0, 11, shape)) - 1)
    sign = rng.choice([-1.0, 1.0], shape)
    with np.errstate(over="ignore"):
        x = np.ldexp(sign * (1 + fraction / 1024), exponent).astype(np.float16)
    x = np.clip(x, np.float16(-65504), np.float16(65504))
    zero = np.where(rng.random(shape) < 0.5, np.float16(0), np.float16(-0.0))
    x = np.where(rng.random(shape) < 0.05, zero, x)
    # Peaks at thresholds: everything else is made no larger.
    row = rng.integers(0, len(table.entries), channels)
    near = table.threshold_bits[row].astype(np.int64) + rng.integers(-1, 2, channels)
    near = near.clip(0, 0x7BFF).astype(np.uint16).view(np.float16)
    chosen = rng.random(channels) < 0.5
    x[:, chosen] = np.clip(x[:, chosen], -near[chosen], near[chosen])
    x[rng.integers(0, tokens), chosen] = near[chosen]
    return x


def activations(
    rng: np.random.Generator,
    cfg: Config,
    count: int,
    *,
    channels: int = 0,
    choice: tuple[BinTable, ...] | None = None,
) -> list[Activation]:
    """Activations of all modes and many shapes, under changing tables.

    ``channels``: about how many each has; by default some tiles' worth.
    """
    choice = tables(cfg) if choice is None else choice
    result = []
    for _ in range(count):
        table = choice[int(rng.integers(len(choice)))]
        width = channels or int(rng.integers(1, 3 * cfg.numeric.k_tile + 1))
        if rng.random() < 0.2:
            width = 1 + int(rng.integers(0, 2)) * cfg.numeric.k_tile
        tokens = int(rng.integers(1, 2 * cfg.array.rows + 1))
        x = values(rng, (tokens, width), table)
        reference: Float16 | None = None
        if rng.random() < 0.7:
            # Half of the differences are exact: x itself, and x less a power of two.
            reference = np.zeros_like(x)
            if rng.random() < 0.5:
                reference = values(rng, (tokens, width), table)
        if rng.random() < 0.05:
            x, reference = np.zeros_like(x), None
        result.append(
            Activation(
                x=x, reference=reference, table=table, cfg=cfg, previous=bool(rng.random() < 0.3)
            )
        )
    return result
