"""Pictures of every mode that Pillow opens."""

from pathlib import Path

import numpy as np
from PIL import ExifTags, Image

MODES = ("RGB", "RGBA", "LA", "P", "L", "I;16", "CMYK", "turned")


def write_pictures(folder: Path, size: tuple[int, int]) -> list[Path]:
    """Write a picture of each of `MODES`, more than twice as large as a model's images, and return their files."""
    height, width = 2 * size[0] + 5, 2 * size[1] + 17
    values = np.random.default_rng(0).integers(0, 256, (6, 8, 4), dtype=np.uint8)
    picture = Image.fromarray(values).resize((width, height), Image.Resampling.BICUBIC)
    turned = Image.Exif()
    turned[ExifTags.Base.Orientation] = 6
    files = []
    for mode in MODES:
        if mode == "I;16":
            image = Image.fromarray(np.asarray(picture.convert("L")).astype(np.uint16) * 256 + 128)
        elif mode == "P":
            image = picture.quantize(64)  # with transparency
        else:
            image = picture.convert("RGB" if mode == "turned" else mode)
        files.append(folder / (f"{mode}.jpeg" if mode in ("CMYK", "turned") else f"{mode.replace(';', '')}.png"))
        image.save(files[-1], exif=turned if mode == "turned" else b"")
    return files
