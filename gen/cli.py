"""The ``dstar`` command line.

Commands import what they need when they run, so that ``dstar --help`` and ``dstar gen`` start
fast and work without the simulation extras.  Every error that a user can cause ends with one
message on standard error and exit code 2; a comparison that is not bit-exact ends with 1.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from typer.exceptions import TyperException

from dstar.gen.config import PRESETS, Config, ConfigError, load_config

app = typer.Typer(
    help="Generate, simulate and compare the DSTAR accelerator's RTL.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

Preset = Annotated[
    str, typer.Option("--preset", "-p", help=f"Configuration: {', '.join(PRESETS)}.")
]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", help="TOML file on top of the preset.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", metavar="KEY=VALUE", help="Override a value, such as rows=16."),
]


def _config(preset: str, file: Path | None, overrides: list[str] | None) -> Config:
    return load_config(preset=preset, file=file, overrides=tuple(overrides or ()))


def _progress(console: Console) -> Progress:
    """A bar that shows how much is done and how long the rest may take."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


@contextmanager
def _building(progress: Progress) -> Iterator[None]:
    """A line that stands while the simulator is made."""
    name = "building the simulator (cached after the first time)"
    task = progress.add_task(name, total=None)
    yield
    progress.remove_task(task)


@app.command()
def doctor() -> None:
    """Show every tool that is found or missing, and how to get it."""
    from dstar.gen.doctor import run_doctor

    raise typer.Exit(run_doctor())


@app.command()
def gen(
    unit: Annotated[
        str, typer.Argument(help="pe, pe_tile, mpu, qpu, qpu_mpu, vpu, output_path, matrix, mpc.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write to.")],
    preset: Preset = "paper",
    config: ConfigFile = None,
    overrides: Overrides = None,
    pdk: Annotated[str, typer.Option(help="PDK that LibreLane's config.json names.")] = "sky130hd",
    period_ns: Annotated[
        float | None, typer.Option(help="Clock period of the SDC file, in ns.")
    ] = None,
) -> None:
    """Write a unit's Verilog, file list, manifest.json, and what hands it on to other flows."""
    from dstar.gen.emit import UNITS, emit
    from dstar.gen.handoff import write_handoff

    manifest = emit(unit, _config(preset, config, overrides), output)
    names = [*manifest["files"], f"{unit}.f", *UNITS[unit].texts(), "manifest.json"]
    handoff = write_handoff(manifest, output, pdk=pdk, period_ns=period_ns)
    for path in [*(output / name for name in names), *handoff]:
        typer.echo(f"{path}  {path.stat().st_size / 1000:.1f} kB")


