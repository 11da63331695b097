"""scikit-learn's handwritten digits: the demonstration that needs no download."""

from pathlib import Path

import numpy as np

from aurank.data.manifest import Manifest, build_manifest
from aurank.data.sources import ArraySource


def read_digits(root: Path | None = None) -> Manifest:
    """Return scikit-learn's 1,797 handwritten digits, 8 × 8 grey; nothing is fetched and `root` is not read.

    The first half (898 images) is "train", the second "test", with the same ten classes: ten digits are too few to hold
    some out, so unlike the benchmarks this set does not measure transfer to new classes.
    """
    # Imported here: scikit-learn's data sets take half a second that no other reader needs.
    from sklearn.datasets import load_digits

    data = load_digits()
    images = np.rint(data.images * (255 / 16)).astype(np.uint8)
    paths = [f"{row:04d}" for row in range(len(images))]
    half = len(images) // 2
    return build_manifest(
        "digits",
        ArraySource(dict(zip(paths, images, strict=True)), where="scikit-learn's digits"),
        paths=paths,
        labels=[str(label) for label in data.target.tolist()],
        splits=["train"] * half + ["test"] * (len(images) - half),
    )
