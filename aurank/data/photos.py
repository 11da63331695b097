"""Photos that an index is searched with: where they are, and their pixels."""

import os
import zipfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image

from aurank.data.decode import IMAGE_SUFFIXES, MAX_PIXELS, OR_SKIP, Pixels, check_size, decode, to_pixels
from aurank.data.sources import ArraySource, FolderSource, ImageSource, PartsSource, open_source
from aurank.errors import UserError

_GIVEN = "what was given"


@dataclass(frozen=True, eq=False)
class PhotoFile:
    source: ImageSource
    name: str
    path: str


Photo = Path | str | bytes | Image.Image | np.ndarray | PhotoFile
"""A file, the bytes of one, an image of Pillow, or uint8 pixels [height, width, channel]."""


def find_photos(names: Iterable[str]) -> list[PhotoFile]:
    photos = []
    for name in names:
        path, is_photo = Path(name), True
        with suppress(OSError, ValueError):
            is_photo = not path.is_dir() and not (path.is_file() and zipfile.is_zipfile(path))
        if is_photo:
            photos.append(PhotoFile(FolderSource(path.parent), path.name, name))
            continue
        source = open_source(path)
        images = [image for image in source.names() if PurePosixPath(image).suffix.lower() in IMAGE_SUFFIXES]
        if not images:
            raise UserError(f"{name} holds no image; expected files such as .jpg or .png, in it or in folders below")
        photos += [PhotoFile(source, image, f"{name.rstrip('/')}/{image}") for image in images]
    return photos


def read_photo(photo: Photo, channels: int | None, *, max_pixels: int = MAX_PIXELS) -> Pixels:
    if isinstance(photo, bytes):
        photo = PhotoFile(PartsSource([photo], {"photo": (0, 0, len(photo))}, where=_GIVEN), "photo", "photo")
    elif isinstance(photo, np.ndarray):
        photo = PhotoFile(ArraySource({"photo": photo}, where=_GIVEN), "photo", "photo")
    elif isinstance(photo, Path | str):
        photo = PhotoFile(FolderSource(Path(photo).parent), Path(photo).name, str(photo))
    try:
        if isinstance(photo, PhotoFile):
            return decode(photo.source, photo.name, channels, max_pixels=max_pixels)
        check_size(photo.width, photo.height, max_pixels)
        return to_pixels(photo, channels)
    except (UserError, OSError) as error:
        raise UserError(f"the photo cannot be read: {str(error).removesuffix(OR_SKIP)}") from None


class JoinedSource(ImageSource):
    def __init__(self, sources: Sequence[ImageSource | None], where: str = "the index") -> None:
        self.sources, self.where = sources, where

    def content(self, path: str) -> bytes:
        source, name = self._of(path)
        if source is None:
            raise UserError(f"image {name!r} is gone, with all that was beside it")
        return source.read_bytes(name)

    def exists(self, path: str) -> bool:
        source, name = self._of(path)
        return source is not None and source.exists(name)

    def _of(self, path: str) -> tuple[ImageSource | None, str]:
        number, _, name = path.partition("/")
        return self.sources[int(number)], name


def read_list(content: bytes) -> list[str]:
    parts = content.split(b"\0") if b"\0" in content else content.splitlines()
    return [os.fsdecode(part) for part in parts if part]
