"""What one reading of every image keeps of it, and which images show little: blurred, dark, tiny, of an odd shape."""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import imagehash
import numpy as np
from jaxtyping import Bool, UInt8
from PIL import Image
from scipy.ndimage import uniform_filter1d

from aurank.data.checks.findings import Advice, Finding, finding_of
from aurank.data.decode import MAX_PIXELS, decode, quiet_decoding
from aurank.data.manifest import Manifest
from aurank.errors import UserError

HASH_BITS = 64
LOOK_SIDE = 224  # the shorter side at which sharpness is judged at most: about what a network sees
_BLUR_WIDTH = 11  # of the filter of `blur_effect`
# Chosen on training photos of Grocery and drawings of Omniglot, of which fewer than 1 in 2,000 are found.
BLURRED, DARK, TINY, LONG = 0.52, 0.3, 64, 2.5
_ADVICE = {
    "blurred": Advice(
        "An embedding of a blurred image says little of its class, and pulls others there in training.",
        "Look at them; replace them, or leave them out (--fix).",
    ),
    "dark": Advice("A network sees next to nothing in them.", "Brighten or replace them, or leave them out (--fix)."),
    "tiny": Advice(
        "They are enlarged to the size of the others and look blurred.",
        "Fetch them in full size, or leave them out (--fix).",
    ),
    "odd-shapes": Advice(
        "Resized or cropped to a square, most of such an image is squeezed or cut away.",
        "Crop them to what they show, or leave them out (--fix).",
    ),
}
_Result = TypeVar("_Result")


class Look(NamedTuple):
    """What is kept of one image."""

    digest: bytes  # of the decoded pixels, which another compression without loss does not change
    height: int
    width: int
    brightness: float  # of all but the brightest hundredth of the pixels at most, 0 black … 1 white
    blur: float  # 0 sharp … 1 blurred; NaN for an image of one colour
    hash: Bool[np.ndarray, " bit"]


@dataclass(frozen=True, eq=False)
class Looks:
    """The looks of a data set's images by path, and of those that cannot be read why."""

    of: dict[str, Look]
    unreadable: dict[str, UserError]


def look_at_images(manifest: Manifest, paths: Sequence[str], *, max_pixels: int = MAX_PIXELS) -> Looks:
    """Return the looks of the images at some paths, each read once.

    Example:
        >>> from aurank.data import READERS
        >>> looks = look_at_images(digits := READERS["digits"](None), digits.paths[:2])
        >>> [(look.height, look.width) for look in looks.of.values()], looks.unreadable
        ([(8, 8), (8, 8)], {})
    """

    def look(path: str) -> Look | UserError:
        try:
            return look_at(decode(manifest.source, path, None, max_pixels=max_pixels))
        except UserError as error:
            return error

    found = dict(zip(paths, for_each(look, paths), strict=True))
    unreadable = {path: one for path, one in found.items() if isinstance(one, UserError)}
    return Looks({path: one for path, one in found.items() if not isinstance(one, UserError)}, unreadable)


def for_each(read: Callable[[str], _Result], paths: Sequence[str]) -> list[_Result]:
    """Return what a function that reads an image returns for each path, several at a time."""
    with quiet_decoding(), ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        return list(pool.map(read, paths))


def look_at(pixels: UInt8[np.ndarray, "height width channel"]) -> Look:
    """Return the look of an image.

    Example:
        >>> board = np.kron(np.indices((8, 8)).sum(0) % 2, np.full((16, 16), 255)).astype(np.uint8)[..., None]
        >>> sharp, dark = look_at(board), look_at(board // 8)
        >>> sharp.blur < 0.2, sharp.brightness, round(dark.brightness, 2), sharp.hash.shape
        (True, 1.0, 0.12, (64,))
    """
    digest = hashlib.sha256(repr(pixels.shape).encode() + pixels.tobytes()).digest()
    image = grey(pixels)
    height, width = pixels.shape[:2]
    if min(image.size) > LOOK_SIDE:
        factor = LOOK_SIDE / min(image.size)
        image = image.resize((round(image.width * factor), round(image.height * factor)), Image.Resampling.BOX)
    values = np.asarray(image, np.float32)
    brightness = float(np.quantile(values, 0.99)) / 255
    return Look(digest, height, width, brightness, blur_effect(values), imagehash.phash(image).hash.ravel())


