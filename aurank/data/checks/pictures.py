"""What only the pixels show: unreadable and poor images, and images that stand in a data set twice, perhaps changed."""

import hashlib
import itertools
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

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
from aurank.data.manifest import Manifest
from aurank.errors import UserError

LOOK_SIDE = 224  # the shorter side at which sharpness is judged at most: about what a network sees
_BLUR_WIDTH = 11  # of the filter of `blur_effect`
# Chosen on training photos of Grocery and drawings of Omniglot, of which fewer than 1 in 2,000 are found.
BLURRED, DARK, TINY, LONG = 0.52, 0.3, 64, 2.5
HASH_BITS_APART = 16  # of 64; a copy cropped by 6 % at each side has up to 20, most have fewer
ALIKE = 0.95  # least likeness; of copies all but 1 in 200 have more, of pairs of different photos 1 in 100,000
LEAST_SIDE = 32  # pixels; smaller pictures of one kind are too alike to tell copies
# Of the squares that are laid over each other, coarse to fine, and the likeness below which a pair is given up.
SIZES = {16: 0.85, 32: 0.92, 64: 0.0}
SIDE = 64  # of the finest
_STEPS = 6  # of Gauss and Newton at each size
_LARGEST_SCALE, _LARGEST_SHIFT = 1.18, 0.2  # of one image against the other; a shift of 1 is half a side
# Pairs of hashes, images or pairs of them, and pairs laid over each other, at a time.
_ROWS, _COLUMNS = 16, 8192  # hashes compared at a time: what they take stays in the cache
_BLOCK, _LAID = 8192, 64
_TRIED = 64  # images of a trial

_Result = TypeVar("_Result")


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
    progress: Callable[[int, int], object] | None = None,
) -> list[Finding]:
    """Return the unreadable, repeated, nearly repeated, blurred, dark, tiny and odd images."""
    rows: defaultdict[str, list[int]] = defaultdict(list)
    for row, path in enumerate(manifest.paths):
        if path not in missing:
            rows[path].append(row)

    def read(path: str) -> Pixels:
        return decode(manifest.source, path, None, max_pixels=max_pixels)

    def look(path: str) -> Look | UserError:
        try:
            return look_at(read(path))
        except UserError as error:
            return error

    seen = dict(zip(rows, for_each(look, list(rows), progress), strict=True))
    unreadable = {path: str(error) for path, error in seen.items() if isinstance(error, UserError)}
    looks = {path: found for path, found in seen.items() if isinstance(found, Look)}
    same: defaultdict[bytes, list[str]] = defaultdict(list)
    for path, found in looks.items():
        same[found.digest].append(path)
    regions = manifest.regions

    def differ(held: Sequence[int]) -> bool:
        """Return whether one image is listed in two splits or classes."""
        is_one = manifest.texts is None and len({regions[row] for row in held}) == 1
        return is_one and len({(manifest.splits[row], labels[row]) for row in held}) > 1

    # One path that is listed again in the same split and class is a duplicate path, which has its own check.
    several = [alike for alike in same.values() if len(alike) > 1 or differ(rows[alike[0]])]
    exact = [sorted(itertools.chain(*(rows[path] for path in alike))) for alike in several]
    told_apart = (alike[0] for alike in same.values())
    firsts = [path for path in told_apart if min(looks[path].height, looks[path].width) >= LEAST_SIDE]
    named = np.zeros((0, 2), np.int64)
    if candidates is not None and len(candidates):
        number = {looks[path].digest: place for place, path in enumerate(firsts)}
        place = [number.get(looks[path].digest, -1) if path in looks else -1 for path in manifest.paths]
        named = np.sort(np.array(place)[candidates], axis=1)
        named = named[(named[:, 0] >= 0) & (named[:, 0] < named[:, 1])]
    near = _near(firsts, np.array([looks[path].hash for path in firsts]), named, read) if len(firsts) > 1 else []
    changed = [
        sorted(row for path in group for twin in same[looks[path].digest] for row in rows[twin]) for group in near
    ]
    return [
        finding_of("unreadable", [*unreadable.values()], [rows[path] for path in unreadable]),
        *_of_groups(manifest, labels, "same image", exact),
        *_of_groups(manifest, labels, "nearly the same image", changed),
        *examine_quality(looks, rows),
    ]


