"""Capture of diffusers pipelines: shapes, streams, refusals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dstar.gen.config import ConfigError
from dstar.golden.capture import check_source
from dstar.golden.dump import DumpError, DumpInfo, DumpReader
from dstar.golden.model.apply import apply
from dstar.golden.model.fmdq import FMDQ
from dstar.golden.model.pipelines import capture_diffusers, load_pipeline
from dstar.golden.model.record import Recorded, record
from dstar.golden.model.sar import SAR
from dstar.verif.tests.diffusers_tools import FAMILIES, Family, library

MAIN = "import sys; from dstar.gen.cli import main; sys.argv[0] = 'dstar'; main()"


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved class-conditional pipeline with random weights."""
    torch.manual_seed(0)
    vae = library().AutoencoderKL(
        block_out_channels=(8,),
        latent_channels=4,
        norm_num_groups=4,
        sample_size=16,
    )
    labels = {"0": "tench", "1": "goldfish"}
    transformer = FAMILIES["dit"].model()
    transformer.register_to_config(num_embeds_ada_norm=1000)
    _null_class(transformer)
    scheduler = library().DDIMScheduler()
    pipe = library().DiTPipeline(transformer, vae, scheduler)
    folder = tmp_path_factory.mktemp("pipelines") / "tiny dit"
    pipe.save_pretrained(folder)
    index = json.loads((folder / "model_index.json").read_text())
    (folder / "model_index.json").write_text(json.dumps(index | {"id2label": labels}))
    return folder


def _null_class(transformer: Any) -> None:
    """Make the class table as large as the pipeline's null class 1000 demands."""
    for block in transformer.transformer_blocks:
        embedder = block.norm1.emb.class_embedder
        embedder.embedding_table = nn.Embedding(1001, embedder.embedding_table.embedding_dim)


def dstar(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", MAIN, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "COLUMNS": "120", "NO_COLOR": "1", "HF_HUB_OFFLINE": "1"},
        check=False,
    )


def test_command_writes_a_dump(pipeline: Path, tmp_path: Path) -> None:
    out = tmp_path / "dit.safetensors"
    source = ("capture", "--diffusers", pipeline, "--prompt", "goldfish", "--steps", 3)
    result = dstar(*source, "--layers", "*blocks.0.*", "-o", out)
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"{out}  {out.stat().st_size / 1e6:.1f} MB, 3 steps\n"
    with DumpReader(out) as dump:
        assert len(dump.steps) == 3
        assert dump.info.scheduler == "DDIMScheduler"
        assert dump.info.extra["prompt"] == "goldfish"
        assert "transformer_blocks.0.attn1.to_q" in dump.layers
        assert "transformer_blocks.0.norm1.emb.timestep_embedder.linear_1" in dump.layers
        assert not any("blocks.1" in name for name in dump.layers)
        name = "transformer_blocks.0.ff.net.2"
        for step in dump.steps:
            x, w, b = dump.x(name, step).astype(np.float32), dump.w(name), dump.b(name)
            assert x.shape == (64, 64)
            assert b is not None
            np.testing.assert_allclose(dump.y(name, step), x @ w.T + b, atol=2e-2, rtol=1e-2)
        assert not np.array_equal(dump.x(name, 0), dump.x(name, 1))


REFUSED = [
    ("PIPE", {"prompt": "shark"}, r"prompt must be a class number or a label \(goldfish, tench"),
    ("PIPE", {"prompt": "1000"}, "class must be below 1000, got 1000"),
    ("none/at/all", {}, "cannot load none/at/all: no such folder, and no name of a pipeline"),
    ("PIPE", {"layers": "no*"}, r"no layer matches 'no\*'; layers are "),
    ("PIPE", {"sample": 5}, "sample must be below the batch of 2, got 5"),
    ("PIPE", {"model_dtype": "int8"}, "model dtype must be float16, bfloat16, float32, got 'int8'"),
]


