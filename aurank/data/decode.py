"""The bytes of one image file to a uint8 array, whatever the file's format and colours."""

import contextlib
import io
import threading
import warnings
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import UInt8
from PIL import ExifTags, Image, ImageOps, PngImagePlugin, TiffImagePlugin, UnidentifiedImageError

from aurank.data.sources import ArraySource, ImageSource
from aurank.errors import UserError

# Pillow has the endings, as it may be built without a format. Left out are what it cannot open (.pdf), opens by another
# program (.eps) or only recognises (.h5, .mpg), and numbers in floating point (.pfm).
_FORMATS = ("AVIF", "BMP", "DIB", "GIF", "JPEG", "JPEG2000", "MPO", "PNG", "PPM", "QOI", "TGA", "TIFF", "WEBP")
Image.preinit()  # before all others, so that the usual formats are tried first
_ENDINGS = {suffix for suffix, kind in Image.registered_extensions().items() if kind in _FORMATS}
IMAGE_SUFFIXES = tuple(sorted({".npy", *_ENDINGS} - {".pfm"}))
OR_SKIP = ", or set data.on_error=skip"
MAX_PIXELS = 128_000_000  # 384 MB decoded
_LONGEST_STRIP = 400  # its shorter side brought to 512 pixels, such a strip has as many as the largest photo
# NumPy parses the header as Python code, which in threads at once can fail with a SystemError under Python 3.11.
_NPY_HEADER = threading.Lock()
_ALPHA_MODES = ("RGBA", "LA", "PA", "RGBa", "La")
_DEEP_MODES = ("I", "I;16", "I;16L", "I;16B", "I;16N")
_GREY_MODES = ("1", "L", *_DEEP_MODES)
_SIGNED = 2  # TIFF's word for it
_COLOURS = {1: "L", 3: "RGB", 4: "RGBA"}
_SCALES = (8, 4, 2)  # parts of its sides that a JPEG can be decoded at
_SMALL = 2**16  # pixels of a photo that is always decoded whole: there is nothing to win

# Pillow refuses a PNG of which one text, or the colour profile, is over 1 MB; all its texts together may have 64 MB.
PngImagePlugin.MAX_TEXT_CHUNK = PngImagePlugin.MAX_TEXT_MEMORY

Pixels = UInt8[np.ndarray, "_ _ channel"]


