"""Small folders of photos, names that mean harm among them, and indexes of them."""

from pathlib import Path

import numpy as np
from PIL import Image

from aurank.commands import ImageIndex, build_index
from aurank.embedding import ImageSelection

MODEL = "timm:test_vit,pretrained=false,input_size=32"
COLOURS = {"red": (220, 40, 40), "green": (40, 180, 60), "blue": (40, 60, 220)}
EVIL = ("<img src=x onerror=alert(1)>.png", "\x1b[31mred\x1b[0m.png", 'quote"&lt;.png', "=1+1.png")


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


def write_coloured(folder: Path, *, each: int = 10) -> Path:
    """Write `each` noisy photos of each colour, some red ones with the names of `EVIL`; return the folder."""
    for colour, value in COLOURS.items():
        (folder / colour).mkdir(parents=True)
        for number in range(each):
            noise = np.random.default_rng([number, *value]).integers(-35, 36, (48, 64, 3))
            name = EVIL[number] if colour == "red" and number < len(EVIL) else f"{number}.png"
            Image.fromarray((np.array(value) + noise).clip(0, 255).astype(np.uint8)).save(folder / colour / name)
    return folder


def small_index(folder: Path, out: Path, **options: object) -> ImageIndex:
    """Return an index of the photos of a folder by an untrained network."""
    return build_index(MODEL, ImageSelection(f"folder:{folder}"), out=out, **options)  # type: ignore[arg-type]
