"""The MPU's output path in Verilator against whole layers' golden outputs, on a dump."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dstar.gen.config import Config
from dstar.gen.library import VerilogLibrary
from dstar.golden.dump import DumpReader
from dstar.golden.linear import FMDQLinear, LayerTables, LinearStep
from dstar.rtl.output.path import OutputPath
from dstar.verif.compare.check import Mismatch
from dstar.verif.compare.plan import Place
from dstar.verif.compare.report import CompareError, CompareReport, Figures
from dstar.verif.harness import Dut, ScalarPort, StreamPort, build_harness
from dstar.verif.output_words import (
    CHANNEL,
    channel_words,
    command_fields,
    command_words,
    sums_words,
    vector_words,
)
from dstar.verif.packing import Words, output_fields, word_bits
from dstar.verif.player import play
from dstar.verif.verilate import Build

Half = npt.NDArray[np.float16]

#: Seed of the simulator's own randomness: comparisons must not vary.
SEED = 1


@dataclass(frozen=True, eq=False)
class OutputSimulator:
    """One build of the output path, which takes k tiles one after the other."""

    cfg: Config
    build: Build
    dut: Dut
    k_tiles: int


@contextmanager
def output_simulator(cfg: Config, *, k_tiles: int = 64) -> Iterator[OutputSimulator]:
    """Generate and compile the output path (or find it in the cache).

    Raises
    ------
    ToolError, SimulationError
        If there is no usable Verilator or compiler, or the build fails.
    """
    unit = OutputPath(cfg, k_tiles=k_tiles)
    vector = 16 * cfg.array.rows
    widths = {
        "command": word_bits(command_fields(unit.columns)),
        "sums": word_bits(output_fields(cfg)),
        "channel": word_bits(CHANNEL),
        "before": vector,
    }
    streams = [StreamPort(name=n, direction="in", width=w) for n, w in widths.items()]
    low = cfg.clock.reset == "async_low"
    with tempfile.TemporaryDirectory(prefix="dstar-compare-") as folder:
        path = Path(folder) / "output_path.v"
        path.write_text(VerilogLibrary(cfg).emit("output_path", unit))
        dut = Dut(
            sources=(path,),
            top="output_path",
            streams=(*streams, StreamPort(name="output", direction="out", width=vector)),
            scalars=(ScalarPort(name="saturated", direction="out", width=1),),
            reset="rst_n" if low else "rst",
            reset_active_low=low,
            hier_blocks=(f"output_lane_{unit.width}",),
        )
        yield OutputSimulator(cfg, build_harness(dut), dut, k_tiles)


def compare_output(
    dump: DumpReader,
    simulator: OutputSimulator,
    *,
    tables: Mapping[str, LayerTables],
    layers: str = "*",
    steps: range | None = None,
) -> CompareReport:
    """Feed the golden sums of every tile product through the output path; y must be equal.

    The MPU is held to the same sums, so the two comparisons reach from encoded tiles to binary16
    outputs.  In the report a tile is a token tile by all output channels.

    Raises
    ------
    DumpError
        If no layer matches or a tensor is refused.
    CompareError
        If a layer has more k tiles than the unit takes.
    SimulationError
        If the simulator fails, or the unit loses or invents a column.
    """
    start = time.monotonic()
    names = dump.match(layers)
    chosen = dump.steps if steps is None else steps
    cfg = simulator.cfg
    figures = tuple(Figures(lanes=cfg.array.lanes) for _ in names)
    for index, name in enumerate(names):
        bias = dump.b(name)
        layer = FMDQLinear(dump.w(name), bias, tables=tables[name], cfg=cfg)
        k_tiles = -(-layer.weight.q.shape[1] // cfg.numeric.k_tile)
        if k_tiles > simulator.k_tiles:
            raise CompareError(
                f"{name}: k tiles must be at most {simulator.k_tiles}, got {k_tiles}"
            )
        out = layer.weight.q.shape[0]
        constant = (np.zeros(out) if bias is None else bias).astype(np.float16)
        before: Half | None = None
        for step in range(chosen.stop):
            result = layer.step(dump.x(name, step))
            if step in chosen:
                y = dump.y(name, step).astype(np.float64)
                figures[index].signal += float(np.square(y).sum())
                figures[index].noise += float(np.square(result.y_carrier - y).sum())
                figures[index].saturated += result.saturated
                _play(simulator, result, constant, before, figures[index], (index, step))
            before = result.y
    return CompareReport(
        unit="output",
        preset=cfg.preset,
        config_hash=cfg.hash,
        dump=dump.path.name,
        lanes=cfg.array.lanes,
        steps=chosen,
        names=names,
        layers=figures,
        seconds=time.monotonic() - start,
    )


def _padded(values: npt.NDArray[np.generic], shape: tuple[int, int]) -> npt.NDArray[np.generic]:
    """A matrix in the upper left corner of zeros."""
    full = np.zeros(shape, values.dtype)
    full[: values.shape[0], : values.shape[1]] = values
    return full


def _streams(
    step: LinearStep, bias: Half, before: Half | None, cfg: Config
) -> tuple[dict[str, Words], int, int]:
    """Words of one step of a layer: token tile, column tile, k tile; tiles and padded columns."""
    rows, cols = cfg.array.rows, cfg.array.cols
    out = len(bias)
    padded = -(-out // cols) * cols
    scale = np.ones(padded, np.float32)
    scale[:out] = step.weight.scale
    channels = channel_words(scale, _padded(bias[None], (1, padded))[0].astype(np.float16))
    commands: list[list[int]] = []
    sums, exponents, addends = [], [], []
    for number, tiles in enumerate(step.tiles):
        acc = [_padded(step.acc(number, k), (rows, padded)).T for k in range(len(tiles))]
        for base in range(0, padded, cols):
            for k, tile in enumerate(tiles):
                ends = [k == 0, k + 1 == len(tiles), before is None]
                commands.append([*map(int, ends), step.table.finest, 0])
                sums.append(acc[k][base : base + cols])
                exponents += [tile.last_exponent] * cols
        if before is not None:
            part = before[number * rows : (number + 1) * rows]
            addends.append(_padded(part, (rows, padded)).T.astype(np.float16))
    words = {
        "command": command_words(commands, cols),
        "sums": sums_words(
            np.concatenate(sums).astype(np.int64), np.array(exponents, np.int64), cfg
        ),
        "channel": np.concatenate([channels] * len(step.tiles)),
    }
    if before is not None:
        words["before"] = vector_words(np.concatenate(addends))
    return words, len(step.tiles), padded


def _play(
    simulator: OutputSimulator,
    step: LinearStep,
    bias: Half,
    before: Half | None,
    figures: Figures,
    place: tuple[int, int],
) -> None:
    """Run one step and compare its real tokens and channels."""
    words, tiles, padded = _streams(step, bias, before, simulator.cfg)
    result = play(
        simulator.build, simulator.dut, inputs=words, expect={"output": tiles * padded}, seed=SEED
    )
    rows = simulator.cfg.array.rows
    bits = np.ascontiguousarray(result.outputs["output"]).view(np.uint16)
    tokens = step.y.shape[0]
    got = bits.reshape(tiles, padded, rows).transpose(0, 2, 1).reshape(-1, padded)
    want = step.y.view(np.uint16)
    wrong = got[:tokens, : len(bias)] != want
    if wrong.any():
        token, channel = (int(i) for i in np.argwhere(wrong)[0])
        first = Mismatch(
            Place(*place, token // rows, 0, channel // simulator.cfg.array.cols),
            channel % simulator.cfg.array.cols,
            token % rows,
            "y",
            int(want[token, channel]),
            int(got[token, channel]),
        )
        figures.first = min(figures.first or first, first)
    figures.tiles += tiles
    figures.mismatches += int(wrong.sum())
    figures.cycles += result.cycles
    figures.seconds += result.wall_s
