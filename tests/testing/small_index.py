"""A small index of photos, names that mean harm among them."""

from pathlib import Path

import numpy as np
from PIL import Image

from aurank.commands import ImageIndex, build_index
from aurank.embedding import ImageSelection

MODEL = "timm:test_vit,pretrained=false"
COLOURS = {"red": (220, 40, 40), "green": (40, 180, 60), "blue": (40, 60, 220)}
EVIL = ("<img src=x onerror=alert(1)>.png", "\x1b[31mred\x1b[0m.png", 'quote"&lt;.png', "=1+1.png")


def write_photos(root: Path, *, each: int = 10) -> None:
    """Write `each` noisy photos of each colour into a folder of that name; some red ones have the names of `EVIL`."""
    for colour, value in COLOURS.items():
        (root / colour).mkdir(parents=True)
        for number in range(each):
            noise = np.random.default_rng([number, *value]).integers(-35, 36, (48, 64, 3))
            pixels = (np.array(value) + noise).clip(0, 255).astype(np.uint8)
            name = EVIL[number] if colour == "red" and number < len(EVIL) else f"{number}.png"
            Image.fromarray(pixels).save(root / colour / name)


def small_index(folder: Path, *, each: int = 10) -> ImageIndex:
    """Return an index of such photos; it lies in `folder`/index, and they in `folder`/photos."""
    write_photos(folder / "photos", each=each)
    return build_index(MODEL, ImageSelection(f"folder:{folder}/photos"), out=folder / "index")
