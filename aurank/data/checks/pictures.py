"""What only the pixels show: unreadable and poor images, and images that stand in a data set twice, perhaps changed."""

import hashlib
import itertools
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import NamedTuple

import imagehash
import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64, UInt8
from PIL import Image
from scipy.ndimage import uniform_filter1d
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor
from torch.nn import functional

from aurank.data.checks.findings import SPLIT_PAIRS, Finding, finding_of, stand_alike, surplus
from aurank.data.decode import Pixels, decode, quiet_decoding
from aurank.data.loader import made_of_each
from aurank.data.manifest import Manifest
from aurank.errors import UserError

LOOK_SIDE = 224  # the shorter side at which sharpness is judged at most: about what a network sees
_BLUR_WIDTH = 11  # of the filter of `blur_effect`
# Chosen on training photos of Grocery and drawings of Omniglot, of which fewer than 1 in 2,000 are found.
BLURRED, DARK, TINY, LONG = 0.52, 0.3, 64, 2.5
HASH_BITS, HASH_BITS_APART = 64, 16  # a copy cropped by 6 % at each side has up to 20, most have fewer
ALIKE = 0.95  # least likeness; of copies all but 1 in 200 have more, of pairs of different photos 1 in 100,000
LEAST_SIDE = 32  # pixels; smaller pictures of one kind are too alike to tell copies
# Of the squares that are laid over each other, coarse to fine, and the likeness below which a pair is given up.
SIZES = {16: 0.85, 32: 0.92, 64: 0.0}
SIDE = 64  # of the finest
_STEPS = 6  # of Gauss and Newton at each size
_LARGEST_SCALE, _LARGEST_SHIFT = 1.18, 0.2  # of one image against the other; a shift of 1 is half a side
_ROWS, _COLUMNS = 16, 4096  # hashes compared at a time: what they take stays in the cache
_KEPT = 1024  # pairs of them, until the closest are picked
_LAID, _PARTS = 512, 8  # pairs of images laid over each other at a time, and such parts that a process is given
_TOLD = 32  # images that a process looks at between two words of progress


class Look(NamedTuple):
    digest: bytes  # of the decoded pixels, which another compression without loss does not change
    height: int
    width: int
    brightness: float  # of all but the brightest hundredth of the pixels at most, 0 black … 1 white
    blur: float  # 0 sharp … 1 blurred; NaN for an image of one colour
    hash: Bool[np.ndarray, " bit"]


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

    def look(path: str) -> tuple[Look, UInt8[np.ndarray, "side side"]] | UserError:
        try:
            pixels = decode(manifest.source, path, None, max_pixels=max_pixels)
            return look_at(pixels), square(_grey(pixels))
        except UserError as error:
            return error

    looks: dict[str, Look] = {}
    unreadable: dict[str, str] = {}
    place: dict[bytes, int] = {}  # of the square of each digest; small images have none
    with tempfile.TemporaryFile() as file:
        with quiet_decoding():
            each = made_of_each(look, list(rows), at_once=_TOLD)
            for number, (path, found) in enumerate(zip(rows, each, strict=True), 1):
                if isinstance(found, UserError):
                    unreadable[path] = str(found)
                else:
                    seen, image = found
                    looks[path] = seen
                    if min(seen.height, seen.width) >= LEAST_SIDE and seen.digest not in place:
                        place[seen.digest] = len(place)
                        file.write(image.tobytes())
                if number % _TOLD == 0 or number == len(rows):
                    tell("looking at images", number, len(rows))
        file.flush()

        def squares(at: Int64[np.ndarray, " chosen"]) -> UInt8[np.ndarray, "chosen side side"]:
            # Mapped anew each time: a page that was read counts as this process's memory until the mapping goes.
            return np.array(np.memmap(file, np.uint8, "r", shape=(len(place), SIDE, SIDE))[at])

        same: defaultdict[bytes, list[str]] = defaultdict(list)
        for path, seen in looks.items():
            same[seen.digest].append(path)
        named = np.zeros((0, 2), np.int64)
        if candidates is not None:
            digests = [looks[path].digest if path in looks else b"" for path in manifest.paths]
            named = np.array([place.get(digest, -1) for digest in digests], np.int64)[candidates]
        hashes = np.array([looks[same[digest][0]].hash for digest in place], np.bool_).reshape(-1, HASH_BITS)
        close = close_hashes(hashes, at_most=HASH_BITS_APART, progress=partial(tell, "comparing hashes"))
        near = _showing_one_picture(np.concatenate([close, named]), squares, partial(tell, "comparing pictures"))
    regions = manifest.regions

    def differ(held: Sequence[int]) -> bool:
        """Return whether one image is listed in two splits or classes."""
        is_one = manifest.texts is None and len({regions[row] for row in held}) == 1
        return is_one and len({(manifest.splits[row], labels[row]) for row in held}) > 1

    def listed(paths: Iterable[str]) -> list[int]:
        return sorted(itertools.chain(*(rows[path] for path in paths)))

    # One path that is listed again in the same split and class is a duplicate path, which has its own check.
    exact = [listed(alike) for alike in same.values() if len(alike) > 1 or differ(rows[alike[0]])]
    digest = list(place)
    changed = [listed(path for at in group for path in same[digest[at]]) for group in near]
    return [
        finding_of("unreadable", [*unreadable.values()], [rows[path] for path in unreadable]),
        *_of_groups(manifest, labels, "same image", exact),
        *_of_groups(manifest, labels, "nearly the same image", changed),
        *examine_quality(looks, rows),
    ]


