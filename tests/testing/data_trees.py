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


def omniglot_zip(file: Path, alphabets: int = 10) -> None:
    """Writes drawings in the layout of Omniglot: alphabets of four characters, every fifth of them for evaluation."""
    with zipfile.ZipFile(file, "w") as archive:
        for place in range(16 * alphabets):
            alphabet, character, drawing = place // 16, place // 4 % 4 + 1, place % 4 + 1
            split = "evaluation" if alphabet % 5 == 4 else "background"
            name = f"images_{split}/Alphabet{alphabet}/character{character:02}/{place // 4:04}_{drawing:02}.png"
            archive.writestr(name, png(place, height=20, width=20))


def grocery_zip(file: Path, kinds: dict[str, tuple[str, int]], images: int, content: bytes = b"") -> None:
    """Writes the layout of the Grocery Store data set: for each kind its aisle and number of products.

    All images have the same content. Beside the published lists stand disjoint ones in the format of SOP, by product.
    """
    classes = ["Class Name (str),Class ID (int),Coarse Class Name (str),Coarse Class ID (int),Icon,Text"]
    lists: dict[str, list[str]] = {"train.txt": [], "val.txt": [], "test.txt": []}
    disjoint = {
        f"derived_disjoint_{split}.txt": ["image_id class_id super_class_id path"] for split in ("train", "test")
    }
    with zipfile.ZipFile(file, "w") as archive:
        for kind, (aisle, count) in kinds.items():
            for place in range(count):
                name, product = f"Brand-{place}-{kind}" if count > 1 else kind, len(classes)
                classes.append(f"{name},{product - 1},{kind},0,,")
                for index in range(images):
                    part = list(lists)[index % 3]
                    path = f"{part.removesuffix('.txt')}/{aisle}/{kind}/{name}/{name}_{index:03d}.jpg"
                    lists[part].append(f"{path}, {product - 1}, 0")
                    list(disjoint.values())[product % 2].append(f"{product * images + index} {product} 1 {path}")
                    archive.writestr(f"grocery/images/{path}", content)
        for name, lines in {**lists, **disjoint, "classes.csv": classes}.items():
            archive.writestr(f"grocery/{name}", "\n".join(lines) + "\n")


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
