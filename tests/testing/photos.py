"""Folders of photos, whole and broken."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from testing.tiny import tiny_config


def photos(root: Path, counts: dict[str, int]) -> None:
    """So many images in each ``split/class``."""
    for folder, count in counts.items():
        for number in range(count):
            path = root / folder / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = np.random.default_rng([number, len(folder)]).integers(0, 255, (20, 20, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(path)


def broken_photos(root: Path) -> dict[str, Any]:
    """A configuration whose data set has 4 classes of 4 images a split; half of the training images are broken."""
    photos(root, {f"{name}/{name}{label}": 4 for name in ("train", "val", "test") for label in "abcd"})
    for path in [*root.glob("train/*/[01].png"), root / "val/vala/0.png", root / "test/testb/3.png"]:
        path.write_bytes(b"broken")
    return tiny_config(
        data={"name": "folder", "root": str(root), "on_error": "skip"},
        sampler={"name": "shuffled", "batch": 4, "params": {}},
        train={"steps": 12, "validate_every": 6},
    )