# -- poor images ------------------------------------------------------------------------------------------------------


def look_at(pixels: Pixels) -> Look:
    digest = hashlib.sha256(repr(pixels.shape).encode() + pixels.tobytes()).digest()
    image = _grey(pixels)
    height, width = pixels.shape[:2]
    if min(image.size) > LOOK_SIDE:
        factor = LOOK_SIDE / min(image.size)
        image = image.resize((round(image.width * factor), round(image.height * factor)), Image.Resampling.BOX)
    values = np.asarray(image, np.float32)
    brightness = float(np.quantile(values, 0.99)) / 255
    return Look(digest, height, width, brightness, blur_effect(values), imagehash.phash(image).hash.ravel())


def _grey(pixels: Pixels) -> Image.Image:
    """Return an image in grey: of more than three channels the first three count, of two the first."""
    return Image.fromarray(pixels[..., 0] if pixels.shape[2] < 3 else pixels[..., :3]).convert("L")


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
    texts = [" = ".join(manifest.paths[row] for row in rows) for rows in groups]
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


def _showing_one_picture(
    pairs: Int64[np.ndarray, "pair 2"], squares: Callable[[np.ndarray], np.ndarray], progress: Callable[..., object]
) -> list[list[int]]:
    """Return groups of images, by their places in `squares`, that show one picture; -1 in a pair is none."""
    pairs = np.sort(pairs, axis=1)
    pairs = _each_once(pairs[(pairs[:, 0] >= 0) & (pairs[:, 0] < pairs[:, 1])])

    def linked(start: int) -> Int64[np.ndarray, "alike 2"]:
        held = pairs[start : start + _LAID]
        return held[likeness(squares(held[:, 0]), squares(held[:, 1])) >= ALIKE]

    parts = _in_parts(linked, len(pairs), _LAID, progress)
    found, place = np.unique(parts, return_inverse=True)
    first, second = place.reshape(-1, 2).T
    links = coo_array((np.ones(len(first), np.int8), (first, second)), shape=(len(found), len(found)))
    _, component = connected_components(links, directed=False)
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for at, group in zip(found.tolist(), component.tolist(), strict=True):
        groups[group].append(at)
    return list(groups.values())


def _in_parts(
    make: Callable[[int], Int64[np.ndarray, "found 2"]], count: int, step: int, progress: Callable[[int, int], object]
) -> Int64[np.ndarray, "pair 2"]:
    parts, starts = [np.zeros((0, 2), np.int64)], range(0, count, step)
    for start, part in zip(starts, made_of_each(make, starts, at_once=_PARTS), strict=True):
        parts.append(part)
        progress(min(start + step, count), count)
    return np.concatenate(parts)


def _each_once(pairs: Int64[np.ndarray, "pair 2"]) -> Int64[np.ndarray, "distinct 2"]:
    """Return sorted pairs of numbers below 2³¹, each once."""
    return np.stack(np.divmod(np.unique(pairs[:, 0] * 2**31 + pairs[:, 1]), 2**31), axis=1)


def close_hashes(
    hashes: Bool[np.ndarray, "image bit"], *, at_most: int, k: int = 16, progress: Callable[[int, int], object]
) -> Int64[np.ndarray, "pair 2"]:
    """Return the pairs of images whose hashes of 64 bits differ in few: for each image the k closest."""
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
            waiting.append(np.stack([at, apart.ravel()[place], other + there]))
            if sum(each.shape[1] for each in waiting) > _KEPT or there + _COLUMNS >= len(numbers):
                found = np.concatenate([found, *waiting], axis=1)
                found = found[:, own[found[0]] != found[2]]
                found = found[:, np.lexsort(found[::-1])]
                found = found[:, np.arange(found.shape[1]) - np.searchsorted(found[0], found[0]) < k]
                is_full = np.bincount(found[0], minlength=len(rows)) == k
                bound[is_full, 0] = found[1, np.searchsorted(found[0], row[is_full], side="right") - 1]
                waiting.clear()
        return np.stack([own[found[0]], found[2]], axis=1)

    return _each_once(np.sort(_in_parts(closest, len(numbers), _ROWS, progress), axis=1))


