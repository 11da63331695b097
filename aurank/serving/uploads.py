"""What comes from outside: bounded in bytes, in seconds and in pixels before anything is made of it."""

import asyncio
import io
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from fastapi import Request
from jaxtyping import UInt8
from PIL import Image, UnidentifiedImageError
from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from aurank.data.decode import to_pixels
from aurank.errors import first_line
from aurank.sizes import as_text

DEEPEST = 1000  # ranks that can be paged through
# Of Pillow's formats those that need no other program and that cameras, phones and browsers write.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
_FIELD_BYTES = 2**16  # of JSON, or of a form beside its photo
_LONGEST_STRIP = 100  # its shorter side enlarged to what a model takes, a longer one would fill the memory
_DROPPED = 8  # times the limit: what is still read of a body that is too large, so that its sender hears why
Words = Annotated[str, Field(max_length=1000, description="Words; with an image or a photo they are one query.")]


class Window(BaseModel):
    model_config = ConfigDict(extra="forbid")

    offset: int = Field(0, ge=0, le=2**31 - 1, description="How many images to leave out at the start.")
    limit: int = Field(24, ge=1, le=100, description="How many images to return.")
    class_name: str | None = Field(None, alias="class", description="Only images of this class.")


class RowSearch(Window):
    """A search with an image of the gallery, with words, or with both."""

    row: int | None = Field(None, ge=0, le=2**63 - 1, description="The image's row in the gallery.")
    text: Words = ""


class PhotoSearch(Window):
    """A search with a photo, as a form."""

    photo: bytes
    text: Words = ""


@dataclass(frozen=True)
class Limits:
    """What one request, and all of them together, may take.

    Args:
        upload_bytes: of a photo.
        upload_seconds: until a body has arrived.
        pixels: of a photo; decoding takes 6 to 12 bytes for each.
        threads: searches at once; pictures of the gallery are made in as many beside.
        waiting: searches that may wait; more are told to come again.
    """

    upload_bytes: int = 20 * 2**20
    upload_seconds: float = 60.0
    pixels: int = 64_000_000
    threads: int = 2
    waiting: int = 128


async def read_search(request: Request, limits: Limits) -> RowSearch | PhotoSearch:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    is_form = kind == "multipart/form-data"
    bounded = _with_bounded_body(request, _FIELD_BYTES + is_form * limits.upload_bytes)
    try:
        async with asyncio.timeout(limits.upload_seconds):
            if kind == "application/json":
                return RowSearch.model_validate_json(await bounded.body(), strict=True)
            if is_form:
                async with bounded.form(max_files=1, max_fields=8, max_part_size=_FIELD_BYTES) as form:
                    fields = {
                        name: await value.read() if isinstance(value, UploadFile) else value
                        for name, value in form.items()
                    }
                    return PhotoSearch.model_validate(fields)
        refusal = 415, 'send a photo as multipart/form-data (field "photo"), or {"row": 0} as application/json'
    except TimeoutError:
        refusal = 408, f"the upload took more than {limits.upload_seconds:.0f} s; send it again"
    except ClientDisconnect:
        refusal = 400, "the upload was broken off"
    raise HTTPException(*refusal)


def _with_bounded_body(request: Request, limit: int) -> Request:
    arrived = 0

    async def receive() -> MutableMapping[str, Any]:
        nonlocal arrived
        message = await request.receive()
        arrived += len(message.get("body", b""))
        if arrived > limit:
            while message.get("more_body", False) and arrived <= _DROPPED * limit:
                message = await request.receive()
                arrived += len(message.get("body", b""))
            raise HTTPException(413, f"the upload may have {as_text(limit)} at most; reduce it")
        return message

    return Request(request.scope, receive)


def decode_upload(content: bytes, max_pixels: int) -> UInt8[np.ndarray, "height width channel"]:
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as file:
            width, height = file.size
            if width * height > max_pixels:
                refusal = 413, f"the photo has {width:,} × {height:,} pixels, more than {max_pixels:,}; reduce it"
            elif max(width, height) > _LONGEST_STRIP * min(width, height):
                refusal = 422, f"a strip of {width:,} × {height:,} pixels is no photo of a thing; send another"
            else:
                return to_pixels(file, None)
    except MemoryError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        refusal = 413, f"the photo has more than {max_pixels:,} pixels; reduce it"
    except UnidentifiedImageError:
        refusal = 415, f"the photo is in none of the formats {', '.join(FORMATS)}"
    # Pillow's readers of broken files raise almost anything: OSError, SyntaxError, ValueError, struct.error, …
    except Exception as error:
        refusal = 422, f"the photo cannot be decoded ({type(error).__name__}: {first_line(error)}); send another"
    raise HTTPException(*refusal)
