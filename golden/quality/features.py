"""The classifier behind Frechet distance and score: a small network on the training images.

``python -m dstar.golden.quality.features`` trains it on scikit-learn's digits, enlarged as for
the shipped DiT, and writes ``features.safetensors``; a fixed seed, less than a minute.  One image
in five is held out and gives the accuracy that is stored with the weights.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load, save_file
from torch import Tensor, nn
from torch.nn import functional

from dstar.golden.dit.data import load_data
from dstar.golden.dit.spec import DIGITS

from .metrics import Doubles, Floats, moments

FILE = "features.safetensors"
#: Features: few, so that the covariance of 64 images is well determined.
FEATURES = 16
SEED, EPOCHS, BATCH, RATE, HELD_OUT = 0, 25, 64, 4e-3, 5


class Classifier(nn.Module):
    """Images (n, 1, 32, 32) to features (n, 16) and class logits (n, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 12, 4, stride=2, padding=1)
        self.conv2 = nn.Conv2d(12, 24, 4, stride=2, padding=1)
        self.conv3 = nn.Conv2d(24, 32, 4, stride=2, padding=1)
        self.features = nn.Linear(32 * 16, FEATURES)
        self.logits = nn.Linear(FEATURES, DIGITS.classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Features before their activation, and logits."""
        for conv in (self.conv1, self.conv2, self.conv3):
            x = functional.silu(conv(x))
        features: Tensor = self.features(x.flatten(1))
        return features, self.logits(functional.silu(features))


@cache
def classifier() -> Classifier:
    """The shipped classifier in evaluation mode."""
    net = Classifier()
    net.load_state_dict(
        {k: t.float() for k, t in load((files(__package__) / FILE).read_bytes()).items()}
    )
    return net.eval()


@torch.inference_mode()
def describe(images: Floats) -> tuple[Floats, Floats]:
    """Features (n, 16) and class probabilities (n, 10) of images (n, 1, 32, 32) in [-1, 1]."""
    features, logits = classifier()(torch.from_numpy(images.clip(-1, 1)))
    return features.numpy(), logits.softmax(-1).numpy()


@cache
def real_moments(classes: tuple[int, ...]) -> tuple[Doubles, Doubles]:
    """Moments of the features of all training images of some classes, for the Frechet distance."""
    images, labels = load_data(DIGITS.image)
    return moments(describe(images[np.isin(labels, classes)][:, None])[0])


def train(out: Path) -> float:
    """Train, write the weights to a file, and return the accuracy on the held-out images."""
    torch.manual_seed(SEED)
    images, labels = load_data(DIGITS.image)
    x, y = torch.from_numpy(images[:, None]), torch.from_numpy(labels)
    test = torch.arange(len(x)) % HELD_OUT == 0
    net, order = Classifier(), torch.Generator().manual_seed(SEED)
    optimizer = torch.optim.AdamW(net.parameters(), lr=RATE, weight_decay=0.05)
    batches = -(-int((~test).sum()) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, RATE, epochs=EPOCHS, steps_per_epoch=batches
    )
    train_x, train_y = x[~test], y[~test]
    for _ in range(EPOCHS):
        for chosen in torch.split(torch.randperm(len(train_x), generator=order), BATCH):
            shift = torch.randint(-2, 3, (2,), generator=order).tolist()
            moved = train_x[chosen].roll(shift, (2, 3))
            loss = functional.cross_entropy(net(moved)[1], train_y[chosen], label_smoothing=0.05)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            schedule.step()
    with torch.inference_mode():
        right = net.eval()(x[test])[1].argmax(-1) == y[test]
    accuracy = float(right.float().mean())
    tensors = {name: tensor.half() for name, tensor in net.state_dict().items()}
    save_file(tensors, out, {"dataset": "scikit-learn digits", "accuracy": f"{accuracy:.4f}"})
    return accuracy


if __name__ == "__main__":
    target = Path(__file__).with_name(FILE)
    print(f"{target.name}: {train(target):.2%} of the held-out images are classified correctly")
