"""Small pictures inside a page: read, reduced and encoded once each, within a budget of bytes."""

import base64
import io
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from aurank.data.decode import decode
from aurank.data.sources import ImageSource
from aurank.errors import UserError
from aurank.models.explanation import Explanation, explain
from aurank.models.image_model import ImageModel

SIDE = 112  # pixels of the longer side
SMALLEST = 28  # smaller pictures are enlarged to this at least, without smoothing
QUALITY = 80
_ORANGE, _BLUE = (230, 97, 1), (30, 80, 200)
_EXPLAINED = 10  # images of one query


@dataclass(eq=False)
class Pictures:
    """Thumbnails of the images of a source for the `src` of an `<img>`, `budget` bytes together."""

    source: ImageSource | None
    budget: int = 10 * 2**20
    side: int = SIDE
    left_out: int = 0
    missing: dict[str, str] = field(default_factory=dict)  # path → why it cannot be shown
    model: ImageModel | None = None  # that explains why images are alike
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
            self._made[path] = data_url(kind, content)
        encoded = self._made[path]
        if len(encoded) > self.budget:  # each use is written out again
            self.left_out += 1
            return None
        self.budget -= len(encoded)
        return encoded

    def explained(self, query: str, images: Mapping[int, str]) -> list[tuple[str, list[str]]]:
        """Return why images of the page, by rank, are like a query: a line, and heat maps of both."""
        shown = [item for item in images.items() if item[1] in self._made][:_EXPLAINED]
        if self.model is None or self.source is None or query not in self._made or not shown or self.budget <= 0:
            return []
        try:
            photos = [decode(self.source, path, None) for path in (query, *dict(shown).values())]
            reasons = zip(dict(shown), explain(self.model, photos[0], photos[1:]), strict=True)
            pairs = [(f"{rank} · {reason}", heat_maps(reason)) for rank, reason in reasons]
        except UserError as error:
            self.model = None  # a page says it once
            return [(str(error), [])]
        self.budget -= sum(len(picture) for _, pictures in pairs for picture in pictures)
        return pairs


def heat_maps(why: Explanation) -> list[str]:
    """Return both views for the `src` of an `<img>`: orange where a cell makes them alike, blue where less alike."""
    pictures = []
    for view, cells in zip(why.views, why.maps / np.abs(why.maps).max(), strict=True):
        enlarged = Image.fromarray(cells.astype(np.float32)).resize(view.shape[::-1], Image.Resampling.BILINEAR)
        grey, heat = view[..., None], np.asarray(enlarged)[..., None]
        mixed = grey + 0.8 * heat**2 * (np.where(heat > 0, _ORANGE, _BLUE) - grey)
        pictures.append(data_url(*thumbnail(mixed.round().astype(np.uint8), 2 * SIDE)))
    return pictures


def data_url(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


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
