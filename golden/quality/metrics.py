"""Distances between sets of images: PSNR, Frechet distance, Inception-style score.

The last two are Heusel et al.'s (2017) and Salimans et al.'s (2016) with the features and class
probabilities of the small classifier of :mod:`.features`: comparable among methods here, not
with published numbers.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

#: Square of the largest difference between pixels in [-1, 1].
PEAK = 4.0


def psnr(images: Floats, reference: Floats) -> float:
    """PSNR in dB over all pixels of two sets of images of one shape; infinite where equal."""
    error = float(np.square(images.astype(np.float64) - reference).mean())
    return float("inf") if error == 0 else 10 * float(np.log10(PEAK / error))


def moments(features: Floats) -> tuple[Doubles, Doubles]:
    """Mean (d,) and covariance (d, d) of features (n, d), n at least 2."""
    wide = features.astype(np.float64)
    return wide.mean(0), np.cov(wide, rowvar=False).reshape(wide.shape[1], -1)


def frechet(a: tuple[Doubles, Doubles], b: tuple[Doubles, Doubles]) -> float:
    """Squared Frechet distance of two normal distributions given by their moments.

    ``|m_a - m_b|^2 + tr(A + B - 2 (A B)^(1/2))``; the trace of the root is the sum of the roots
    of the eigenvalues of ``A^(1/2) B A^(1/2)``, which is symmetric.
    """
    values, vectors = np.linalg.eigh(a[1])
    root = (vectors * np.sqrt(values.clip(0))) @ vectors.T
    product = np.linalg.eigvalsh(root @ b[1] @ root)
    trace = np.trace(a[1]) + np.trace(b[1]) - 2 * np.sqrt(product.clip(0)).sum()
    return max(0.0, float(np.square(a[0] - b[0]).sum() + trace))


def inception_score(probabilities: Floats) -> float:
    """``exp(mean KL(p(y|x) || p(y)))`` of class probabilities (n, classes): 1 to ``classes``."""
    p = probabilities.astype(np.float64).clip(1e-12)
    marginal = p.mean(0)
    return float(np.exp((p * (np.log(p) - np.log(marginal))).sum(1).mean()))