@app.command()
def capture(
    output: Annotated[Path, typer.Option("--output", "-o", help="The dump to write.")],
    builtin: Annotated[bool, typer.Option("--builtin", help="Run the shipped DiT.")] = False,
    steps: Annotated[int, typer.Option(min=1, max=1000, help="Denoising steps.")] = 28,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the starting noise.")] = 0,
    label: Annotated[
        int, typer.Option(min=0, max=10, help="Class of the shipped DiT; 10 is none.")
    ] = 3,
    layers: Annotated[str, typer.Option(help="Glob over layer names.")] = "*blocks.*",
    attention: Annotated[
        bool, typer.Option(help="Also write q, k, v and o of the shipped DiT.")
    ] = False,
    dtype: Annotated[str, typer.Option(help="float16, bfloat16 or float32.")] = "float16",
    diffusers: Annotated[
        str | None,
        typer.Option(metavar="PATH_OR_ID", help="Run a diffusers pipeline: a folder or a name."),
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(help="Of the pipeline: text, or a class number or label.")
    ] = None,
    guidance: Annotated[
        float | None, typer.Option(help="Guidance scale of the pipeline (default: its own).")
    ] = None,
    sample: Annotated[
        int, typer.Option(min=0, help="Element of the pipeline's batch; guidance may double it.")
    ] = 0,
    saturate: Annotated[
        bool, typer.Option(help="Clip a pipeline's values beyond binary16, do not refuse them.")
    ] = False,
    model_dtype: Annotated[
        str, typer.Option(help="What the pipeline runs in: float16, bfloat16 or float32.")
    ] = "float32",
    device: Annotated[str, typer.Option(help="Where the pipeline runs: cpu, cuda.")] = "cpu",
) -> None:
    """Run a DiT and write a dump of its layers."""
    from dstar.golden.capture import capture_builtin, check_source

    check_source(builtin, diffusers, prompt, steps, attention=attention)
    with _progress(Console(stderr=True)) as progress:
        task = progress.add_task("capture", total=steps)

        def show(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        if diffusers is None or prompt is None:
            notes: list[str] = []
            size = capture_builtin(
                output,
                steps=steps,
                seed=seed,
                label=label,
                layers=layers,
                attention=attention,
                dtype=dtype,
                progress=show,
            )
        else:
            from dstar.golden.model.pipelines import capture_diffusers

            recorded = capture_diffusers(
                output,
                diffusers,
                prompt=prompt,
                steps=steps,
                seed=seed,
                layers=layers,
                guidance=guidance,
                sample=sample,
                dtype=dtype,
                saturate=saturate,
                model_dtype=model_dtype,
                device=device,
                progress=show,
            )
            size, notes = recorded.size, recorded.notes()
    for note in notes:
        typer.echo(note, err=True)
    typer.echo(f"{output}  {size / 1e6:.1f} MB, {steps} steps")


@app.command()
def compare(
    dump: Annotated[Path, typer.Argument(help="A dump, as capture writes it.")],
    unit: Annotated[str, typer.Option(help="mpu, qpu, qpu+mpu, vpu or mpc.")] = "mpu",
    preset: Preset = "paper",
    config: ConfigFile = None,
    overrides: Overrides = None,
    layers: Annotated[str, typer.Option(help="Glob over layer names.")] = "*",
    steps: Annotated[
        str | None, typer.Option(metavar="A:B", help="Denoising steps A to B-1.")
    ] = None,
    saturate: Annotated[
        bool, typer.Option(help="Clip values beyond binary16 instead of refusing them.")
    ] = False,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Simulators at once.")] = 2,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the report as JSON.")
    ] = None,
) -> None:
    """Run a dump's layers through the RTL and compare with the golden model, bit by bit."""
    from dstar.golden.dump import DumpReader
    from dstar.verif.compare import parse_steps
    from dstar.verif.compare.units import check_unit, run_unit

    check_unit(unit)
    if json_file is not None and not json_file.absolute().parent.is_dir():
        raise ConfigError(f"cannot write {json_file}: no such folder")
    cfg = _config(preset, config, overrides)
    console, status = Console(), Console(stderr=True)
    with DumpReader(dump, saturate=saturate) as reader, _progress(status) as progress:
        task = progress.add_task("tiles", total=None, visible=False)
        report = run_unit(
            unit,
            reader,
            cfg,
            layers=layers,
            steps=parse_steps(steps, len(reader.steps)) if steps else reader.steps,
            jobs=jobs,
            building=lambda: _building(progress),
            progress=lambda done, total: progress.update(
                task, completed=done, total=total, visible=True
            ),
        )
    report.print(console)
    if json_file is not None:
        report.write_json(json_file)
    raise typer.Exit(0 if report.bit_exact else 1)


@app.command()
def quality(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder of the pictures and of finished runs.")
    ],
    steps: Annotated[int, typer.Option(help="Denoising steps, 4 to 50.")] = 28,
    seeds: Annotated[int, typer.Option(min=1, help="Repetitions, for the intervals.")] = 5,
    samples: Annotated[int, typer.Option(min=2, help="Images of a seed.")] = 64,
    methods: Annotated[
        str | None, typer.Option(metavar="GLOB,...", help="Methods by name; default: main ones.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the table as JSON.")
    ] = None,
) -> None:
    """Measure bits and image quality of DSTAR and its rivals on the shipped DiT."""
    try:
        from dstar.golden.quality.command import run_quality
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"quality needs the package {error.name}: pip install 'dstar-rtl[train]'"
        ) from None
    with _progress(Console(stderr=True)) as progress:
        task = progress.add_task("quality", total=None)
        run_quality(
            steps=steps,
            seeds=seeds,
            samples=samples,
            methods=methods,
            json_file=json_file,
            out=output,
            console=Console(),
            progress=lambda name, done, total: progress.update(
                task, description=name, completed=done, total=total
            ),
        )


