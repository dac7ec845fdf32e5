"""Compiles the core with a memory behind its AXI4 port.

The memory is SystemVerilog and works on a file, so nothing of Python runs once a cycle.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dstar.gen.config import Config
from dstar.gen.emit import UNITS
from dstar.verif.generated import generate_component
from dstar.verif.harness import Dut
from dstar.verif.mpc.observed import ObservedMPC
from dstar.verif.verilate import Build, build

_SV = Path(__file__).parents[1] / "sv"
_TOP = "core_machine"
#: Channels of AXI that the memory has ports for.
_CHANNELS = (
    ("arid", "araddr", "arlen", "arvalid", "arready"),
    ("rid", "rdata", "rresp", "rlast", "rvalid", "rready"),
    ("awaddr", "awlen", "awvalid", "awready"),
    ("wdata", "wstrb", "wlast", "wvalid", "wready"),
    ("bresp", "bvalid", "bready"),
)


@dataclass(frozen=True)
class Machine:
    """A core and its memory, compiled; :func:`dstar.verif.mpc.session.run_programs` runs it."""

    cfg: Config
    build: Build


def _machine_ports(dut: Dut) -> dict[str, str]:
    """Name to declaration of the machine's own ports."""
    ports = {name: f"input  logic {name}" for name in ("clk", "rst", "reopen", "fault")}
    ports["fault_address"] = "input  logic [63:0] fault_address"
    for port in dut.scalars:
        if not port.name.startswith("m_axi_"):
            ports[port.name] = f"{port.direction}put logic [{port.width - 1}:0] {port.name}"
    return ports


def machine_text(dut: Dut) -> str:
    """SystemVerilog of the machine.

    Ports: ``clk``, ``rst`` (core and memory), the core's ``s_axil_*`` and ``interrupt``, and the
    memory's ``reopen``, ``fault`` and ``fault_address`` (``sv/axi_memory.sv``).  With
    ``+trace=PATH`` the state of engines and array is written there whenever it changes: cycle, bits
    of busy engines, bits of stalled ones, :class:`~dstar.verif.mpc.observed.ArrayState`, as four
    numbers a line.
    """
    ports = _machine_ports(dut)
    widths = {port.name.removeprefix("m_axi_"): port.width for port in dut.scalars}
    outer = ",\n    ".join(ports.values())
    text = [f"module {_TOP} (\n    {outer}\n);"]
    connect = [f".{dut.clock}(clk)", f".{dut.reset}({'~' * dut.reset_active_low}rst)"]
    for port in dut.scalars:
        name = port.name.removeprefix("m_axi_")
        if name != port.name:
            text.append(f"  logic [{port.width - 1}:0] {name};")
        connect.append(f".{port.name}({name})")
    memory = [f".{name}({name})" for channel in _CHANNELS for name in channel]
    size = f"#(.DATA({widths['rdata']}), .ADDRESS({widths['araddr']}), .ID({widths['rid']}))"
    text += [
        "  assign bid = '0;",
        f"  axi_memory {size} memory (",
        "      .clk, .rst, .reopen, .fault, .fault_address,",
        "      " + ",\n      ".join(memory),
        "  );",
        f"  {dut.top} dut (\n      " + ",\n      ".join(connect) + "\n  );",
        *_TRACE,
        "endmodule",
    ]
    return "\n".join(text) + "\n"


_TRACE = """\
  int trace;
  string trace_path;
  longint unsigned cycle;
  logic [$bits({busy, stalled, array})-1:0] state_before;
  initial begin
    trace = 0;
    if ($value$plusargs("trace=%s", trace_path)) trace = $fopen(trace_path, "w");
  end
  always_ff @(posedge clk) begin
    cycle <= cycle + 1;
    state_before <= {busy, stalled, array};
    if (trace != 0 && {busy, stalled, array} != state_before)
      $fwrite(trace, "%0d %0d %0d %0d\\n", cycle, busy, stalled, array);
    if (rst) begin
      cycle <= '0;
      state_before <= '0;
    end
  end
  final if (trace != 0) $fclose(trace);""".splitlines()


def build_machine(cfg: Config, folder: Path, **options: Any) -> Machine:
    """Generate the core into ``folder`` and compile it, or find it in the cache.

    ``options`` as for :func:`dstar.verif.verilate.build`.

    Raises
    ------
    ToolError, SimulationError
        If there is no usable Verilator or compiler, or the build fails.
    """
    blocks = UNITS["matrix"].blocks(cfg) + UNITS["vpu"].blocks(cfg)
    core = generate_component("observed_mpc", ObservedMPC(cfg), cfg, folder, blocks=blocks)
    return machine_of(core, cfg, **options)


def machine_of(dut: Dut, cfg: Config, **options: Any) -> Machine:
    """The machine of a core's Verilog; see :func:`build_machine`."""
    sources: list[Path | tuple[str, str]] = [
        *dut.sources,
        _SV / "axi_memory.sv",
        (f"{_TOP}.sv", machine_text(dut)),
    ]
    ports = list(_machine_ports(dut))
    return Machine(cfg, build(sources, _TOP, ports=ports, hier_blocks=dut.hier_blocks, **options))
