"""Configuration: presets, files, overrides, derived widths, refusals."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstar.gen.config import MAX_Q, PRESETS, Config, ConfigError, NumericConfig, load_config


def test_presets() -> None:
    paper = PRESETS["paper"]
    assert (paper.array.rows, paper.array.cols, paper.array.lanes) == (64, 64, 4)
    assert paper.numeric.k_tile == 128
    assert paper.numeric.acc_width == 24
    assert PRESETS["edge"].array.rows == 16
    assert PRESETS["tiny"].array.rows == 4


@given(st.integers(1, 4096), st.integers(2, 8), st.integers(0, 16))
def test_accumulator_holds_the_worst_case_and_no_bit_is_spare(k: int, bits: int, span: int) -> None:
    numeric = NumericConfig(k_tile=k, weight_bits=bits, exponent_span=span)
    worst = k * (MAX_Q << span) * 2 ** (bits - 1)
    assert worst <= 2 ** (numeric.acc_width - 1) - 1
    assert worst > 2 ** (numeric.acc_width - 2) - 1


def test_file_then_overrides(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('preset = "edge"\n[array]\nrows = 32\n[numeric]\nk_tile = 64\n')
    cfg = load_config(preset="paper", file=file, overrides=("array.rows=48", "lanes=2"))
    assert (cfg.preset, cfg.array.rows, cfg.array.cols) == ("edge", 48, 16)
    assert (cfg.array.lanes, cfg.numeric.k_tile) == (2, 64)


def test_hash_tells_values_not_names() -> None:
    tiny = PRESETS["tiny"]
    assert tiny.hash == dataclasses.replace(tiny, preset="other").hash
    assert tiny.hash != load_config(preset="tiny", overrides=("k_tile=15",)).hash


REFUSED = {
    "rows=0": "array.rows must be an integer from 1 to 256, got 0",
    "cols=1": "array.cols must be an integer from 2 to 256, got 1",
    "lanes=3": "array.lanes must be 1, 2, 4 or 8, got 3",
    "cluster=3": "array.cluster must be a divisor of array.rows (4), got 3",
    "weight_bits=9": "numeric.weight_bits must be an integer from 2 to 8, got 9",
    "k_tile=four": "numeric.k_tile must be an integer, got 'four'",
    "exponent_span=-1": "numeric.exponent_span must be an integer from 0 to 16, got -1",
    "axi_data_bits=96": "core.axi_data_bits must be 64, 128, 256, 512 or 1024, got 96",
    "bank_words=48": "core.bank_words must be a power of two, got 48",
    "reset=async": "clock.reset must be 'sync' or 'async_low', got 'async'",
    "segments=6": "vector.segments must be a power of two from 2 to 64, got 6",
    "vector.width=wide": "vector.width must be an integer, got 'wide'",
    "rows": "override must be key=value, got 'rows'",
    "array.rose=4": "unknown key 'array.rose'; keys are array.cluster, array.cols, array.lanes, "
    "array.rows, clock.reset, core.address_bits, core.axi_data_bits, core.bank_words, core.banks, "
    "core.columns, core.k_tiles, core.outstanding, core.queue, core.semaphores, "
    "numeric.exponent_span, numeric.k_tile, numeric.weight_bits, vector.acc_fraction, "
    "vector.acc_width, vector.program, vector.segments, vector.width",
}


@pytest.mark.parametrize("override", REFUSED)
def test_refused(override: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_config(preset="tiny", overrides=(override,))
    assert str(error.value) == REFUSED[override]


def test_cluster_must_divide_the_columns_too() -> None:
    with pytest.raises(ConfigError, match=r"a divisor of array.cols \(6\), got 4"):
        load_config(preset="paper", overrides=("rows=4", "cols=6"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[arrays]\nrows = 4",
            "unknown section 'arrays'; sections are array, numeric, core, clock",
        ),
        ("rows = 4", "unknown section 'rows'"),
        ("[array\n", "is not valid TOML"),
        ("[array]\nrows = 4.0", "array.rows must be an integer from 1 to 256, got 4.0"),
        ("[array]\nrows = true", "array.rows must be an integer from 1 to 256, got True"),
        ('preset = "huge"', "unknown preset 'huge'; presets are paper, edge, tiny"),
    ],
)
def test_bad_file(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        load_config(file=file)
    assert message in str(error.value)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*none\.toml: No such file or directory"):
        load_config(file=tmp_path / "none.toml")


def test_immutable() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        PRESETS["tiny"].array.rows = 8  # type: ignore[misc]
    assert isinstance(hash(Config()), int)
