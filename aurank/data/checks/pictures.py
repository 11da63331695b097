"""What only the pixels show: unreadable and poor images, and images that stand in a data set twice, perhaps changed."""

import hashlib
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int8, Int64
from PIL import Image, ImageCms
from scipy.fft import dctn
from scipy.ndimage import uniform_filter1d
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from aurank.data.checks.findings import SPLIT_PAIRS, Finding, finding_of, same_thing, stand_alike, surplus
from aurank.data.decode import Pixels, decode, quiet_decoding
from aurank.data.loader import made_of_each
from aurank.data.manifest import Manifest
from aurank.errors import UserError

LOOK_SIDE = 224  # the shorter side at which sharpness is judged at most: about what a network sees
_BLUR_WIDTH = 11  # of the filter of `blur_effect`
# Chosen on training photos of Grocery and drawings of Omniglot, of which fewer than 1 in 2,000 are found.
BLURRED, DARK, TINY, LONG = 0.52, 0.3, 64, 2.5
# Copies have about the same coarse structure and colours. Chosen on changed copies of training photos of Grocery, of
# emoji and of drawings of Omniglot; docs/doctor.md has what they find.
HASH_BITS_APART = 12  # at most, of 64
COLOURS_APART = 16.0  # at most, in every cell: a distance in Lab; 15 % more or less light is up to 14
CELLS = 8  # at each side of an image
INSET = 0.03  # of each side, without which an image is compared too, for copies that are cropped
LEAST_SIDE = 32  # pixels; smaller pictures of one kind are too alike to tell copies
_ROWS, _COLUMNS = 16, 4096  # hashes compared at a time: what they take stays in the cache
_KEPT = 1024  # pairs of them, until the closest are picked
_PARTS = 8  # blocks of them that a process is given at a time
_TOLD = 32  # images that a process looks at between two words of progress


class Look(NamedTuple):
    digest: bytes  # of the decoded pixels, which another compression without loss does not change
    height: int
    width: int
    brightness: float  # of all but the brightest hundredth of the pixels at most, 0 black … 1 white
    blur: float  # 0 sharp … 1 blurred; NaN for an image of one colour
    hash: Bool[np.ndarray, "64"]  # of the structure
    colours: Int8[np.ndarray, "2 cell 3"]  # in Lab, of the image and of all but its margin


