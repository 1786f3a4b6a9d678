"""Scikit-learn's handwritten digits as arrays: a real data set that needs no download."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

Images = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]


def digits() -> tuple[Images, Labels]:
    """1797 images, (n, 8, 8) in 0…16, and their labels, (n,)."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 - a second to import, for 60 KB

    bunch = load_digits()
    return bunch.images.astype(np.float32), bunch.target.astype(np.int64)


def save(path: Path) -> None:
    """Write the data set to `path` (.npz), so that many processes can read it quickly."""
    images, labels = digits()
    np.savez(path, images=images, labels=labels)


def read(path: Path) -> tuple[Images, Labels]:
    """What `save` wrote; as `digits`."""
    with np.load(path) as arrays:
        return arrays["images"], arrays["labels"]
