"""Small pictures inside a page: read, reduced and encoded once each, within a budget of bytes."""

import base64
import io
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from aurank.data.decode import decode
from aurank.data.sources import ImageSource
from aurank.errors import UserError

SIDE = 112  # pixels of the longer side
SMALLEST = 28  # smaller pictures are enlarged to this at least, without smoothing
QUALITY = 80


@dataclass(eq=False)
class Pictures:
    """Thumbnails of the images of a source for the `src` of an `<img>`, `budget` bytes together."""

    source: ImageSource | None
    budget: int = 10 * 2**20
    side: int = SIDE
    left_out: int = 0
    missing: dict[str, str] = field(default_factory=dict)  # path → why it cannot be shown
    _made: dict[str, str] = field(default_factory=dict)

    def of(self, path: str) -> str | None:
        if self.source is None or not path or path in self.missing:
            return None
        if path not in self._made:
            try:
                kind, content = thumbnail(decode(self.source, path, None, on_white=True), self.side)
            except UserError as error:
                self.missing[path] = str(error)
                return None
            self._made[path] = f"data:{kind};base64,{base64.b64encode(content).decode()}"
        encoded = self._made[path]
        if len(encoded) > self.budget:  # each use is written out again
            self.left_out += 1
            return None
        self.budget -= len(encoded)
        return encoded


def thumbnail(pixels: UInt8[np.ndarray, "height width channel"], side: int = SIDE) -> tuple[str, bytes]:
    channels = pixels.shape[2]
    image = Image.fromarray(pixels[..., 0] if channels in (1, 2) else pixels[..., :3])
    small = max(image.size) < SMALLEST * 2
    if small:
        factor = max(1, side // max(image.size))
        image = image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
    else:
        image.thumbnail((side, side), Image.Resampling.LANCZOS, reducing_gap=2.0)
    file = io.BytesIO()
    kind = "png" if small or (image.mode == "L" and len(set(np.unique(np.asarray(image)).tolist())) <= 16) else "jpeg"
    image.save(file, kind.upper(), quality=QUALITY, optimize=True)
    return f"image/{kind}", file.getvalue()