def decode(
    source: ImageSource,
    path: str,
    channels: int | None,
    *,
    max_pixels: int = MAX_PIXELS,
    least_side: int | None = None,
    on_white: bool = False,
) -> Pixels:
    """Return the pixels of one image, upright, as 1 (grey), 3 (RGB) or 4 (RGBA) channels; None keeps the file's own.

    1-bit, grey, 16-bit, palette, CMYK and other files are converted; of deep grey values the upper 8 bits are taken of
    the range that the file declares; what is transparent is laid on white unless 4 channels are asked for; the EXIF
    orientation is applied; of an animation the first frame is taken. An .npy file holds a uint8 array [height, width]
    or [height, width, channel] with any number of channels.

    Args:
        least_side: a JPEG is decoded at an eighth, a fourth or a half of its size where that divides it and leaves
            so many pixels of its shorter side; None: whole.
        on_white: with None channels, what is transparent in a file is laid on white too; an array stays as it is.

    Raises:
        UserError: names the file when it is missing, corrupt, cannot be converted, has more than `max_pixels`, or is so
            long a strip that its shorter side cannot be enlarged; no pixel is decoded then.
    """
    array = source.pixels(path) if isinstance(source, ArraySource) else None
    data = source.read_bytes(path) if array is None else b""
    try:
        if array is not None or data.startswith(np.lib.format.MAGIC_PREFIX):
            if array is None:
                with _NPY_HEADER:
                    array = np.load(io.BytesIO(data), allow_pickle=False)
            if array.dtype != np.uint8 or array.ndim not in (2, 3) or not array.size:
                raise UserError(f"expected a uint8 array [height, width(, channel)], got {array.dtype} {array.shape}")
            check_size(array.shape[1], array.shape[0], max_pixels)
            return _match_channels(np.array(array if array.ndim == 3 else array[:, :, None], order="C"), channels)
        with Image.open(io.BytesIO(data)) as file:
            check_size(*file.size, max_pixels)
            if least_side is not None and file.format == "JPEG" and file.width * file.height > _SMALL:
                # The smallest scale that leaves enough of it and no part of a pixel at its edges.
                fit = (
                    scale
                    for scale in _SCALES
                    if min(file.size) >= scale * least_side and not any(side % scale for side in file.size)
                )
                if scale := next(fit, None):
                    file.draft(None, (file.width // scale, file.height // scale))
            return to_pixels(file, channels, on_white=on_white)
    except MemoryError:
        raise
    except UserError as error:
        raise UserError(f"image {path!r} in {source.where}: {error}") from None
    # Pillow's readers of broken files raise almost anything: OSError, SyntaxError, ValueError, struct.error, …
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        if isinstance(error, UnidentifiedImageError):
            why = f"its {len(data):,} bytes are in no format of Pillow"
    raise UserError(
        f"image {path!r} in {source.where} cannot be decoded ({why}); replace it, or set data.on_error=skip"
    )


def crop(pixels: Pixels, box: Sequence[int], where: str) -> Pixels:
    """Return the part of an image within a box x1, y1, x2, y2, as far as the image has it; x2 and y2 are outside."""
    x1, y1, x2, y2 = box
    part = pixels[y1:y2, x1:x2]
    if not part.size:
        height, width = pixels.shape[:2]
        none = f"of which none lies in the box {x1},{y1},{x2},{y2}; mend the box (x1,y1,x2,y2 in pixels){OR_SKIP}"
        raise UserError(f"image {where!r} has {width} × {height} pixels, {none}")
    return np.ascontiguousarray(part)


@contextlib.contextmanager
def quiet_decoding() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\.")
        yield


def check_size(width: int, height: int, max_pixels: int) -> None:
    size = f"{width:,} × {height:,} pixels"
    if width * height > max_pixels:
        problem = f"{size} are more than data.max_pixels={max_pixels:,}; raise it, reduce the image"
    elif max(width, height) > _LONGEST_STRIP * min(width, height):
        problem = f"a strip of {size}, over {_LONGEST_STRIP} times as long as wide; remove it"
    else:
        return
    raise UserError(problem + OR_SKIP)


def to_pixels(file: Image.Image, channels: int | None, *, on_white: bool = False) -> Pixels:
    grey_range = _grey_range(file)  # before Pillow closes the file
    file.load()
    is_turned = file.getexif().get(ExifTags.Base.Orientation, 1) != 1
    image: Image.Image = ImageOps.exif_transpose(file) if is_turned else file  # which copies
    transparent = image.mode in _ALPHA_MODES or "transparency" in image.info
    if channels is None:
        channels = (3 if on_white else 4) if transparent else 1 if image.mode in _GREY_MODES else 3
    if channels not in _COLOURS:
        kind = f"a {file.format} file" if file.format else "an image of Pillow"
        raise UserError(f"{kind} gives 1, 3 or 4 channels, not {channels}; store .npy files instead")
    if grey_range is not None:  # Pillow's own conversion would clip 16-bit values at 255.
        least, bits = grey_range
        values = np.asarray(image).astype(np.int32) - least
        image = Image.fromarray(np.asarray(values % 2**bits * 256 >> bits, dtype=np.uint8))
    return _convert(image, channels, transparent=transparent)


def _grey_range(file: Image.Image) -> tuple[int, int] | None:
    """Return the least grey value that a file declares and the bits of its range; None: its values are 0 to 255."""
    least, bits, is_deep = 0, 16, file.mode in _DEEP_MODES
    if isinstance(file, TiffImagePlugin.TiffImageFile) and (is_deep or file.mode == "L"):
        bits = file.tag_v2.get(TiffImagePlugin.BITSPERSAMPLE, (1,))[0]
        if file.tag_v2.get(TiffImagePlugin.SAMPLEFORMAT, (1,))[0] == _SIGNED:
            least = -(2 ** (bits - 1))
    if file.mode == "F" or bits > 16 or (file.mode == "I" and file.format not in ("PNG", "PPM", "TIFF")):
        kind = "floating-point numbers" if file.mode == "F" else "integers of 32 bits (mode I)"
        raise UserError(f"{kind} do not say which value is white; convert the image to 8 or 16 bits first")
    return (least, bits) if is_deep or least else None


def _convert(image: Image.Image, channels: int, *, transparent: bool) -> Pixels:
    if transparent:
        image = image.convert("RGBA")
        if channels != 4:
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    pixels = np.array(image if image.mode == _COLOURS[channels] else image.convert(_COLOURS[channels]))
    return pixels if pixels.ndim == 3 else pixels[:, :, None]


def _match_channels(array: Pixels, channels: int | None) -> UInt8[np.ndarray, "_ _ new"]:
    old = array.shape[2]
    if channels is None or channels == old:
        return array
    if old not in _COLOURS or channels not in _COLOURS:
        remedy = f"set data.channels={old}"
        if array.shape[0] in _COLOURS:
            remedy = (
                f"turn [channel, height, width] into [height, width, channel]: array.transpose(1, 2, 0), or {remedy}"
            )
        raise UserError(f"an array of {old} channels cannot become {channels}; {remedy}")
    return _convert(Image.fromarray(array[:, :, 0] if old == 1 else array), channels, transparent=old == 4)