def for_each(
    read: Callable[[str], _Result], paths: Sequence[str], progress: Callable[[int, int], object] | None = None
) -> list[_Result]:
    """Return what `read` makes of each path, by threads where a trial finds them faster: not for tiny images."""
    found, spent = list[_Result](), dict[Callable[..., Iterator[_Result]], float]()
    with quiet_decoding(), ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for number, way in enumerate((pool.map, map, pool.map, map, None)):  # twice: the first pays for imports
            chosen = way or min(spent, key=spent.__getitem__)
            begun = time.perf_counter()
            for one in chosen(read, paths[_TRIED * number : _TRIED * (number + 1) if way else None]):
                found.append(one)
                if progress is not None:
                    progress(len(found), len(paths))
            spent[chosen] = time.perf_counter() - begun
    return found


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


def _near(
    paths: Sequence[str],
    hashes: Bool[np.ndarray, "image bit"],
    named: Int64[np.ndarray, "named 2"],
    read: Callable[[str], np.ndarray],
) -> list[list[str]]:
    """Return groups of images, no two of which are equal, that show one picture; `named` pairs are compared too."""
    pairs = np.unique(np.concatenate([close_hashes(hashes, at_most=HASH_BITS_APART)[0], named]), axis=0)
    shown = np.zeros(len(pairs), dtype=np.bool_)
    used, at = np.unique(pairs, return_inverse=True)
    at = at.reshape(pairs.shape)
    with _squares([paths[place] for place in used.tolist()], read) as squares:
        for start in range(0, len(pairs), _BLOCK):
            first, second = at[start : start + _BLOCK].T
            shown[start : start + _BLOCK] = likeness(squares(first), squares(second)) >= ALIKE
    linked = pairs[shown]
    size = (len(paths), len(paths))
    links = coo_array((np.ones(len(linked), np.int8), (linked[:, 0], linked[:, 1])), shape=size)
    _, component = connected_components(links, directed=False)
    groups: defaultdict[int, list[str]] = defaultdict(list)
    for place in np.unique(linked).tolist():
        groups[int(component[place])].append(paths[place])
    return list(groups.values())


@contextmanager
def _squares(
    paths: Sequence[str], read: Callable[[str], np.ndarray]
) -> Iterator[Callable[[Int64[np.ndarray, " chosen"]], UInt8[np.ndarray, "chosen side side"]]]:
    """Yield what returns the squares of chosen images, by their places in `paths`; each image is read once."""
    with tempfile.TemporaryFile() as file:
        try:
            for start in range(0, len(paths), _BLOCK):
                made = for_each(lambda path: square(_grey(read(path))), paths[start : start + _BLOCK])
                file.write(np.stack(made).tobytes())
            file.flush()
        except OSError as error:
            raise UserError(
                f"small copies of {len(paths):,} images, {len(paths) * SIDE * SIDE / 1e6:,.0f} MB, cannot be kept in "
                f"{tempfile.gettempdir()} ({error.strerror}): let TMPDIR name a folder with more room"
            ) from error
        shape = (len(paths), SIDE, SIDE)
        # Mapped anew each time: a page that was read counts as this process's memory until the mapping goes.
        yield lambda places: np.array(np.memmap(file, np.uint8, "r", shape=shape)[places])