def examine_contents(
    manifest: Manifest,
    labels: Int64[np.ndarray, " image"],
    missing: set[str],
    *,
    max_pixels: int,
    candidates: Int64[np.ndarray, "pair 2"] | None = None,
    tell: Callable[[str, int, int], object],
) -> list[Finding]:
    """Return the unreadable, repeated, nearly repeated, blurred, dark, tiny and odd images."""
    rows: defaultdict[str, list[int]] = defaultdict(list)
    for row, path in enumerate(manifest.paths):
        if path not in missing:
            rows[path].append(row)

    def look(path: str) -> Look | UserError:
        try:
            return look_at(decode(manifest.source, path, None, max_pixels=max_pixels, on_white=True))
        except UserError as error:
            return error

    looks: dict[str, Look] = {}
    unreadable: dict[str, str] = {}
    same: defaultdict[bytes, list[str]] = defaultdict(list)
    with quiet_decoding():
        each = made_of_each(look, list(rows), at_once=_TOLD)
        for number, (path, seen) in enumerate(zip(rows, each, strict=True), 1):
            if isinstance(seen, UserError):
                unreadable[path] = str(seen)
            else:
                looks[path] = seen
                same[seen.digest].append(path)
            if number % _TOLD == 0 or number == len(rows):
                tell("looking at images", number, len(rows))
    several = [looks[paths[0]] for paths in same.values()]
    compared = [look for look in several if min(look.height, look.width) >= LEAST_SIDE]
    hashes = np.array([look.hash for look in compared], np.bool_).reshape(-1, 64)
    colours = np.array([look.colours for look in compared], np.int8).reshape(-1, 2, CELLS**2, 3)
    pairs = close_pictures(hashes, colours, progress=partial(tell, "comparing images"))
    if candidates is not None:
        position = {look.digest: at for at, look in enumerate(compared)}
        positions = [position.get(looks[path].digest, -1) if path in looks else -1 for path in manifest.paths]
        named = np.sort(np.array(positions, np.int64)[candidates], axis=1)
        named = named[(named[:, 0] >= 0) & (named[:, 0] < named[:, 1])]
        pairs = np.concatenate([pairs, named[of_equal_colours(colours, named)]])
    regions = manifest.regions

    def differ(held: Sequence[int]) -> bool:
        """Return whether one image is listed in two splits or classes."""
        is_one = manifest.texts is None and len({regions[row] for row in held}) == 1
        return is_one and len({(manifest.splits[row], labels[row]) for row in held}) > 1

    def listed(paths: Iterable[str]) -> list[int]:
        return sorted(itertools.chain(*(rows[path] for path in paths)))

    # One path that is listed again in the same split and class is a duplicate path, which has its own check.
    exact = [listed(alike) for alike in same.values() if len(alike) > 1 or differ(rows[alike[0]])]
    changed = [listed(path for at in group for path in same[compared[at].digest]) for group in _linked(pairs)]
    return [
        finding_of("unreadable", [*unreadable.values()], [rows[path] for path in unreadable]),
        *_of_groups(manifest, labels, "same image", exact),
        *_of_groups(manifest, labels, "nearly the same image", changed),
        *examine_quality(looks, rows),
    ]


# -- poor images ------------------------------------------------------------------------------------------------------


def look_at(pixels: Pixels) -> Look:
    """Return what is compared and judged of an image: of more than three channels the first three, of two the first."""
    digest = hashlib.sha256(repr(pixels.shape).encode() + pixels.tobytes()).digest()
    whole = Image.fromarray(pixels[..., 0] if pixels.shape[2] < 3 else pixels[..., :3])
    image = whole.convert("L")
    height, width = pixels.shape[:2]
    if min(image.size) > LOOK_SIDE:
        factor = LOOK_SIDE / min(image.size)
        image = image.resize((round(image.width * factor), round(image.height * factor)), Image.Resampling.BOX)
    values = np.asarray(image, np.float32)
    brightness = float(np.quantile(values, 0.99)) / 255
    return Look(digest, height, width, brightness, blur_effect(values), hash_of(image), colours_of(whole))


def hash_of(image: Image.Image) -> Bool[np.ndarray, "64"]:
    """Return the perceptual hash of a grey image: which of its 64 slowest waves are above their median."""
    waves = dctn(np.asarray(image.resize((32, 32), Image.Resampling.BOX), np.float32))[:8, :8]
    return np.ravel(waves > np.median(waves))


def colours_of(image: Image.Image) -> Int8[np.ndarray, "2 cell 3"]:
    """Return the mean colours of the cells of a coarse grid over an image, and over all but its margin, in Lab."""
    image = image.convert("RGB")
    colours = np.empty((2, CELLS**2, 3), np.int8)
    for part, inset in zip(colours, (0, INSET), strict=True):
        box = inset * image.width, inset * image.height, (1 - inset) * image.width, (1 - inset) * image.height
        cells = image.resize((CELLS, CELLS), Image.Resampling.BOX, box)
        encoded = np.asarray(ImageCms.applyTransform(cells, _to_lab())).reshape(-1, 3)
        part[:, 0], part[:, 1:] = np.round(encoded[:, 0] / 2.55), encoded[:, 1:].view(np.int8)  # lightness is 0 … 255
    return colours


@cache
def _to_lab() -> ImageCms.ImageCmsTransform:
    profiles = ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB")
    return ImageCms.buildTransform(*profiles, "RGB", "LAB")


