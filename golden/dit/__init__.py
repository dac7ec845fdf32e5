"""A small class-conditional Diffusion Transformer, trained on scikit-learn's digits.

The real workload of this repository. `spec` describes it, `model` and `train` are PyTorch,
`forward` and `sampler` are plain NumPy and equal to it; `weights` loads what training shipped.
Nothing here imports PyTorch unless `model` or `train` is imported by name.
"""

from .spec import DIGITS, DiTSpec

__all__ = ["DIGITS", "DiTSpec"]