def close_hashes(
    hashes: Bool[np.ndarray, "image bit"], *, at_most: int, k: int = 16
) -> tuple[Int64[np.ndarray, "pair 2"], Int64[np.ndarray, " pair"]]:
    """Return the pairs of images whose hashes of 64 bits differ in few, and in how many; of each the k closest."""
    codes = np.zeros((len(hashes), 8), np.uint8)
    codes[:, : (hashes.shape[1] + 7) // 8] = np.packbits(hashes, axis=1)
    numbers = codes.view(np.uint64)[:, 0]

    def closest(start: int) -> Int64[np.ndarray, "3 close"]:
        found = []
        for there in range(0, len(numbers), _COLUMNS):
            apart = np.bitwise_count(numbers[start : start + _ROWS, None] ^ numbers[there : there + _COLUMNS])
            place = np.flatnonzero(apart <= at_most)
            row, other = np.divmod(place, apart.shape[1])
            found.append(np.stack([row + start, other + there, apart.ravel()[place]]))
        close = np.concatenate(found, axis=1)
        close = close[:, close[0] != close[1]]
        close = close[:, np.lexsort((close[1], close[2], close[0]))]
        place = np.arange(close.shape[1]) - np.searchsorted(close[0], close[0])
        return close[:, place < k]

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        parts = [np.zeros((3, 0), np.int64), *pool.map(closest, range(0, len(numbers), _ROWS))]
    one, other, bits = np.concatenate(parts, axis=1)
    pairs, first_of = np.unique(np.sort(np.stack([one, other], 1), axis=1), axis=0, return_index=True)
    return pairs, bits[first_of]


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
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        starts = range(0, len(one), _LAID)
        values = pool.map(_likeness, *([side[at : at + _LAID] for at in starts] for side in (one, other)))
        return np.concatenate([np.zeros(0), *values])


def _likeness(
    one: UInt8[np.ndarray, "pair side side"], other: UInt8[np.ndarray, "pair side side"]
) -> Float64[np.ndarray, " pair"]:
    first, second = (torch.from_numpy(side).float()[:, None] for side in (one, other))
    found, alive = torch.zeros(len(first)), torch.arange(len(first))
    scale, shift = torch.ones(len(first), 2), torch.zeros(len(first), 2)
    for size, floor in SIZES.items():
        small = [functional.interpolate(image[alive], (size, size), mode="area") for image in (first, second)]
        moved = scale[alive], shift[alive]
        sloped = _with_slopes(small[1])
        for _ in range(_STEPS):
            moved = _improved(small[0], sloped, *moved)
        unmoved = torch.ones_like(moved[0]), torch.zeros_like(moved[1])
        agreements = _agreement(small[0], small[1], *moved), _agreement(small[0], small[1], *unmoved)
        found[alive] = torch.maximum(*agreements)
        scale[alive], shift[alive] = moved
        alive = alive[found[alive] >= floor]
    return found.double().numpy()


def _grid(size: int) -> tuple[Tensor, Tensor]:
    places = (torch.arange(size) + 0.5) * (2 / size) - 1
    return places[None, None, :].expand(1, size, size), places[None, :, None].expand(1, size, size)


def _sampled(image: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """Return an image [pair, channel, side, side] as it looks scaled and shifted, and which pixels it covers."""
    x, y = _grid(image.shape[-1])
    where = torch.stack([x * scale[:, :1, None] + shift[:, :1, None], y * scale[:, 1:, None] + shift[:, 1:, None]], -1)
    moved = functional.grid_sample(image, where, padding_mode="border", align_corners=False)
    return moved, (where.abs() <= 1).all(-1)


def _with_slopes(image: Tensor) -> Tensor:
    step = image.shape[-1] / 4  # a central difference over two pixels, in units of half a side
    padded = functional.pad(image, (1, 1, 1, 1), mode="replicate")
    across = (padded[:, :, 1:-1, 2:] - padded[:, :, 1:-1, :-2]) * step
    down = (padded[:, :, 2:, 1:-1] - padded[:, :, :-2, 1:-1]) * step
    return torch.cat([image, across, down], 1)


def _improved(one: Tensor, sloped: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """Return scale and shift after one step: the least squares of one × gain + offset against the moved other."""
    seen, covered = _sampled(sloped, scale, shift)
    moved, across, down = seen.unbind(1)
    x, y = _grid(one.shape[-1])
    columns = torch.stack([one[:, 0], torch.ones_like(moved), -across * x, -across, -down * y, -down, moved], 1)
    columns = (columns * covered[:, None]).flatten(2).double()
    sums = columns @ columns.mT
    system, target = sums[:, :6, :6], sums[:, :6, 6:]
    ridge = 1e-6 * system.diagonal(dim1=1, dim2=2).mean(1).clamp_min(1e-6)
    solved = torch.linalg.solve(system + torch.eye(6) * ridge[:, None, None], target)[..., 0].float()
    scale = (scale + solved[:, [2, 4]]).clamp(1 / _LARGEST_SCALE, _LARGEST_SCALE)
    shift = (shift + solved[:, [3, 5]]).clamp(-_LARGEST_SHIFT, _LARGEST_SHIFT)
    return scale, shift


def _agreement(one: Tensor, other: Tensor, scale: Tensor, shift: Tensor) -> Float[Tensor, " pair"]:
    moved, covered = _sampled(other, scale, shift)
    weight = covered.float()
    total = weight.sum((1, 2)).clamp_min(1)

    def centred(values: Tensor) -> Tensor:
        return (values - ((values * weight).sum((1, 2)) / total)[:, None, None]) * weight

    first, second = centred(one[:, 0]), centred(moved[:, 0])
    spread = (first.square().sum((1, 2)) * second.square().sum((1, 2))).sqrt()
    return torch.where(spread > total, (first * second).sum((1, 2)) / spread.clamp_min(1e-9), 0.0)
