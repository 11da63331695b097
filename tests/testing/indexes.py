"""Small folders of photos and indexes of them."""

from pathlib import Path

import numpy as np
from PIL import Image

from aurank.commands import ImageIndex, build_index
from aurank.embedding import ImageSelection

MODEL = "timm:test_vit,pretrained=false,input_size=32"


def write_photo(path: Path, seed: int) -> None:
    """Write a photo of noise, as .png whatever its name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 255, (12, 12, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, format="PNG")


def write_photos(folder: Path, classes: int = 4, images: int = 5) -> Path:
    """Write photos "c0/0.png" and so on; return the folder."""
    for number in range(classes * images):
        write_photo(folder / f"c{number % classes}/{number // classes}.png", number)
    return folder


def small_index(folder: Path, out: Path, **options: object) -> ImageIndex:
    """Return an index of the photos of a folder by an untrained network."""
    return build_index(MODEL, ImageSelection(f"folder:{folder}"), out=out, **options)  # type: ignore[arg-type]
