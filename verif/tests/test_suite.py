"""The test suite's own options, as the Makefile passes them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("target", ["test", "test-full"])
def test_make_passes_a_seed_that_pytest_takes(target: str) -> None:
    # The suite may itself be run by make, whose variables would come along.
    plain = {name: value for name, value in os.environ.items() if "MAKE" not in name}
    made = subprocess.run(
        ["make", "-n", target, "SEED=7"],
        cwd=ROOT,
        env=plain,
        capture_output=True,
        text=True,
        check=True,
    )
    (option,) = (word for word in made.stdout.split() if word.startswith("--seed"))
    # Without a path pytest learns of the option from the configured folder alone.
    taken = subprocess.run(
        [sys.executable, "-m", "pytest", option, "--markers"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert taken.returncode == 0, taken.stderr
    assert option == "--seed=7"
