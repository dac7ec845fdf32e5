"""Child processes that write a log, obey a deadline and leave nothing behind."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from dstar.verif.toolchain import end_group

_LOG_LINES = 25
_POLL_S = 0.2


class SimulationError(RuntimeError):
    """A build or a simulation failed; ends with the log's last lines and its path."""

    def with_log(self, what: str, log: Path) -> SimulationError:
        """The same error, told what was being done and ending with the log."""
        try:
            lines = log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
        except OSError:
            lines = ["(no log)"]
        return SimulationError("\n".join([f"{what}: {self}", *lines, f"log: {log}"]))


def run_logged(
    command: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    log: Path,
    timeout_s: float,
    poll: Callable[[], None] | None = None,
) -> None:
    """Run a command to its end, appending itself and all its output to ``log``.

    The command runs without standard input in a process group of its own, which is ended as a
    whole when ``timeout_s`` seconds have passed or an exception (Ctrl-C, say) comes through.
    ``poll`` is called about five times a second meanwhile.

    Raises:
        SimulationError: it took too long, did not start or ended with an exit code but 0.
    """
    name = Path(command[0]).name
    deadline = time.monotonic() + timeout_s
    with log.open("ab") as stream:
        stream.write(f"+ {' '.join(command)}\n".encode())
        stream.flush()
        try:
            process = subprocess.Popen(
                command,
                cwd=cwd,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise SimulationError(f"{name} does not start: {error.strerror}") from None
        try:
            while process.poll() is None:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise SimulationError(f"{name} was ended after {timeout_s:g} s")
                try:
                    process.wait(min(left, _POLL_S) if poll else left)
                except subprocess.TimeoutExpired:
                    if poll:
                        poll()
        except BaseException:
            end_group(process)
            raise
    if process.returncode:
        code = process.returncode
        how = f"exit code {code}" if code > 0 else f"signal {-code}"
        raise SimulationError(f"{name} ended with {how}")
