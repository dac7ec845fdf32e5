"""Options of the test suite: ``--seed=N``, ``--waves`` and ``--full``."""

from __future__ import annotations

import os
import zlib
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from dstar.verif.runner import SEED_VARIABLE, default_seed
from dstar.verif.verilate import WAVES_VARIABLE


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("dstar")
    group.addoption("--seed", help="base of all random data (default: drawn, and printed)")
    group.addoption("--waves", action="store_true", help="record waveforms in out/waves (slow)")
    group.addoption("--full", action="store_true", help="also run the tests marked `full`")


# Examples may take as long as they do on a busy machine.
settings.register_profile("dstar", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("dstar")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    # The environment carries both settings to xdist's workers and to the simulators.
    if config.getoption("--seed") is not None:
        os.environ[SEED_VARIABLE] = config.getoption("--seed")
    if config.getoption("--hypothesis-seed") is None:
        config.option.hypothesis_seed = str(default_seed())
    if config.getoption("--waves"):
        os.environ[WAVES_VARIABLE] = str(Path(config.rootpath) / "out" / "waves")


def pytest_report_header() -> list[str]:
    lines = [f"dstar seed: {default_seed()} (repeat with --seed={default_seed()})"]
    if folder := os.environ.get(WAVES_VARIABLE):
        lines.append(f"dstar waveforms: {folder}")
    return lines


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect `full` tests, unless ``--full`` or any ``-m`` asks otherwise."""
    if config.getoption("--full") or config.getoption("-m"):
        return
    full = [item for item in items if item.get_closest_marker("full")]
    if full:
        config.hook.pytest_deselected(items=full)
        items[:] = [item for item in items if item not in full]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tell the base seed beside every failure."""
    report = yield
    if report.failed:
        report.sections.append(("dstar seed", f"repeat with --seed={default_seed()}"))
    return report


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A seed of its own for each test, from the base seed and the test's name (32 bits)."""
    return zlib.crc32(f"{default_seed()} {request.node.nodeid}".encode())