def blur_effect(values: np.ndarray) -> float:
    """Return how blurred a grey image is, 0 sharp … 1 blurred: how little another blur takes from its edges.

    Source: Crété-Roffet, Dolmiere, Ladret, Nicolas, "The Blur Effect", SPIE 2007 (https://hal.science/hal-00232709).
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
    """Return the images that pass a limit and are far from the median of all: an all dark data set is left alone."""
    if not looks:
        return []
    paths = list(looks)
    blur = np.array([look.blur for look in looks.values()])
    bright = np.array([look.brightness for look in looks.values()])
    sides = np.array([(look.height, look.width) for look in looks.values()])
    shorter, aspect = sides.min(axis=1), sides.max(axis=1) / sides.min(axis=1)
    usual = float(np.median(blur[np.isfinite(blur)])) if np.isfinite(blur).any() else 0.0

    def size(at: int) -> str:
        return f"{sides[at, 1]} × {sides[at, 0]} pixels"

    def of(kind: str, is_poor: Bool[np.ndarray, " image"], words: Callable[[int], str]) -> Finding:
        chosen = np.flatnonzero(is_poor).tolist()
        names = [f"{paths[place]}: {words(place)}" for place in chosen]
        return finding_of(kind, names, [rows[paths[place]] for place in chosen])

    dark = bright < min(DARK, float(np.median(bright)) / 2)
    return [
        of(
            "blurred",
            np.nan_to_num(blur) > max(BLURRED, usual + 0.1),
            lambda at: f"blur {blur[at]:.2f}, usual {usual:.2f}",
        ),
        of("dark", dark, lambda at: f"brightest parts at {100 * bright[at]:.0f} %"),
        of("tiny", shorter < min(TINY, float(np.median(shorter)) / 2), size),
        of("odd_shape", aspect > max(LONG, 1.5 * float(np.median(aspect))), size),
    ]


# -- repeated images --------------------------------------------------------------------------------------------------


def _of_groups(
    manifest: Manifest, labels: Int64[np.ndarray, " image"], what: str, groups: list[list[int]]
) -> list[Finding]:
    texts = [same_thing([manifest.paths[row] for row in rows]) for rows in groups]
    splits = [set(manifest.splits[rows].tolist()) for rows in groups]
    asks, answers = manifest.is_query & ~manifest.is_gallery, manifest.is_gallery & ~manifest.is_query
    across = [bool(asks[rows].any() and answers[rows].any()) for rows in groups]

    def of(kind: str, check: str, chosen: Iterable[bool]) -> Finding:
        selected = list(chosen)
        held = list(itertools.compress(groups, selected))
        drop = [row for rows in held for row in _left_out(manifest, labels, rows, kind)]
        return finding_of(kind, list(itertools.compress(texts, selected)), held, drop, check=check)

    in_two = [
        of("splits", f"{what} in {one} and {other}", ({one, other} <= within for within in splits))
        for one, other in SPLIT_PAIRS
    ]
    conflicts = (len(set(labels[rows].tolist()) - {-1}) > 1 for rows in groups)
    within = (len(held) == 1 and not sides for held, sides in zip(splits, across, strict=True))
    return [
        *in_two,
        of("sides", f"{what} in query and gallery", across),
        of("classes", f"{what} under two classes", conflicts),
        of("within", f"{what} more than once in a split", within),
    ]


def _left_out(manifest: Manifest, labels: Int64[np.ndarray, " image"], rows: Sequence[int], kind: str) -> list[int]:
    if kind == "splits":
        return surplus(manifest, rows)
    if kind == "within":  # two classes are no repetition: nobody knows which is right
        of_class = [[row for row in rows if labels[row] == label] for label in np.unique(labels[rows])]
        return [row for held in of_class for row in surplus(manifest, held)]
    known = [row for row in rows if labels[row] >= 0]
    strangers = ((row, [other for other in known if labels[other] != labels[row]]) for row in known)
    return [row for row, others in strangers if any(stand_alike(manifest, row, other) for other in others)]


def _linked(pairs: Int64[np.ndarray, "pair 2"]) -> list[list[int]]:
    """Return the groups of images that pairs link."""
    images, position = np.unique(pairs, return_inverse=True)
    first, second = position.reshape(-1, 2).T
    links = coo_array((np.ones(len(first), np.int8), (first, second)), shape=(len(images), len(images)))
    _, component = connected_components(links, directed=False)
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for image, group in zip(images.tolist(), component.tolist(), strict=True):
        groups[group].append(image)
    return list(groups.values())


def of_equal_colours(
    colours: Int8[np.ndarray, "image 2 cell 3"], pairs: Int64[np.ndarray, "pair 2"]
) -> Bool[np.ndarray, " pair"]:
    """Return whether the colours of both images of each pair, or of one and of the other's inner part, are alike."""
    first, second = colours[pairs[:, 0]].astype(np.int16), colours[pairs[:, 1]]
    alike = np.zeros(len(pairs), np.bool_)
    for part, other in ((0, 0), (1, 0), (0, 1)):
        apart = np.square(first[:, part] - second[:, other], dtype=np.int32).sum(axis=2)
        alike |= (apart <= COLOURS_APART**2).all(axis=1)
    return alike


