"""Writes the SystemVerilog top that plays files into a design's streams.

The players do the work of every cycle; Python only starts the run and waits for its end.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dstar.verif.process import SimulationError
from dstar.verif.verilate import Build, build

#: Cycles that a run goes on after the last expected word, to catch surplus ones.
TAIL_CYCLES = 64
_SV = Path(__file__).parent / "sv"
_PLAYERS = (_SV / "stream_source.sv", _SV / "stream_sink.sv")


@dataclass(frozen=True, kw_only=True)
class StreamPort:
    """A ready/valid stream of a design: ``NAME__payload``, ``NAME__valid``, ``NAME__ready``.

    ``direction``: ``"in"`` when the design consumes it.  ``width``: bits of the payload.
    """

    name: str
    direction: Literal["in", "out"]
    width: int

    @property
    def word_bytes(self) -> int:
        """Bytes of one word in :func:`dstar.verif.player.play`'s arrays."""
        return (self.width + 7) // 8


@dataclass(frozen=True, kw_only=True)
class ScalarPort:
    """Any other port.  An ``"in"`` is held at one value for a run, an ``"out"`` is read after."""

    name: str
    direction: Literal["in", "out"]
    width: int


@dataclass(frozen=True, kw_only=True)
class Dut:
    """A design as the harness sees it.

    ``sources``: its Verilog files.  ``top``: its top module.  ``clock``: name of the clock port.
    ``reset``: name of the reset port.  ``reset_active_low``: its polarity.  ``hier_blocks``:
    modules to compile once each.
    """

    sources: tuple[Path, ...]
    top: str
    streams: tuple[StreamPort, ...]
    scalars: tuple[ScalarPort, ...] = ()
    clock: str = "clk"
    reset: str = "rst"
    reset_active_low: bool = False
    hier_blocks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        ports: list[StreamPort | ScalarPort] = [*self.streams, *self.scalars]
        names = [port.name for port in ports]
        if len(set(names)) != len(names):
            raise SimulationError(f"{self.top}: port names must be distinct, got {names}")
        for port in ports:
            if port.width < 1:
                raise SimulationError(
                    f"{self.top}: port {port.name} must be at least 1 bit wide, got {port.width}"
                )

    def inputs(self) -> tuple[StreamPort, ...]:
        """The streams that are played."""
        return tuple(port for port in self.streams if port.direction == "in")

    def outputs(self) -> tuple[StreamPort, ...]:
        """The streams that are recorded."""
        return tuple(port for port in self.streams if port.direction == "out")


def _harness_ports(dut: Dut) -> dict[str, str]:
    """Name to declaration of the harness's own ports."""
    ports = {name: f"input  logic {name}" for name in ("clk", "rst", "start")}
    ports |= {name: f"output logic {name}" for name in ("done", "late", "broken")}
    ports |= {name: f"output logic [63:0] {name}" for name in ("cycles", "finished")}
    for stream in dut.streams:
        ports[f"count_{stream.name}"] = f"output logic [63:0] count_{stream.name}"
    for scalar in dut.scalars:
        if scalar.direction == "out":
            name = f"probe_{scalar.name}"
            ports[name] = f"output logic [{scalar.width - 1}:0] {name}"
    return ports


def _stream_text(stream: StreamPort) -> list[str]:
    name, role = stream.name, "source" if stream.direction == "in" else "sink"
    end, extra = "done", ""
    if role == "sink":
        end, extra = "broken", ".cycle(cycles), "
    return [
        f"  logic [{stream.width - 1}:0] {name}__payload;",
        f"  logic {name}__valid, {name}__ready, {end}_{name};",
        f'  stream_{role} #(.WIDTH({stream.width}), .NAME("{name}")) {role}_{name} (',
        f"      .clk, .rst, .enable(running), .payload({name}__payload), .valid({name}__valid),",
        f"      .ready({name}__ready), .count(count_{name}), {extra}.{end}({end}_{name})",
        "  );",
    ]