def square(image: Image.Image) -> UInt8[np.ndarray, "side side"]:
    """Return a grey image as the square that `likeness` takes."""
    smooth = Image.Resampling.BOX if min(image.size) >= SIDE else Image.Resampling.BILINEAR
    return np.array(image.resize((SIDE, SIDE), smooth))  # a copy that torch may write to


def likeness(
    one: UInt8[np.ndarray, "pair side side"], other: UInt8[np.ndarray, "pair side side"]
) -> Float64[np.ndarray, " pair"]:
    """Return how alike the pictures of each pair are once one is shifted and scaled onto the other, at most 1.

    Source: the least squares of Lucas, Kanade, IJCAI 1981, with gain and offset free, coarse to fine.
    """
    first, second = (torch.from_numpy(side).float()[:, None] for side in (one, other))
    found, alive = torch.zeros(len(first)), torch.arange(len(first))
    scale, shift = torch.ones(len(first), 2), torch.zeros(len(first), 2)
    for size, floor in SIZES.items():
        small, sought = (functional.avg_pool2d(image, SIDE // size) for image in (first, second))
        sloped = _with_slopes(sought)
        for _ in range(_STEPS):
            scale, shift = _improved(small, sloped, scale, shift)
        unmoved = torch.ones_like(scale), torch.zeros_like(shift)
        agreement = torch.maximum(_agreement(small, sought, scale, shift), _agreement(small, sought, *unmoved))
        found[alive] = agreement
        alive, first, second, scale, shift = (held[agreement >= floor] for held in (alive, first, second, scale, shift))
    return found.double().numpy()


@cache
def _places(size: int) -> Tensor:
    return (torch.arange(size) + 0.5) * (2 / size) - 1


def _sampled(image: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """Return an image [pair, channel, side, side] as it looks scaled and shifted, and 1 for pixels it covers, or 0."""
    size = image.shape[-1]
    x, y = (_places(size) * scale[:, axis, None] + shift[:, axis, None] for axis in (0, 1))
    where = torch.stack([x[:, None].expand(-1, size, size), y[:, :, None].expand(-1, size, size)], -1)
    moved = functional.grid_sample(image, where, padding_mode="border", align_corners=False)
    return moved, (x.abs() <= 1).float()[:, None] * (y.abs() <= 1).float()[:, :, None]


def _with_slopes(image: Tensor) -> Tensor:
    step = image.shape[-1] / 4  # a central difference over two pixels, in units of half a side
    padded = functional.pad(image, (1, 1, 1, 1), mode="replicate")
    across = (padded[:, :, 1:-1, 2:] - padded[:, :, 1:-1, :-2]) * step
    down = (padded[:, :, 2:, 1:-1] - padded[:, :, :-2, 1:-1]) * step
    return torch.cat([image, across, down], 1)


def _improved(one: Tensor, sloped: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """Return scale and shift after one step: the least squares of one × gain + offset against the moved other."""
    seen, covered = _sampled(sloped, scale, shift)
    columns = torch.empty(len(one), 7, *one.shape[2:])
    columns[:, 0], columns[:, 1] = one[:, 0] * covered, covered
    columns[:, 4:] = seen * covered[:, None]  # moved, across, down
    columns[:, 2] = columns[:, 5] * _places(one.shape[-1])
    columns[:, 3] = columns[:, 6] * _places(one.shape[-1])[:, None]
    sums = (columns.flatten(2) @ columns.flatten(2).mT).double()
    unknown = [0, 1, 2, 3, 5, 6]
    system, target = sums[:, unknown][:, :, unknown], sums[:, unknown, 4:5]
    ridge = 1e-6 * system.diagonal(dim1=1, dim2=2).mean(1).clamp_min(1e-6)
    solved = torch.linalg.solve(system + torch.eye(6) * ridge[:, None, None], target)[..., 0].float()
    scale = (scale - solved[:, 2:4]).clamp(1 / _LARGEST_SCALE, _LARGEST_SCALE)
    shift = (shift - solved[:, 4:]).clamp(-_LARGEST_SHIFT, _LARGEST_SHIFT)
    return scale, shift


def _agreement(one: Tensor, other: Tensor, scale: Tensor, shift: Tensor) -> Float[Tensor, " pair"]:
    moved, weight = _sampled(other, scale, shift)
    total = weight.sum((1, 2)).clamp_min(1)

    def centred(values: Tensor) -> Tensor:
        return (values - ((values * weight).sum((1, 2)) / total)[:, None, None]) * weight

    first, second = centred(one[:, 0]), centred(moved[:, 0])
    spread = (first.square().sum((1, 2)) * second.square().sum((1, 2))).sqrt()
    return torch.where(spread > total, (first * second).sum((1, 2)) / spread.clamp_min(1e-9), 0.0)
