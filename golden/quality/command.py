"""`dstar quality`: sample with every method, compare, print, write JSON and pictures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console

from dstar.gen.config import ConfigError
from dstar.golden.dit.sampler import MAX_STEPS, MIN_STEPS

from . import pictures
from .methods import Context, Method, find
from .runner import FLOAT, Run, Runs
from .summary import Row, print_table, summarize, write_json

#: Runs of earlier calls lie here, inside the output folder.
RUNS = "runs"
#: What pictures of one FMDQ run show, if it is among the methods.
SHOWN = ("fmdq-x2", "fmdq")


def check(steps: int, json_file: Path | None, out: Path) -> None:
    """Refuse what cannot end well before the work starts.

    Raises
    ------
    ConfigError
        The message states what, the rule and the value.
    """
    if not MIN_STEPS <= steps <= MAX_STEPS:
        raise ConfigError(f"--steps must be between {MIN_STEPS} and {MAX_STEPS}, got {steps}")
    if json_file is not None and not json_file.absolute().parent.is_dir():
        raise ConfigError(f"cannot write {json_file}: no such folder")
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--output must be a folder, {out} is a file")


def run_quality(
    *,
    steps: int,
    seeds: int,
    samples: int,
    methods: str | None,
    json_file: Path | None,
    out: Path,
    console: Console,
    progress: Callable[[str, int, int], None] = lambda name, done, total: None,
) -> list[Row]:
    """Run methods on the shipped DiT and report.

    Parameters
    ----------
    steps:
        Denoising steps, 4 to 50.
    seeds, samples:
        Independent repetitions, and images of each.
    methods:
        Globs over method names, separated by commas; None: the main ones.
    json_file:
        Also write the rows there, as a list.
    out:
        Folder of the pictures and of the runs, which are not computed again.
    console:
        Where the table goes.
    progress:
        Called with the method that runs, and runs done and in all.
    """
    check(steps, json_file, out)
    chosen: list[Method | None] = [None, *find(methods)]
    torch.set_num_threads(1)  # layers are too small for more; one process a core is faster
    context = Context(steps)
    store = Runs(out / RUNS, context, samples)
    total, done = len(chosen) * seeds, 0
    runs: dict[str, list[Run]] = {}
    for method in chosen:
        name = FLOAT if method is None else method.name
        runs[name] = []
        for seed in range(seeds):
            progress(name, done, total)
            runs[name].append(store.get(method, seed))
            done += 1
    progress("pictures", done, total)
    rows = [summarize(name, found, runs[FLOAT]) for name, found in runs.items()]
    written = draw(runs, rows, context, out)
    title = f"shipped DiT, {steps} steps, {seeds} seeds x {samples} images, mean ±95 %"
    print_table(rows, console, title)
    if json_file is not None:
        write_json(rows, json_file)
        written.append(json_file)
    for path in written:
        console.print(f"{path}", highlight=False, soft_wrap=True)
    return rows


def draw(runs: dict[str, list[Run]], rows: list[Row], context: Context, out: Path) -> list[Path]:
    """Write the pictures that the runs have data for."""
    out.mkdir(parents=True, exist_ok=True)
    images = {name: found[0].images for name, found in runs.items()}
    written = [
        pictures.draw_samples(images, out / "samples.png"),
        pictures.draw_curve(rows, out / "curve.png"),
    ]
    if shown := next((name for name in SHOWN if name in runs), None):
        first = runs[shown][0]
        written.append(pictures.draw_bits(first, shown, out / "bits.png"))
        written.append(pictures.draw_exponents(first, shown, out / "exponents.png"))
    if "dstar" in runs or "sparse" in runs:
        profile = context.attention()
        written.append(pictures.draw_scores(profile, context.masks(), out / "scores.png"))
    return written