@app.command()
def synth(
    unit: Annotated[
        str,
        typer.Argument(
            help="pe, pe_tile, mpu, qpu, vpu, output_path; control (what runs the core's "
            "programs, with command queues, load and store), quantize_engine, multiply_engine or "
            "vector_engine."
        ),
    ],
    preset: Preset = "paper",
    config: ConfigFile = None,
    overrides: Overrides = None,
    pdk: Annotated[
        str | None,
        typer.Option(
            help="sky130hd (default), ihp-sg13g2, gf180mcu, asap7, freepdk45, osu018, "
            "osu035, or generic: no library, areas in NAND2 equivalents."
        ),
    ] = None,
    liberty: Annotated[
        list[Path] | None, typer.Option(help="Liberty file, .lib or .lib.gz; repeat for more.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the report as JSON.")
    ] = None,
    folder: Annotated[
        Path, typer.Option("--folder", "-o", help="Where scripts, logs and netlists go.")
    ] = Path("out/synth"),
    clock_ps: Annotated[
        int | None, typer.Option(min=1, help="Clock period to optimise for, in ps.")
    ] = None,
    recipe: Annotated[str, typer.Option(help="Optimise for fast or small.")] = "fast",
    flat: Annotated[bool, typer.Option("--flat", help="No sum by instance counts.")] = False,
    reference: Annotated[
        bool, typer.Option(help="Also synthesize the INT8 reference of equal throughput.")
    ] = True,
    average_bits: Annotated[
        float | None, typer.Option(min=0.1, help="For throughput per area.")
    ] = None,
) -> None:
    """Synthesize a unit with Yosys: area, cell mix and timing against an INT8 reference."""
    from dstar.synth.command import run_synth
    from dstar.synth.report import AVERAGE_BITS

    code = run_synth(
        unit,
        _config(preset, config, overrides),
        pdk=pdk,
        liberty=liberty or (),
        json_file=json_file,
        folder=folder,
        clock_ps=clock_ps,
        recipe=recipe,
        hierarchical=not flat,
        reference=reference,
        average_bits=AVERAGE_BITS if average_bits is None else average_bits,
    )
    raise typer.Exit(code)


@app.command()
def fpga(
    unit: Annotated[str, typer.Argument(help="A unit of dstar synth, such as mpu.")] = "mpu",
    preset: Preset = "tiny",
    config: ConfigFile = None,
    overrides: Overrides = None,
    device: Annotated[str, typer.Option(help="ECP5: 25k, 45k or 85k.")] = "85k",
    clock_mhz: Annotated[float, typer.Option(min=1.0, help="Clock to aim for, in MHz.")] = 60.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the placer.")] = 1,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the report as JSON.")
    ] = None,
    folder: Annotated[
        Path, typer.Option("--folder", "-o", help="Where scripts, logs and netlists go.")
    ] = Path("out/fpga"),
) -> None:
    """Place and route a unit on a Lattice ECP5: lookup tables, memories, the achieved clock."""
    from dstar.synth.fpga.command import run_fpga

    code = run_fpga(
        unit,
        _config(preset, config, overrides),
        device=device,
        clock_mhz=clock_mhz,
        seed=seed,
        json_file=json_file,
        folder=folder,
    )
    raise typer.Exit(code)


def main() -> None:
    """Entry point of the ``dstar`` program."""
    try:
        code = app(standalone_mode=False)
    except TyperException as error:
        _fail(error.format_message())
    except (typer.Abort, KeyboardInterrupt):
        sys.exit(130)
    except Exception as error:
        # Errors that a user can cause are raised as classes of this package.
        if not type(error).__module__.startswith("dstar."):
            raise
        _fail(str(error))
    else:
        sys.exit(code)


def _fail(message: str) -> None:
    typer.echo(f"dstar: {message}", err=True)
    sys.exit(2)
