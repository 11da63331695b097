"""What comes from outside: bounded in bytes, in seconds and in pixels before anything is made of it."""

import asyncio
import io
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from jaxtyping import UInt8
from PIL import Image, UnidentifiedImageError
from pydantic import BaseModel, ValidationError
from starlette.datastructures import UploadFile
from starlette.requests import ClientDisconnect, Request

from aurank.data.decode import to_pixels
from aurank.errors import AurankError, first_line
from aurank.serving.schema import PhotoSearch, RowSearch
from aurank.sizes import as_text

# Of Pillow's formats those that need no other program and that cameras, phones and browsers write.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
JSON_BYTES = 2**16
_FORM_BYTES = 2**16  # of a form, beside its file
_LONGEST_STRIP = 100  # its shorter side enlarged to what a model takes, a longer one would fill the memory
_DROPPED = 8  # times the limit: what is still read of a body that is too large, so that its sender hears why

Fields = TypeVar("Fields", bound=BaseModel)


class Refused(AurankError):
    """A request that is answered with a status and one line."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Limits:
    """What one request, and all of them together, may take.

    Args:
        upload_bytes: of a photo.
        upload_seconds: until a body has arrived.
        pixels: of a photo; decoding takes 6 to 12 bytes for each.
        threads: searches at once; pictures of the gallery are made in as many beside.
        waiting: searches that may wait; more are told to come again.
        thumbnail_bytes: of the pictures kept in memory.
    """

    upload_bytes: int = 20 * 2**20
    upload_seconds: float = 60.0
    pixels: int = 64_000_000
    threads: int = 2
    waiting: int = 64
    thumbnail_bytes: int = 64 * 2**20


async def read_search(request: Request, limits: Limits) -> RowSearch | tuple[PhotoSearch, bytes]:
    """Return what a search asks for: a row of the gallery, or a window and the bytes of a photo.

    Raises:
        Refused: another content type, too many bytes, too slow, malformed, or values that are not possible.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        async with asyncio.timeout(limits.upload_seconds):
            if kind == "application/json":
                body = await _bounded(request, JSON_BYTES, "JSON").body()
                return parsed(RowSearch, body)
            if kind == "multipart/form-data":
                return await _read_form(request, limits)
    except TimeoutError:
        raise Refused(408, f"the upload took more than {limits.upload_seconds:.0f} s; send it again") from None
    except ClientDisconnect:
        raise Refused(400, "the upload was broken off") from None
    raise Refused(415, 'send a photo as multipart/form-data (field "photo"), or {"row": 0} as application/json')


async def _read_form(request: Request, limits: Limits) -> tuple[PhotoSearch, bytes]:
    """Return the fields of a form and the bytes of its one file."""
    bounded = _bounded(request, limits.upload_bytes + _FORM_BYTES, "an upload")
    async with bounded.form(max_files=1, max_fields=8, max_part_size=_FORM_BYTES) as form:
        photo = form.get("photo")
        if not isinstance(photo, UploadFile):
            raise Refused(422, 'the form has no file in the field "photo"')
        fields = {name: value for name, value in form.items() if name != "photo"}
        content = await photo.read(limits.upload_bytes + 1)
        if len(content) > limits.upload_bytes:
            raise Refused(413, _too_large("a photo", limits.upload_bytes))
        return parsed(PhotoSearch, fields), content


def _too_large(what: str, most: int) -> str:
    return f"{what} may have {as_text(most)} at most; reduce it"


def _bounded(request: Request, most: int, what: str) -> Request:
    """Return the request with a body that is refused beyond `most` bytes."""
    arrived = 0

    async def receive() -> MutableMapping[str, Any]:
        nonlocal arrived
        message = await request.receive()
        arrived += len(message.get("body", b""))
        if arrived > most:
            while message.get("more_body", False) and arrived <= _DROPPED * most:
                message = await request.receive()
                arrived += len(message.get("body", b""))
            raise Refused(413, _too_large(what, most))
        return message

    return Request(request.scope, receive)


def parsed(model: type[Fields], content: bytes | dict[str, Any]) -> Fields:
    """Return JSON, or the fields of a form or an address, as a model.

    Raises:
        Refused: 400 for what is no JSON, 422 for a value that is not possible; says which.
    """
    try:
        if isinstance(content, bytes):
            return model.model_validate_json(content, strict=True)
        return model.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place, said = ".".join(map(str, first["loc"])), first["msg"]
        if first["type"] == "json_invalid":
            raise Refused(400, f"the body cannot be read: {said}") from None
        raise Refused(422, f"{place}: {said}" if place else said) from None


def decode_upload(content: bytes, max_pixels: int) -> UInt8[np.ndarray, "height width channel"]:
    """Return the pixels of an uploaded photo, upright; of an animation the first frame.

    Raises:
        Refused: 415 for what is no image of `FORMATS`, 413 for too many pixels (nothing is decoded then), 422 for a
            broken one.
    """
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as file:
            width, height = file.size
            if width * height > max_pixels:
                raise Refused(413, f"the photo has {width:,} × {height:,} pixels, more than {max_pixels:,}; reduce it")
            if max(width, height) > _LONGEST_STRIP * min(width, height):
                raise Refused(422, f"a strip of {width:,} × {height:,} pixels is no photo of a thing; send another")
            return to_pixels(file, None)
    except (Refused, MemoryError):
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise Refused(413, f"the photo has more than {max_pixels:,} pixels; reduce it") from None
    except UnidentifiedImageError:
        raise Refused(415, f"the photo is in none of the formats {', '.join(FORMATS)}") from None
    # Pillow's readers of broken files raise almost anything: OSError, SyntaxError, ValueError, struct.error, …
    except Exception as error:
        said = f"{type(error).__name__}: {first_line(error)}"
        raise Refused(422, f"the photo cannot be decoded ({said}); send another") from None
