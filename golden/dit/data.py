"""The training set: scikit-learn's 8x8 digits, smoothly enlarged to 32x32.

The 1797 images ship inside scikit-learn (they are the test part of UCI's "Optical Recognition
of Handwritten Digits"), so nothing is fetched. Pixels are scaled to [-1, 1], -1 is background.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

SOURCE_SIDE = 8
"""Side of a source image, in pixels."""
SOURCE_MAX = 16
"""Largest value of a source pixel; the smallest is 0."""


@cache
def cubic_matrix(source: int, target: int) -> Floats:
    """Catmull-Rom interpolation along one axis, as a matrix.

    Pixel centres are aligned and the edge pixel is repeated outwards.

    Parameters
    ----------
    source, target:
        Samples before and after.

    Returns
    -------
    Matrix of shape (target, source); each row sums to one.
    """
    matrix = np.zeros((target, source), np.float64)
    for row in range(target):
        centre = (row + 0.5) * source / target - 0.5
        base = int(np.floor(centre))
        for tap in range(base - 1, base + 3):
            d = abs(centre - tap)
            near, far = 1.5 * d**3 - 2.5 * d**2 + 1, -0.5 * d**3 + 2.5 * d**2 - 4 * d + 2
            matrix[row, min(max(tap, 0), source - 1)] += near if d < 1 else far if d < 2 else 0.0
    return matrix.astype(np.float32)


def enlarge(images: Floats, side: int) -> Floats:
    """Enlarge images (n, s, s) in [-1, 1] to (n, side, side), clipped to the same range."""
    matrix = cubic_matrix(images.shape[-1], side)
    large: Floats = np.matmul(np.matmul(matrix, images), matrix.T)
    return large.clip(-1.0, 1.0)


def reduce(images: Floats, side: int = SOURCE_SIDE) -> Floats:
    """Reduce images (n, S, S) to (n, side, side) by the mean of each square of pixels."""
    n, large, _ = images.shape
    if large % side:
        raise ValueError(f"side must divide the image side {large}, got {side}")
    box = large // side
    squares = images.reshape(n, side, box, side, box)
    small: Floats = squares.mean(axis=(2, 4), dtype=np.float32)
    return small


def load_source() -> tuple[Floats, Ints]:
    """The source digits: images (1797, 8, 8) in [-1, 1] and their classes (1797,)."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.asarray(digits.images, np.float32) * (2.0 / SOURCE_MAX) - 1.0
    return images.astype(np.float32), np.asarray(digits.target, np.int64)


def load_data(side: int) -> tuple[Floats, Ints]:
    """The training set: images (1797, side, side) in [-1, 1] and their classes (1797,)."""
    images, classes = load_source()
    return enlarge(images, side), classes
