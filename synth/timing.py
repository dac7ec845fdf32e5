"""Pre-layout timing: OpenSTA where it is installed, else ABC's own estimate."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dstar.synth.errors import SynthError

_SLACK = re.compile(r"^\s*(-?[\d.]+)\s+slack", re.MULTILINE)
_BROKEN = re.compile(
    r"^(?:Error\b|.*(?:syntax error|cannot (?:open|read)|black box|no network)).*",
    re.MULTILINE | re.IGNORECASE,
)
_ABC_DELAY = re.compile(r"ABC: .*\bDelay =\s*([\d.]+) ps")
_TIMEOUT_S = 300
#: What is said beside every delay.
NOTE = "pre-layout: no wires, ideal clock"


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Shortest clock period in picoseconds and the tool that says so."""

    delay_ps: float
    timer: str


def sta_program() -> str | None:
    """OpenSTA's program, if it is installed."""
    return shutil.which("sta")


def abc_delays(log: str) -> dict[str, Timing]:
    """ABC's estimates by module: gates only, without the registers at both ends."""
    delays = {}
    for part in log.split("Extracting gate netlist of module ")[1:]:
        module = part[1 : part.index("'")].lstrip("\\")
        found = _ABC_DELAY.findall(part)
        if found:
            delays[module] = Timing(delay_ps=float(found[-1]), timer="abc")
    return delays


def sta_delay(
    folder: Path,
    *,
    module: str,
    netlist: str,
    libraries: Sequence[str],
    clock: str,
    inputs: Sequence[str],
    clock_ps: float,
    time_ps: float,
) -> Timing | None:
    """Shortest period at which a module meets timing, by OpenSTA; None for one without paths.

    The netlist has one clock and no wires, so the period that is met is the one tried less its
    slack; inputs arrive with the clock and outputs are due with it.  OpenSTA's exit code says
    nothing (it is 0 after a library that could not be read), so its output is judged.

    Raises:
        SynthError: an error in its output, or no result within five minutes.
    """
    script = folder / f"{module}.sta.tcl"
    period = clock_ps / time_ps
    reads = "".join(f"read_liberty {name}\n" for name in libraries)
    script.write_text(
        f"{reads}read_verilog {netlist}\nlink_design {module}\n"
        f"create_clock -name {clock} -period {period:.6g} [get_ports {clock}]\n"
        f"set_input_delay 0 -clock {clock} [get_ports {{{' '.join(inputs)}}}]\n"
        f"set_output_delay 0 -clock {clock} [all_outputs]\n"
        "report_checks -path_delay max -format full -digits 4\nputs done\n"
    )
    log = folder / f"{module}.sta.log"
    program = sta_program()
    assert program is not None
    try:
        run = subprocess.run(
            [program, "-no_splash", "-exit", script.name],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SynthError(f"OpenSTA did not finish on {module}: {error}") from None
    output = run.stdout + run.stderr
    log.write_text(output)
    broken = _BROKEN.search(output)
    if broken or "done" not in output:
        what = broken[0] if broken else f"it ended early with exit code {run.returncode}"
        raise SynthError(f"OpenSTA failed on {module}: {what}; log: {log}")
    slack = _SLACK.search(output)
    if slack is None:
        return None
    return Timing(delay_ps=clock_ps - float(slack[1]) * time_ps, timer="opensta")