def grey(pixels: UInt8[np.ndarray, "height width channel"]) -> Image.Image:
    """Return an image in grey: of more than three channels the first three count, of two the first."""
    channels = pixels.shape[2]
    return Image.fromarray(pixels[..., 0] if channels < 3 else pixels[..., :3]).convert("L")


def blur_effect(values: np.ndarray) -> float:
    """Return how blurred a grey image is, 0 sharp … 1 blurred: how little another blur takes from its edges.

    NaN for an image of one colour, and for one that is smaller than the filter.

    Source: Crété-Roffet, Dolmiere, Ladret, Nicolas, "The Blur Effect", SPIE 2007 (https://hal.science/hal-00232709).

    Example:
        >>> step = np.repeat([0.0, 1.0], 32)[None].repeat(64, 0)
        >>> bool(blur_effect(step) < 0.2 < 0.5 < blur_effect(uniform_filter1d(step, 21)))
        True
    """
    if min(values.shape) <= _BLUR_WIDTH:
        return float("nan")
    effects = []
    for axis in (0, 1):
        edges = np.abs(np.diff(values, axis=axis))
        blurred = np.abs(np.diff(uniform_filter1d(values, _BLUR_WIDTH, axis=axis), axis=axis))
        total = float(edges.sum())
        if total > 0:
            effects.append(1 - float(np.maximum(0, edges - blurred).sum()) / total)
    return max(effects, default=float("nan"))


def examine_quality(looks: Mapping[str, Look], rows: Mapping[str, Sequence[int]]) -> list[Finding]:
    """Return the blurred, dark, tiny and odd-aspect images.

    An image is found where it passes a limit and is far from the median of all, so that a data set which is all small,
    dark or long is left alone.

    Args:
        looks: by path.
        rows: of each path.

    Example:
        >>> bright = Look(b"", 128, 128, 1.0, 0.2, np.zeros(64, bool))
        >>> looks = {"a": bright, "b": bright, "c": bright._replace(brightness=0.1)}
        >>> print(examine_quality(looks, {"a": [0], "b": [1], "c": [2]})[1])
        dark images: 1 (c: brightest parts at 10 %)
    """
    if not looks:
        return []
    paths = list(looks)
    blur = np.array([look.blur for look in looks.values()])
    bright = np.array([look.brightness for look in looks.values()])
    sides = np.array([(look.height, look.width) for look in looks.values()])
    shorter, aspect = sides.min(axis=1), sides.max(axis=1) / sides.min(axis=1)
    usual_blur = float(np.median(blur[np.isfinite(blur)])) if np.isfinite(blur).any() else 0.0
    is_blurred = np.nan_to_num(blur) > max(BLURRED, usual_blur + 0.1)
    is_dark = bright < min(DARK, float(np.median(bright)) / 2)
    is_tiny = shorter < min(TINY, float(np.median(shorter)) / 2)
    is_long = aspect > max(LONG, 1.5 * float(np.median(aspect)))

    def found(kind: str, check: str, chosen: np.ndarray, words: Callable[[int], str]) -> Finding:
        places = np.flatnonzero(chosen).tolist()
        groups = [rows[paths[place]] for place in places]
        names = [f"{paths[place]}: {words(place)}" for place in places]
        drop = [row for group in groups for row in group]
        return finding_of(check, names, _ADVICE[kind], rows=groups, fix=kind, drop=drop)

    return [
        found("blurred", "blurred images", is_blurred, lambda at: f"blur {blur[at]:.2f}, usual {usual_blur:.2f}"),
        found("dark", "dark images", is_dark, lambda at: f"brightest parts at {100 * bright[at]:.0f} %"),
        found("tiny", "tiny images", is_tiny, lambda at: f"{sides[at, 1]} × {sides[at, 0]} pixels"),
        found("odd-shapes", "images of an odd shape", is_long, lambda at: f"{sides[at, 1]} × {sides[at, 0]} pixels"),
    ]