@pytest.mark.parametrize(("source", "arguments", "message"), REFUSED)
def test_refusals(
    pipeline: Path, tmp_path: Path, source: str, arguments: dict[str, Any], message: str
) -> None:
    source = str(pipeline) if source == "PIPE" else source
    given: dict[str, Any] = {"prompt": "1", "steps": 4} | arguments
    with pytest.raises((ConfigError, DumpError), match=message):
        capture_diffusers(tmp_path / "x.safetensors", source, **given)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("builtin", "pipeline", "prompt", "message"),
    [
        (False, None, None, "capture needs a model: --builtin runs the shipped DiT, --diffusers"),
        (True, "x", "1", "capture needs a model"),
        (False, "x", None, "--diffusers needs --prompt"),
    ],
)
def test_one_source_is_needed(
    builtin: bool, pipeline: str | None, prompt: str | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_source(builtin, pipeline, prompt, 28, attention=False)


def test_guidance_samples(pipeline: Path, tmp_path: Path) -> None:
    """The second element of the batch is the evaluation without a class."""
    found = []
    for sample in (0, 1):
        path = tmp_path / f"{sample}.safetensors"
        layer = "*blocks.1.norm1.linear"
        capture_diffusers(path, str(pipeline), prompt="1", steps=2, layers=layer, sample=sample)
        with DumpReader(path) as dump:
            found.append(dump.x("transformer_blocks.1.norm1.linear", 0))
    assert found[0].shape == (1, 16)
    assert not np.array_equal(found[0], found[1])


def test_missing_packages_are_named(tmp_path: Path) -> None:
    index = {
        "_class_name": "PixArtSigmaPipeline",
        "text_encoder": ["transformers", "T5EncoderModel"],
        "transformer": ["diffusers", "PixArtTransformer2DModel"],
    }
    (tmp_path / "model_index.json").write_text(json.dumps(index))
    with pytest.raises(ConfigError, match=r"transformers for text_encoder \(T5EncoderModel\)"):
        capture_diffusers(tmp_path / "x", str(tmp_path), prompt="a cat", steps=2)


def _record(path: Path, model: nn.Module, family: Family, steps: int = 3, **more: Any) -> Recorded:
    return record(
        path,
        model,
        lambda: family.run(model, 0, steps),
        info=lambda: DumpInfo(model="random", scheduler="made up", seed=0, steps=steps),
        **more,
    )


@pytest.mark.parametrize("name", ["sd3", "flux"])
def test_fused_projections(name: str, tmp_path: Path) -> None:
    """The unused projections of a fused model are named, the fused one is captured."""
    family = FAMILIES[name]
    model = family.model()
    model.fuse_qkv_projections()
    done = _record(tmp_path / "x.safetensors", model, family, layers="*to_q*")
    assert all(n.endswith("to_q") for n in done.silent)
    assert all(n.endswith("to_qkv") for n in done.layers)
    assert len(done.silent) == len(done.layers) == family.attention
    assert done.notes()[0].startswith("matched but never ran, so not in the dump: ")
    with pytest.raises(DumpError, match=r"no layer that matches '\*to_q' ever ran"):
        _record(tmp_path / "y.safetensors", model, family, layers="*to_q")
    assert not (tmp_path / "y.safetensors").exists()


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family(name: str, tmp_path: Path) -> None:
    """Frames and patches in the batch are the sample's tokens."""
    family = FAMILIES[name]
    path = tmp_path / "x.safetensors"
    done = _record(path, family.model(), family, layers="*blocks.0.*")
    assert done.silent == ()
    tokens = {"latte": 192, "sd3": 64, "pixart": 64, "dit": 64, "flux": 63}[name]
    with DumpReader(path) as dump:
        shapes = {dump.x(layer, 2).shape[0] for layer in done.layers}
    assert tokens in shapes


def test_compiled_models_are_refused(tmp_path: Path) -> None:
    family = FAMILIES["dit"]
    model = family.model()
    for block in model.transformer_blocks:
        block.compile(backend="eager")
    with pytest.raises(ConfigError, match=r"transformer_blocks\.0 is compiled, .* eager"):
        _record(tmp_path / "x.safetensors", model, family)


def test_values_beyond_binary16(tmp_path: Path) -> None:
    """bfloat16 activations beyond binary16: refused with the place, or clipped and counted."""
    family = FAMILIES["dit"]
    model = family.model()
    with torch.no_grad():
        model.transformer_blocks[1].ff.net[2].bias[5] = 70144.0
    path = tmp_path / "x.safetensors"
    layers = "*blocks.1.ff.net.2"
    place = r"transformer_blocks\.1\.ff\.net\.2/(b|000/y): value at \[.*5\] is beyond float16"
    with pytest.raises(DumpError, match=place):
        _record(path, model, family, layers=layers)
    assert list(tmp_path.iterdir()) == []
    done = _record(path, model, family, layers=layers, saturate=True)
    assert done.clipped == 1 + 3 * 64
    assert done.notes() == [f"{done.clipped} values clipped to +-65504"]
    _record(path, model, family, layers=layers, dtype="bfloat16")
    with DumpReader(path) as dump:
        assert dump.y("transformer_blocks.1.ff.net.2", 0)[3, 5] > 65504


def test_the_size_is_known_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=100_000))
    family = FAMILIES["dit"]
    calls = []
    model = family.model()
    model.register_forward_hook(lambda *_: calls.append(1))
    with pytest.raises(DumpError, match=r"does not fit: the dump needs .* 100\.0 kB"):
        _record(tmp_path / "x.safetensors", model, family, steps=50)
    assert len(calls) <= 1  # the probe alone
    assert list(tmp_path.iterdir()) == []


def test_a_run_with_other_steps_is_refused(tmp_path: Path) -> None:
    family = FAMILIES["dit"]
    model = family.model()

    def attempt(steps: int) -> None:
        record(
            tmp_path / "x.safetensors",
            model,
            lambda: family.run(model, 0, steps),
            info=lambda: DumpInfo(model="m", scheduler="s", seed=0, steps=3),
            layers="*blocks.0.ff*",
        )

    with pytest.raises(DumpError, match="goes on with step 3"):
        attempt(4)
    with pytest.raises(DumpError, match=r"002/x: declared but never written"):
        attempt(2)
    assert list(tmp_path.iterdir()) == []


def test_a_wrapped_transformer_runs_in_its_pipeline(pipeline: Path) -> None:
    """The wrapped model takes the transformer's place, with guidance in the batch."""
    pipe = load_pipeline(str(pipeline), dtype="bfloat16")
    model = apply(pipe.transformer, FMDQ(), SAR(interval=2))

    def draw(transformer: Any) -> Any:
        pipe.transformer = transformer
        generator = torch.Generator().manual_seed(1)
        arguments = {"num_inference_steps": 4, "output_type": "np", "generator": generator}
        return pipe(class_labels=[1], **arguments).images

    got = draw(model)
    report = model.report()
    assert report.silent == ()
    assert sorted(report.bits()["transformer_blocks.0.ff.net.2"]) == [0, 1, 2, 3]
    assert report.attention_fraction_computed < 0.75
    want = draw(model.unwrap())
    assert got.shape == (1, 16, 16, 3)
    assert 0 < np.abs(got - want).mean() < 0.1
