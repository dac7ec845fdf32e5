"""Quantize, multiply and vector engine with their units, bit for bit as the golden core."""

from __future__ import annotations

import numpy as np
import pytest

from dstar.gen.config import PRESETS
from dstar.verif.tests.engine_programs import Programs
from dstar.verif.tests.engine_tools import Bench, make


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """4 x 4, two weight rows a word."""
    return make(tmp_path_factory.mktemp("engines"), PRESETS["tiny"].replace({"bank_words": 128}))


@pytest.mark.parametrize("wait", [0.0, 0.4])
def test_matrix_engines(tiny: Bench, wait: float, seed: int) -> None:
    """Tiles and products that overlap, at full speed and with a bank taken by another client."""
    rng = np.random.default_rng(seed)
    programs = Programs(tiny.cfg, rng)
    program = programs.matrix(60)
    noise = rng.integers(0, tiny.cfg.core.words, 4_000 if wait else 0)
    tiny.check(programs.contents(), program, idle=wait, noise=noise, seed=seed)


@pytest.mark.parametrize("wait", [0.0, 0.4])
def test_vector_engine(tiny: Bench, wait: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    programs = Programs(tiny.cfg, rng)
    noise = rng.integers(0, tiny.cfg.core.words, 4_000 if wait else 0)
    tiny.check(programs.contents(), programs.vectors(80), idle=wait, noise=noise, seed=seed)
