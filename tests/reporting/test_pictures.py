"""Pictures of a page show what a network sees."""

import base64
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from aurank.data import FolderSource
from aurank.data.decode import decode
from aurank.reporting.pictures import Pictures, thumbnail


def shown(content: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(content)) as image:
        assert image.mode in ("L", "RGB")  # nothing of it is transparent
        return np.asarray(image.convert("RGB")).astype(int)


@pytest.mark.parametrize("side", [20, 80])  # a PNG, and a JPEG
def test_what_is_transparent_lies_on_white_as_a_network_sees_it(side: int, tmp_path: Path) -> None:
    pixels = np.zeros((side, side, 4), np.uint8)
    pixels[..., 0], pixels[: side // 2, :, 3] = 200, 255  # below its upper half, a red that nobody is meant to see
    pixels[:, : side // 4, 3] = 128
    Image.fromarray(pixels).save(tmp_path / "logo.png")
    source = FolderSource(tmp_path)
    seen = decode(source, "logo.png", 3)
    picture = Pictures(source).of("logo.png")
    for content in (
        base64.b64decode(picture.partition(",")[2]),
        thumbnail(decode(source, "logo.png", None, on_white=True))[1],
    ):
        found = shown(content)
        for part in (0.1, 0.9):  # the four corners
            for other in (0.1, 0.9):
                there = found[int(part * len(found)), int(other * len(found))]
                assert np.abs(there - seen[int(part * side), int(other * side)]).max() <= 12  # JPEG's quality
