"""Train the shipped Diffusion Transformer: `python -m dstar.golden.dit.train`.

Rectified flow with AdamW, a warmed-up cosine learning rate and an exponential moving average of
the weights, which is what gets saved. Times are drawn with a shift towards noise: an enlarged
image is smooth, so that its content is decided at higher noise than its pixel count suggests.
Everything random follows from `--seed`. A run that stopped early is continued with `--init`, which
starts a fresh optimizer and schedule from saved weights and appends to the log. The shipped weights
are 1500 steps of `--steps 4800`, then `--init FILE --steps 1200 --lr 8e-4 --warmup 30 --ema 0.995
--seed 1`: `train.log` holds both parts, on two busy cores.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from .data import load_data
from .model import DiT
from .spec import DIGITS, DiTSpec

HERE = Path(__file__).parent
DATASET = "scikit-learn digits, 1797 images, 8x8 enlarged to 32x32"


def shifted(u: Tensor, shift: float) -> Tensor:
    """Map uniform times to times that favour noise: shift u / (1 + (shift - 1) u)."""
    return shift * u / (1.0 + (shift - 1.0) * u)


def learning_rate(step: int, *, steps: int, warmup: int, peak: float) -> float:
    """Linear warm-up over `warmup` steps, then a cosine down to 1 % of `peak`."""
    if step < warmup:
        return peak * (step + 1) / warmup
    done = (step - warmup) / max(steps - warmup, 1)
    return peak * (0.01 + 0.99 * 0.5 * (1.0 + math.cos(math.pi * done)))


class Average:
    """Exponential moving average of a model's parameters, shorter while training is young.

    Parameters
    ----------
    model:
        The model to follow.
    decay:
        Weight of the past, reached after about 10 / (1 - decay) steps.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.names = [name for name, _ in model.named_parameters()]
        self.live = [p.detach() for p in model.parameters()]
        self.mean = [p.clone() for p in self.live]

    def update(self, step: int) -> None:
        """Take in the parameters after step `step`, counted from zero."""
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self.mean, self.live, 1.0 - decay)

    def save(self, path: Path, spec: DiTSpec, *, step: int, seeds: str) -> None:
        """Write the averaged weights as float16, replacing `path` in one move."""
        tensors = {
            n: t.to(torch.float16).contiguous() for n, t in zip(self.names, self.mean, strict=True)
        }
        metadata = {
            "model": f"DiT, hidden {spec.hidden}, depth {spec.depth}, heads {spec.heads}, "
            f"patch {spec.patch}, image {spec.image}",
            "parameters": str(spec.parameters),
            "dataset": DATASET,
            "training_steps": str(step),
            "seed": seeds,
        }
        scratch = path.with_suffix(".tmp")
        save_file(tensors, scratch, metadata=metadata)
        scratch.replace(path)


def train(args: argparse.Namespace, spec: DiTSpec = DIGITS) -> None:
    """Train for `args.steps` steps; the log and the weights appear as training goes."""
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    images_np, classes_np = load_data(spec.image)
    images, classes = torch.from_numpy(images_np)[:, None], torch.from_numpy(classes_np)
    model, first, seeds = DiT(spec), 0, str(args.seed)
    if args.init is not None:
        model.load_state_dict(load_file(args.init))
        with safe_open(args.init, framework="pt") as file:
            metadata = file.metadata()
        first, seeds = int(metadata["training_steps"]), f"{metadata['seed']}, {args.seed}"
    average = Average(model, args.ema)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=args.lr, betas=(0.9, 0.99), weight_decay=0.01, fused=True
    )
    start, total = time.monotonic(), 0.0
    args.log.parent.mkdir(parents=True, exist_ok=True)
    with args.log.open("a" if first else "w", encoding="utf-8") as log:

        def note(line: str) -> None:
            print(line, file=log, flush=True)
            print(line, flush=True)

        if first:
            note(f"# continued from the averaged weights of step {first}, time from zero")
        else:
            note(f"# {DATASET}; {spec}")
        note(
            f"# parameters {spec.parameters} steps {args.steps} batch {args.batch} lr {args.lr} "
            f"ema {args.ema} shift {args.shift} dropout {args.dropout} seed {args.seed}"
        )
        for step in range(args.steps):
            rate = learning_rate(step, steps=args.steps, warmup=args.warmup, peak=args.lr)
            for group in optimizer.param_groups:
                group["lr"] = rate
            pick = torch.randint(len(images), (args.batch,))
            x0, y = images[pick], classes[pick]
            y = torch.where(torch.rand(args.batch) < args.dropout, spec.null_class, y)
            t = shifted(torch.rand(args.batch), args.shift)
            eps = torch.randn_like(x0)
            noised = torch.lerp(x0, eps, t[:, None, None, None])
            loss = nn.functional.mse_loss(model(noised, t, y), eps - x0)
            optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            average.update(step)
            total += loss.item()
            if (step + 1) % args.every == 0 or step + 1 == args.steps:
                count = (step % args.every) + 1
                seconds = time.monotonic() - start
                now = first + step + 1
                note(f"step {now} loss {total / count:.5f} lr {rate:.2e} s {seconds:.0f}")
                total = 0.0
            if (step + 1) % args.save_every == 0 or step + 1 == args.steps:
                average.save(args.out, spec, step=first + step + 1, seeds=seeds)


def main(argv: Sequence[str] | None = None) -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description="Train the shipped Diffusion Transformer.")
    parser.add_argument("--out", type=Path, default=HERE / "weights.safetensors")
    parser.add_argument("--log", type=Path, default=HERE / "train.log")
    parser.add_argument("--init", type=Path, help="weights to continue from")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-3, help="peak learning rate")
    parser.add_argument("--warmup", type=int, default=200, help="steps")
    parser.add_argument("--ema", type=float, default=0.998, help="decay of the average")
    parser.add_argument("--shift", type=float, default=3.0, help="bias of the times to noise")
    parser.add_argument("--dropout", type=float, default=0.1, help="share of null classes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--every", type=int, default=50, help="steps between log lines")
    parser.add_argument("--save-every", type=int, default=500, help="steps between saves")
    train(parser.parse_args(argv))


if __name__ == "__main__":
    main()