def close_pictures(
    hashes: Bool[np.ndarray, "image bit"],
    colours: Int8[np.ndarray, "image 2 cell 3"],
    *,
    at_most: int = HASH_BITS_APART,
    k: int = 16,
    progress: Callable[[int, int], object],
) -> Int64[np.ndarray, "pair 2"]:
    """Return the pairs of images of equal colours whose hashes differ in few bits: for each image the k closest."""
    codes = np.zeros((len(hashes), 8), np.uint8)
    codes[:, : (hashes.shape[1] + 7) // 8] = np.packbits(hashes, axis=1)
    numbers = codes.view(np.uint64)[:, 0]

    def closest(start: int) -> Int64[np.ndarray, "close 2"]:
        rows = numbers[start : start + _ROWS, None]
        own, row = start + np.arange(len(rows)), np.arange(len(rows))
        bound = np.full(rows.shape, at_most + 1, np.uint8)  # what is not below is not among the k closest
        found, waiting = np.zeros((3, 0), np.int64), list[Int64[np.ndarray, "3 close"]]()
        for there in range(0, len(numbers), _COLUMNS):
            apart = np.bitwise_count(rows ^ numbers[there : there + _COLUMNS])
            place = np.flatnonzero(apart < bound)
            at, other = np.divmod(place, apart.shape[1])
            block = np.stack([at, apart.ravel()[place], other + there])
            block = block[:, own[at] != block[2]]
            waiting.append(block[:, of_equal_colours(colours, np.stack([own[block[0]], block[2]], axis=1))])
            if sum(each.shape[1] for each in waiting) > _KEPT or there + _COLUMNS >= len(numbers):
                found = np.concatenate([found, *waiting], axis=1)
                found = found[:, np.lexsort(found[::-1])]
                found = found[:, np.arange(found.shape[1]) - np.searchsorted(found[0], found[0]) < k]
                is_full = np.bincount(found[0], minlength=len(rows)) == k
                bound[is_full, 0] = found[1, np.searchsorted(found[0], row[is_full], side="right") - 1]
                waiting.clear()
        return np.stack([own[found[0]], found[2]], axis=1)

    parts, starts = [np.zeros((0, 2), np.int64)], range(0, len(numbers), _ROWS)
    for start, part in zip(starts, made_of_each(closest, starts, at_once=_PARTS), strict=True):
        parts.append(part)
        progress(min(start + _ROWS, len(numbers)), len(numbers))
    pairs = np.sort(np.concatenate(parts), axis=1)
    return np.stack(np.divmod(np.unique(pairs[:, 0] * 2**31 + pairs[:, 1]), 2**31), axis=1)  # each once
