"""Plays words into a design from a power-up where every register and memory word is unknown.

A four-state simulator (Icarus Verilog) without initial values starts all state as x.  After the
reset no handshake or flag may ever be x, and no word that leaves may hold one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from dstar.verif.harness import Dut, StreamPort
from dstar.verif.packing import Words
from dstar.verif.process import SimulationError, run_logged

#: Seconds for the compiler, and for the simulation.
TIMEOUT_S = 300.0


def _stream(stream: StreamPort, words: int) -> str:
    """Declarations and players of one stream."""
    name, top = stream.name, stream.width - 1
    common = (
        f"  integer n_{name} = 0;\n"
        f"  wire [{top}:0] {name}__payload;\n  wire {name}__valid, {name}__ready;\n"
    )
    if stream.direction == "in":
        return common + (
            f"  reg [{top}:0] {name} [0:{max(words, 1) - 1}];\n"
            f'  initial if ({words}) $readmemh("{name}.hex", {name});\n'
            f"  assign {name}__payload = {name}[n_{name}];\n"
            f"  assign {name}__valid = !reset && n_{name} < {words};\n"
            f"  always @(posedge clk) if (!reset && {name}__valid && {name}__ready)\n"
            f"    n_{name} <= n_{name} + 1;\n"
        )
    # Taken in seven cycles of eight, so that words wait too.
    return common + (
        f'  integer file_{name};\n  initial file_{name} = $fopen("{name}.out", "w");\n'
        f"  assign {name}__ready = !reset && cycles % 8 != 5;\n"
        f"  always @(posedge clk) if (!reset && {name}__valid && {name}__ready) begin\n"
        f'    $fdisplay(file_{name}, "%h", {name}__payload);\n'
        f"    n_{name} <= n_{name} + 1;\n  end\n"
    )


def bench(dut: Dut, counts: Mapping[str, int], max_cycles: int) -> str:
    """Verilog of a bench around a design; ``counts``: words in and out, by stream."""
    ports = [f".{dut.clock}(clk)", f".{dut.reset}({'!' if dut.reset_active_low else ''}reset)"]
    known, scalars = [], []
    for stream in dut.streams:
        ports += [f".{stream.name}__{s}({stream.name}__{s})" for s in ("payload", "valid", "ready")]
        known.append(f"{stream.name}__{'ready' if stream.direction == 'in' else 'valid'}")
    for scalar in dut.scalars:
        # An input is held at 0.
        value = f"{scalar.width}'d0" if scalar.direction == "in" else scalar.name
        ports.append(f".{scalar.name}({value})")
        if scalar.direction == "out":
            scalars.append(f"  wire [{scalar.width - 1}:0] {scalar.name};\n")
            known.append(scalar.name)
    done = " && ".join(f"n_{s.name} == {counts[s.name]}" for s in dut.outputs())
    return (
        "module unknown_state;\n  reg clk = 0, reset = 1;\n  integer cycles = 0;\n"
        "  always #1 clk = ~clk;\n  initial begin repeat (3) @(posedge clk); #1 reset = 0; end\n"
        + "".join(_stream(stream, counts[stream.name]) for stream in dut.streams)
        + "".join(scalars)
        + f"  {dut.top} dut({', '.join(ports)});\n"
        "  always @(posedge clk) if (!reset) begin\n    cycles <= cycles + 1;\n"
        f"    if (^{{{', '.join(known)}}} === 1'bx) begin\n"
        '      $display("a handshake or flag is unknown %0d cycles after the reset", cycles);\n'
        "      $finish;\n    end\n"
        f"    if ({done}) $finish;\n"
        f'    if (cycles == {max_cycles}) begin $display("no end"); $finish; end\n'
        "  end\nendmodule\n"
    )


def play_from_unknown(
    dut: Dut,
    folder: Path,
    *,
    inputs: Mapping[str, Words],
    expect: Mapping[str, int],
    max_cycles: int = 100_000,
) -> dict[str, Words]:
    """Reset the design out of the unknown, play ``inputs``, return the words of every output.

    Parameters
    ----------
    folder:
        Where bench, words and logs go.
    expect:
        Words of each output stream.

    Raises
    ------
    SimulationError
        If Icarus Verilog is missing or fails, the words do not come within ``max_cycles``, or a
        handshake, a flag or a word is unknown.
    """
    icarus, vvp = (shutil.which(name) for name in ("iverilog", "vvp"))
    if icarus is None or vvp is None:
        raise SimulationError("Icarus Verilog is not installed (iverilog, vvp)")
    counts = {**{name: len(words) for name, words in inputs.items()}, **expect}
    (folder / "bench.v").write_text(bench(dut, counts, max_cycles))
    for stream in dut.inputs():
        digits = (stream.width + 3) // 4
        numbers = (int.from_bytes(word.tobytes(), "little") for word in inputs[stream.name])
        text = "".join(f"{number:0{digits}x}\n" for number in numbers)
        (folder / f"{stream.name}.hex").write_text(text)
    log = folder / "icarus.log"
    compiler = [icarus, "-g2005", "-s", "unknown_state", "-o", "bench.out", "bench.v"]
    for command in ([*compiler, *map(str, dut.sources)], [vvp, "-n", "bench.out"]):
        run_logged(command, cwd=folder, env=dict(os.environ), log=log, timeout_s=TIMEOUT_S)
    complaints = [line for line in log.read_text().splitlines() if line[:2] in ("a ", "no")]
    if complaints:
        raise SimulationError(f"{dut.top}: {complaints[0]}").with_log(dut.top, log)
    return {stream.name: _read(folder / f"{stream.name}.out", stream) for stream in dut.outputs()}


def _read(path: Path, stream: StreamPort) -> Words:
    """Words that a stream gave, least significant byte first."""
    words = []
    for number, line in enumerate(path.read_text().split()):
        try:
            words.append(int(line, 16).to_bytes(stream.word_bytes, "little"))
        except ValueError:
            raise SimulationError(f"{stream.name}: word {number} is unknown: {line}") from None
    return np.frombuffer(b"".join(words), np.uint8).reshape(len(words), stream.word_bytes)
