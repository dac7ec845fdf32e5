"""Child process that runs one Yosys script, so that a crash of Yosys stays outside."""

from __future__ import annotations

import sys


def main(script: str, log: str) -> None:
    """Run ``script`` and write Yosys' messages to ``log``."""
    from pyosys import libyosys

    design = libyosys.Design()
    libyosys.run_pass(f"tee -q -o {log} script {script}", design)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
