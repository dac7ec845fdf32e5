"""Quality: metrics against closed forms and SciPy, intervals, resumed runs, the command."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg
from rich.console import Console
from typer.testing import CliRunner

from dstar.gen.cli import app
from dstar.gen.config import ConfigError
from dstar.golden.dit.data import load_data
from dstar.golden.dit.spec import DIGITS
from dstar.golden.quality import runner, sets, thresholds
from dstar.golden.quality.command import run_quality
from dstar.golden.quality.features import describe, real_moments
from dstar.golden.quality.intervals import Interval, over_seeds
from dstar.golden.quality.methods import METHODS, Context, find
from dstar.golden.quality.metrics import frechet, inception_score, moments, psnr
from dstar.golden.quality.runner import Run, Runs, run
from dstar.golden.quality.summary import summarize


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_psnr_has_peak_two() -> None:
    x = np.zeros((2, 1, 4, 4), np.float32)
    assert psnr(x, x + 0.2) == pytest.approx(20.0, abs=1e-4)
    assert psnr(x, x) == np.inf


def test_frechet_of_shifted_features_is_the_squared_shift(rng: np.random.Generator) -> None:
    x = rng.standard_normal((50, 6)).astype(np.float32)
    shift = np.arange(6, dtype=np.float32)
    assert frechet(moments(x), moments(x)) == pytest.approx(0, abs=1e-5)
    assert frechet(moments(x), moments(x + shift)) == pytest.approx(55, rel=1e-4)


def test_frechet_equals_the_matrix_root(rng: np.random.Generator) -> None:
    a, b = (
        moments((rng.standard_normal((40, 5)) @ rng.standard_normal((5, 5))).astype(np.float32))
        for _ in range(2)
    )
    root = np.real(scipy.linalg.sqrtm(a[1] @ b[1]))
    want = np.square(a[0] - b[0]).sum() + np.trace(a[1] + b[1] - 2 * root)
    assert frechet(a, b) == pytest.approx(want, rel=1e-6)


def test_score_is_the_number_of_classes_seen() -> None:
    one = np.eye(4, dtype=np.float32)
    assert inception_score(np.repeat(one, 3, axis=0)) == pytest.approx(4)
    assert inception_score(np.full((5, 4), 0.25, np.float32)) == pytest.approx(1)


def test_interval_is_students() -> None:
    # For two values the quantile is that of Cauchy's distribution, tan(0.475 pi).
    got = over_seeds([1.0, 3.0])
    half = math.tan(0.475 * math.pi)
    assert (got.mean, got.low, got.high) == pytest.approx((2, 2 - half, 2 + half), rel=1e-9)
    # Five values with mean 3 and variance 2.5; 2.776445 is the tables' value for 4 degrees.
    got = over_seeds([1.0, 2.0, 3.0, 4.0, 5.0])
    half = 2.776445 * math.sqrt(2.5 / 5)
    assert (got.mean, got.low, got.high) == pytest.approx((3, 3 - half, 3 + half), rel=1e-6)


def test_intervals_overlap_where_they_share_a_value() -> None:
    a = Interval(1.0, 0.5, 1.5)
    assert a.overlaps(Interval(2.0, 1.5, 2.5))
    assert not a.overlaps(Interval(2.0, 1.6, 2.4))
    assert not Interval(2.0, 1.6, 2.4).overlaps(a)
    one = over_seeds([3.0])
    assert one == Interval(3.0, None, None)
    with pytest.raises(ValueError, match="at least two seeds"):
        a.overlaps(one)


def test_infinite_means_become_null() -> None:
    assert over_seeds([np.inf, np.inf]).as_dict() == {"mean": None, "low": None, "high": None}


def test_classifier_knows_the_digits() -> None:
    images, labels = load_data(DIGITS.image)
    held_out = np.arange(len(images)) % 5 == 0
    _, probabilities = describe(images[held_out][:, None])
    assert np.mean(probabilities.argmax(1) == labels[held_out]) > 0.98


def test_frechet_and_score_tell_one_class_from_all() -> None:
    classes = sets.EVALUATION_CLASSES
    images, labels = load_data(DIGITS.image)
    good = describe(images[np.isin(labels, classes)][:64, None])
    bad = describe(images[labels == 7][:64, None])
    far, near = (frechet(moments(x[0]), real_moments(classes)) for x in (bad, good))
    assert far > 5 * near
    assert inception_score(good[1]) > 4 > 1.5 > inception_score(bad[1])


def test_sets_share_neither_classes_nor_seeds() -> None:
    assert not set(sets.PROFILE_CLASSES) & set(sets.EVALUATION_CLASSES)
    seen: list[tuple[int, tuple[int, ...]]] = []

    def record(model: object, *, classes: list[int], steps: int, seed: int) -> np.ndarray:
        seen.append((seed, tuple(classes)))
        return np.zeros((len(classes), 1, 32, 32), np.float32)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sets, "sample", record)
        for seed in range(3):
            batches = list(sets.draw_evaluation(None, steps=4, samples=40, seed=seed))
            assert [len(b) for b in batches] == [16, 16, 8]
    seeds = [seed for seed, _ in seen]
    assert len(set(seeds)) == 9
    assert sets.PROFILE_SEED not in seeds
    assert {c for _, classes in seen for c in classes} == set(sets.EVALUATION_CLASSES)


def test_thresholds_are_of_the_shipped_weights(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert set(thresholds.tables()) == set(sets.LAYERS)
    for name, coarse in thresholds.tables(-1).items():
        assert coarse.delta.finest == thresholds.tables()[name].delta.finest - 1
    found = json.loads(Path(thresholds.__file__).with_name(thresholds.FILE).read_text())
    found["blocks.1.adaln"]["weights"] = "0" * 16
    (tmp_path / thresholds.FILE).write_text(json.dumps(found))
    monkeypatch.setattr(thresholds, "files", lambda package: tmp_path)
    with pytest.raises(ConfigError, match=r"made for the shipped weights, blocks.1.adaln differs"):
        thresholds.load_thresholds.__wrapped__()


def test_methods_are_found_by_glob() -> None:
    names = [m.name for m in METHODS]
    assert len(set(names)) == len(names)
    assert [m.name for m in find("ditto*,w8a8")] == ["w8a8", "ditto.dstar", "ditto.published"]
    assert find(None) == [m for m in METHODS if m.main]
    with pytest.raises(ConfigError, match=r"--methods must match a method, got 'ditt'; there are"):
        find("w8a8,ditt")


def test_runs_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs(tmp_path / "runs", Context(4), samples=2)
    method = find("ditto.published")[0]
    first = runs.get(method, 0)
    monkeypatch.setattr(runner, "run", lambda *args, **kwargs: pytest.fail("sampled again"))
    again = runs.get(method, 0)
    for name in Run.__dataclass_fields__:
        assert np.array_equal(getattr(first, name), getattr(again, name)), name
    assert [p.name for p in runs.folder.iterdir()] == ["ditto.published.4x2.0.npz"]


def test_rows_compare_with_the_float_model(rng: np.random.Generator) -> None:
    images = rng.standard_normal((2, 8, 1, 32, 32)).astype(np.float32)
    bits, histogram = np.zeros((20, 4), np.float32), np.zeros((5, 64), np.int64)
    base = [Run(images=x, bits=bits, histogram=histogram) for x in images]
    moved = [
        replace(r, images=r.images + 0.2, average_bits=b) for r, b in zip(base, (3, 5), strict=True)
    ]
    row = summarize("moved", moved, base)
    assert row.psnr_db.mean == pytest.approx(20, abs=1e-3)
    assert row.average_bits.mean == 4
    assert row.frechet_excess.mean == pytest.approx(
        row.frechet.mean - summarize("float", base, base).frechet.mean
    )


def test_a_run_counts_bits_by_layer_and_step() -> None:
    result = run(find("fmdq-x2")[0], Context(4), samples=2, seed=0)
    assert result.images.shape == (2, 1, 32, 32)
    assert result.bits.shape == (20, 4)
    assert result.bits[:, 0].min() > result.bits[:, 1:].mean() > 0
    sizes = np.array(
        [
            w * (1 if "adaln" in n else 256)
            for n, (_, w) in DIGITS.linears.items()
            if n.startswith("blocks.")
        ]
    )
    want = (result.bits.mean(1) * sizes).sum() / sizes.sum()
    assert result.average_bits == pytest.approx(want, rel=1e-5)
    assert result.histogram.sum() == 2 * 4 * sizes.sum()


def test_command_writes_table_json_and_pictures(tmp_path: Path) -> None:
    out, report = tmp_path / "quality", tmp_path / "quality.json"
    console = Console(record=True, width=60, file=(tmp_path / "table.txt").open("w"))
    rows = run_quality(
        steps=4,
        seeds=2,
        samples=2,
        methods="w8a8,fmdq-x2,dstar",
        json_file=report,
        out=out,
        console=console,
    )
    console.file.close()
    entries = json.loads(report.read_text())
    assert [e["method"] for e in entries] == ["float", "w8a8", "fmdq-x2", "dstar"]
    for entry in entries:
        for name in ("average_bits", "psnr_db", "frechet", "score"):
            assert set(entry[name]) == {"mean", "low", "high"}
    assert entries[0]["psnr_db"]["mean"] is None
    assert entries[1]["average_bits"]["mean"] == 8
    assert entries[1]["attention_fraction_computed"] == 1
    assert 0 < entries[3]["attention_fraction_computed"] < 0.75
    assert entries[3]["score_cache_bytes_per_step"] > 0
    assert rows[1].psnr_db.mean > 30
    pictures = {"samples.png", "curve.png", "bits.png", "exponents.png", "scores.png"}
    assert pictures <= {p.name for p in out.iterdir()}
    text = (tmp_path / "table.txt").read_text()
    assert "…" not in text
    assert "over float" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--steps", "3"], "--steps must be between 4 and 50, got 3"),
        (["--methods", "nothing"], "--methods must match a method, got 'nothing'"),
        (["--json", "no/such/folder/x.json"], "cannot write no/such/folder/x.json: no such folder"),
    ],
)
def test_command_refuses(options: list[str], message: str, tmp_path: Path) -> None:
    out = tmp_path / "quality"
    result = CliRunner().invoke(app, ["quality", "-o", str(out), *options])
    assert isinstance(result.exception, ConfigError)
    assert message in str(result.exception)
    assert not out.exists()


def test_output_must_be_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(app, ["quality", "-o", str(tmp_path / "file")])
    assert "--output must be a folder" in str(result.exception)
