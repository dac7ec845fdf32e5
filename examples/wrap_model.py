"""Run the DSTAR algorithm on a whole model: the shipped DiT, eight images, one report.

``python examples/wrap_model.py`` (half a minute)
"""

from __future__ import annotations

import numpy as np

from dstar.golden import FMDQ, SAR, apply
from dstar.golden.dit.model import load_model, sample
from dstar.golden.dit.weights import load_weights

model = load_model(load_weights())
classes = range(8)
want = sample(model, classes=classes, steps=28, seed=7)

wrapped = apply(model, FMDQ(), SAR(interval=2, score_bits="mixed"))
got = sample(wrapped, classes=classes, steps=28, seed=7)

print(wrapped.report())
print(f"PSNR against the float model: {10 * np.log10(4 / np.square(got - want).mean()):.1f} dB")
