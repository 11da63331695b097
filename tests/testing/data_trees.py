"""Small image trees and data sets for the tests of aurank.data."""

import io
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from aurank.data import ArraySource, Manifest, build_manifest

# Real archives lie where aurank itself looks: in $AURANK_DATA, else in ./data.
REAL_DATA = Path(os.environ.get("AURANK_DATA") or "data").expanduser()


def real_archive(name: str) -> Path:
    """Returns the data folder that holds the archive, or skips the test."""
    if not (REAL_DATA / name).is_file():
        pytest.skip(f"{name} is not in {REAL_DATA}")
    return REAL_DATA


def pixels(seed: int, height: int = 6, width: int = 5, channels: int = 3) -> np.ndarray:
    """Returns a random image, uint8 [height, width, channels]."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)


def png(seed: int, **shape: int) -> bytes:
    """Returns the bytes of a random PNG."""
    buffer = io.BytesIO()
    Image.fromarray(pixels(seed, **shape)).save(buffer, "PNG")
    return buffer.getvalue()


def write_tree(root: Path, names: list[str]) -> Path:
    """Writes a different PNG under each name below `root`."""
    for seed, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(png(seed))
    return root


def zip_tree(root: Path, file: Path, *, prefix: str = "") -> Path:
    """Writes the files below `root` to a zip archive."""
    with zipfile.ZipFile(file, "w") as archive:
        for path in sorted(root.rglob("*")):
            if path.is_file():
                archive.write(path, prefix + path.relative_to(root).as_posix())
    return file


def array_manifest(
    sizes: dict[str, list[int]],
    *,
    height: int = 12,
    width: int = 10,
    channels: int = 3,
    source: ArraySource | None = None,
) -> Manifest:
    """Returns a manifest of random images in memory: for each split, the number of images of each of its classes."""
    paths, labels, splits = [], [], []
    for split, counts in sizes.items():
        for label, count in enumerate(counts):
            for index in range(count):
                paths.append(f"{split}/{label}/{index}")
                labels.append(f"{split}{label}")
                splits.append(split)
    images = {path: pixels(row, height, width, channels) for row, path in enumerate(paths)}
    return build_manifest("arrays", ArraySource(images), paths=paths, labels=labels, splits=splits)
