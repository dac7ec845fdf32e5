"""Plays arrays of words through a design's streams and returns what comes out."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dstar.verif.harness import TAIL_CYCLES, Dut, ScalarPort, StreamPort, build_harness
from dstar.verif.process import SimulationError
from dstar.verif.runner import default_seed, run, run_folder
from dstar.verif.verilate import Build

__all__ = ["Dut", "PlayResult", "ScalarPort", "StreamPort", "build_harness", "play"]

Words = NDArray[np.uint8] | bytes | Path


@dataclass(frozen=True, kw_only=True)
class PlayResult:
    """What one run gave.

    ``outputs``: for each output stream, its words, uint8 [n, ceil(width / 8)], least significant
    byte first.  ``stamps``: for each, the cycle each word was accepted in, uint64 [n]; empty
    unless asked for.  ``probes``: the values of the scalar outputs at the end.  ``cycles``: clock
    cycles from the start to the last word.  ``simulated``: all cycles, a few more than ``cycles``.
    ``wall_s``, ``cpu_s``: seconds they took, start-up excluded.  ``seed``: as used.
    """

    outputs: dict[str, NDArray[np.uint8]]
    stamps: dict[str, NDArray[np.uint64]]
    probes: dict[str, int]
    cycles: int
    simulated: int
    wall_s: float
    cpu_s: float
    seed: int

    @property
    def cycles_per_second(self) -> float:
        """Speed of the simulation."""
        return self.simulated / self.wall_s if self.wall_s else 0.0


def _input_file(stream: StreamPort, words: Words, folder: Path) -> tuple[Path, int]:
    """Path and number of words of an input; arrays and bytes are written to a file first."""
    size = stream.word_bytes
    if isinstance(words, np.ndarray):
        if words.dtype != np.uint8 or words.ndim != 2 or words.shape[1] != size:
            raise SimulationError(
                f"stream {stream.name}: words must be uint8 [n, {size}], "
                f"got {words.dtype} {list(words.shape)}"
            )
        words = np.ascontiguousarray(words).tobytes()
    path = words if isinstance(words, Path) else folder / f"{stream.name}.in"
    if not isinstance(words, Path):
        path.write_bytes(words)
    total = path.stat().st_size
    if total % size:
        raise SimulationError(
            f"stream {stream.name}: length must be a multiple of {size} bytes, got {total}"
        )
    return path.absolute(), total // size


def _threshold(name: str, probability: float) -> int:
    if not 0.0 <= probability < 1.0:
        raise SimulationError(f"{name} must be at least 0 and below 1, got {probability!r}")
    return round(probability * 65535)


def _per_stream(
    value: float | Mapping[str, float], streams: Sequence[StreamPort]
) -> dict[str, float]:
    """One probability for each stream, from one for all or a mapping (others: 0)."""
    if isinstance(value, Mapping):
        return {stream.name: value.get(stream.name, 0.0) for stream in streams}
    return dict.fromkeys((stream.name for stream in streams), value)


def play(
    build: Build,
    dut: Dut,
    *,
    inputs: Mapping[str, Words],
    expect: Mapping[str, int],
    scalars: Mapping[str, int] | None = None,
    idle: float | Mapping[str, float] = 0.0,
    backpressure: float | Mapping[str, float] = 0.0,
    seed: int | None = None,
    resets: Sequence[int] = (),
    stamps: bool = False,
    max_cycles: int | None = None,
    tail_cycles: int = TAIL_CYCLES,
    plusargs: Sequence[str] = (),
    timeout_s: float = 3600.0,
    folder: Path | None = None,
    progress: Callable[[Mapping[str, int]], None] | None = None,
) -> PlayResult:
    """Play ``inputs`` through a design and record its output streams.

    Args:
        build: the simulator, from :func:`build_harness` for the same ``dut``.
        dut: the design.
        inputs: for each input stream its words: uint8 [n, ceil(width / 8)] or the same as bytes
            or as a file, least significant byte first.  A stream not named stays silent.
        expect: for each output stream the number of words after which the run may end.
        scalars: values of scalar inputs (others: 0).
        idle: probability that a source waits in a cycle, for all or by stream.
        backpressure: probability that a sink refuses in a cycle, for all or by stream.
        seed: of both patterns (default: :func:`dstar.verif.runner.default_seed`).
        resets: before the run that counts, run this many cycles and reset, for each; the
            sources then start again from their first word.
        stamps: also record the cycle of each output word.
        max_cycles: end the run after so many cycles.
        tail_cycles: go on for so long after the last expected word, to catch surplus ones.
        plusargs: further arguments for the simulator, such as ``+verilator+rand+reset+2``.
        timeout_s: wall-clock limit in seconds.
        folder: where to run and leave all files (default: a temporary folder).
        progress: called about five times a second with the words of each output written so far.

    Raises:
        SimulationError: an unknown stream, a word of the wrong size, ``max_cycles`` reached,
            surplus words, a broken stream rule, or a simulator that failed or hung.
    """
    seed = default_seed() if seed is None else seed
    _check_names(dut, "input stream", inputs, dut.inputs())
    _check_names(dut, "output stream", expect, dut.outputs())
    _check_names(
        dut, "scalar input", scalars or {}, [s for s in dut.scalars if s.direction == "in"]
    )
    words: dict[str, int] = {}
    arguments = [f"+hold_{name}={value:x}" for name, value in (scalars or {}).items()]
    arguments += [*plusargs, f"+tail={tail_cycles}", f"+max_cycles={max_cycles or 0}"]
    with run_folder(folder) as where:
        for stream in dut.inputs():
            if stream.name in inputs:
                path, words[stream.name] = _input_file(stream, inputs[stream.name], where)
                arguments += [f"+{stream.name}_file={path}"]
                arguments += [f"+{stream.name}_words={words[stream.name]}"]
        for stream in dut.outputs():
            arguments += [f"+{stream.name}_file={where / stream.name}.out"]
            arguments += [f"+{stream.name}_expect={expect.get(stream.name, 0)}"]
            arguments += [f"+{stream.name}_stamps={where / stream.name}.stamps"] * stamps
        rates = [("idle", idle, dut.inputs()), ("stall", backpressure, dut.outputs())]
        for key, value, streams in rates:
            for name, rate in _per_stream(value, streams).items():
                noise = zlib.crc32(f"{seed} {name}".encode()) or 1
                arguments += [f"+{name}_{key}={_threshold(key, rate)}", f"+{name}_seed={noise}"]
        reads = ["cycles", "finished", "late", "broken"]
        reads += [f"count_{stream.name}" for stream in dut.streams]
        reads += [f"probe_{port.name}" for port in dut.scalars if port.direction == "out"]
        order = {"resets": list(resets), "reads": reads, "report": str(where / "report.json")}

        def poll() -> None:
            if progress is not None:
                progress({s.name: _written(where, s) for s in dut.outputs()})

        done = run(
            build,
            "dstar.verif.play_bench",
            plusargs=arguments,
            seed=seed,
            # Without files to rewrite, cocotb does not import pytest, which halves the start-up.
            env={"DSTAR_PLAY": json.dumps(order), "COCOTB_REWRITE_ASSERTION_FILES": ""},
            folder=where,
            timeout_s=timeout_s,
            poll=poll if progress is not None else None,
        )
        report = json.loads((where / "report.json").read_text())
        _check(dut, report, words | dict(expect), done.log)
        return PlayResult(
            outputs={s.name: _outputs(where, s, report) for s in dut.outputs()},
            stamps={
                s.name: np.fromfile(
                    where / f"{s.name}.stamps", np.dtype("<u8"), report[f"count_{s.name}"]
                )
                for s in dut.outputs()
                if stamps
            },
            probes={
                port.name: report[f"probe_{port.name}"]
                for port in dut.scalars
                if port.direction == "out"
            },
            cycles=report["finished"],
            simulated=report["cycles"],
            wall_s=report["wall_s"],
            cpu_s=report["cpu_s"],
            seed=seed,
        )


def _check_names(
    dut: Dut, what: str, given: Iterable[str], ports: Sequence[StreamPort | ScalarPort]
) -> None:
    known = [port.name for port in ports]
    for name in given:
        if name not in known:
            raise SimulationError(f"{dut.top} has no {what} {name!r}; it has {known}")


def _file_word_bytes(stream: StreamPort) -> int:
    """Bytes of one word in a sink's file: whole 32-bit units."""
    return 4 * ((stream.width + 31) // 32)


def _written(folder: Path, stream: StreamPort) -> int:
    try:
        return (folder / f"{stream.name}.out").stat().st_size // _file_word_bytes(stream)
    except FileNotFoundError:
        return 0


def _outputs(folder: Path, stream: StreamPort, report: Mapping[str, Any]) -> NDArray[np.uint8]:
    """The words a sink wrote, uint8 [n, word_bytes]."""
    count, size = report[f"count_{stream.name}"], _file_word_bytes(stream)
    path = folder / f"{stream.name}.out"
    data = np.fromfile(path, np.uint8, count * size)
    if data.size != count * size:
        raise SimulationError(f"{path} is short; is the disk full?")
    return np.ascontiguousarray(data.reshape(count, size)[:, : stream.word_bytes])


def _check(dut: Dut, report: Mapping[str, int], words: Mapping[str, int], log: str) -> None:
    """Refuse a run that did not end as it should."""
    counts = ", ".join(
        f"{s.name} {report[f'count_{s.name}']} of {words.get(s.name, 0)}" for s in dut.streams
    )
    if report["broken"]:
        lines = [line for line in log.splitlines() if line.startswith("stream ")]
        raise SimulationError(f"{dut.top} broke the stream rule: {'; '.join(lines)}")
    if report["late"]:
        raise SimulationError(f"{dut.top} not done after {report['cycles']} cycles: {counts}")
    for stream in dut.outputs():
        if report[f"count_{stream.name}"] > words.get(stream.name, 0):
            raise SimulationError(f"{dut.top} gave surplus words: {counts}")