def harness_text(dut: Dut, name: str) -> str:
    """SystemVerilog of module ``name``: the design with a player on each stream.

    Ports: ``clk``, ``rst`` (resets design and players), ``start`` (players run while high),
    ``done`` (all words played, all expected ones seen, and :data:`TAIL_CYCLES` more cycles; or
    ``+max_cycles`` reached, then with ``late``), ``broken`` (an output broke the stream rule),
    ``cycles`` (since the start), ``finished`` (those until the last word), ``count_STREAM``
    (words accepted), ``probe_PORT`` (scalar outputs).
    Expected words come as ``+STREAM_expect=N``, scalar inputs as
    ``+hold_PORT=HEX``.
    """
    ports = _harness_ports(dut)
    text = [f"module {name} (", *(f"    {line}," for line in ports.values())]
    text[-1] = text[-1].rstrip(",")
    text += [
        ");",
        "  logic running, complete;",
        "  longint unsigned max_cycles, tail, passed;",
    ]
    connect = [f".{dut.clock}(clk)", f".{dut.reset}({'~' * dut.reset_active_low}rst)"]
    read = []
    for stream in dut.streams:
        text += _stream_text(stream)
        fields = ("payload", "valid", "ready")
        connect += [f".{stream.name}__{field}({stream.name}__{field})" for field in fields]
        if stream.direction == "out":
            text.append(f"  longint unsigned expect_{stream.name};")
            read += [
                f"    expect_{stream.name} = 0;",
                f'    void\'($value$plusargs("{stream.name}_expect=%d", expect_{stream.name}));',
            ]
    for scalar in dut.scalars:
        wire = f"probe_{scalar.name}"
        if scalar.direction == "in":
            wire = f"hold_{scalar.name}"
            text.append(f"  logic [{scalar.width - 1}:0] {wire};")
            read += [
                f"    {wire} = '0;",
                f'    void\'($value$plusargs("{wire}=%h", {wire}));',
            ]
        connect.append(f".{scalar.name}({wire})")
    ends = [f"done_{stream.name}" for stream in dut.inputs()]
    ends += [f"count_{s.name} >= expect_{s.name}" for s in dut.outputs()]
    breaks = [f"broken_{stream.name}" for stream in dut.outputs()]
    text += [
        f"  {dut.top} dut (\n      " + ",\n      ".join(connect) + "\n  );",
        "  initial begin",
        *read,
        f"    tail = {TAIL_CYCLES};",
        "    max_cycles = 0;",
        '    void\'($value$plusargs("tail=%d", tail));',
        '    void\'($value$plusargs("max_cycles=%d", max_cycles));',
        "  end",
        "  assign running = start && !done;",
        f"  assign complete = {' && '.join(ends) or '1'};",
        f"  assign broken = {' || '.join(breaks) or '0'};",
        "  always_ff @(posedge clk) begin",
        "    if (rst) begin",
        "      cycles <= 0;",
        "      finished <= 0;",
        "      passed <= 0;",
        "      done <= 1'b0;",
        "      late <= 1'b0;",
        "    end else if (running) begin",
        "      cycles <= cycles + 1;",
        "      if (!complete) finished <= cycles + 1;",
        "      passed <= complete ? passed + 1 : 0;",
        "      late <= max_cycles != 0 && cycles + 1 >= max_cycles && !complete;",
        "      done <= (complete && passed >= tail)",
        "          || (max_cycles != 0 && cycles + 1 >= max_cycles);",
        "    end",
        "  end",
        "endmodule",
    ]
    return "\n".join(text) + "\n"


def build_harness(dut: Dut, **options: Any) -> Build:
    """Compile the design with its harness; ``options`` as for :func:`dstar.verif.verilate.build`.

    Raises:
        ToolError, SimulationError: as :func:`dstar.verif.verilate.build`.
    """
    top = f"{dut.top}_harness"
    sources: list[Path | tuple[str, str]] = [
        *dut.sources,
        *_PLAYERS,
        (f"{top}.sv", harness_text(dut, top)),
    ]
    return build(
        sources, top, ports=list(_harness_ports(dut)), hier_blocks=dut.hier_blocks, **options
    )
