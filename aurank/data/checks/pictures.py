"""What only the pixels show: unreadable images, and images that stand in a data set twice, perhaps changed."""

import hashlib
import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Bool, Int8, Int64
from PIL import Image, ImageCms
from scipy.fft import dctn
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from aurank.data.checks.findings import SPLIT_PAIRS, Finding, finding_of, same_thing, stand_alike, surplus
from aurank.data.decode import Pixels, decode, quiet_decoding
from aurank.data.loader import made_of_each
from aurank.data.manifest import Manifest
from aurank.errors import UserError

LOOK_SIDE = 224  # the shorter side to which an image is reduced before it is hashed
# Copies have about the same coarse structure and colours. Chosen on changed copies of training photos of Grocery, of
# emoji and of drawings of Omniglot; docs/doctor.md has what they find.
HASH_BITS_APART = 12  # at most, of 64
COLOURS_APART = 16.0  # at most, in every cell: a distance in Lab; 15 % more or less light is up to 14
CELLS = 8  # at each side of an image
INSET = 0.03  # of each side, without which an image is compared too, for copies that are cropped
LEAST_SIDE = 32  # pixels; smaller pictures of one kind are too alike to tell copies
_COLOURS_AT_ONCE = 64  # of close images
_TO_LAB = ImageCms.buildTransform(ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB"), "RGB", "LAB")
_PER_REPORT = 32  # images that a process looks at between two reports of progress


Look = tuple[bytes, int, Bool[np.ndarray, "64"], Int8[np.ndarray, "2 cell 3"]]
"""Digest of the decoded pixels, which another compression without loss does not change; the shorter side; the hash of
the structure; and the colours in Lab, of the image and of all but its margin."""


def examine_contents(
    manifest: Manifest,
    labels: Int64[np.ndarray, " image"],
    missing: set[str],
    *,
    max_pixels: int,
    candidates: Int64[np.ndarray, "pair 2"] | None = None,
    tell: Callable[[str, int, int], object],
) -> list[Finding]:
    """Return the unreadable, repeated and nearly repeated images."""
    rows: defaultdict[str, list[int]] = defaultdict(list)
    for row, path in enumerate(manifest.paths):
        if path not in missing:
            rows[path].append(row)

    def look(path: str) -> Look | UserError:
        try:
            return look_at(decode(manifest.source, path, None, max_pixels=max_pixels, on_white=True))
        except UserError as error:
            return error

    digests: dict[str, bytes] = {}
    unreadable: dict[str, str] = {}
    same: defaultdict[bytes, list[str]] = defaultdict(list)
    compared: list[bytes] = []  # digests of pictures that are large enough
    hashes, colours = [np.zeros((0, 64), np.bool_)], [np.zeros((0, 2, CELLS**2, 3), np.int8)]
    with quiet_decoding():
        results = made_of_each(look, list(rows), at_once=_PER_REPORT)
        for number, (path, result) in enumerate(zip(rows, results, strict=True), 1):
            if isinstance(result, UserError):
                unreadable[path] = str(result)
            else:
                digest, shorter_side, structure, cells = result
                if digest not in same and shorter_side >= LEAST_SIDE:
                    compared.append(digest)
                    hashes.append(structure[None])
                    colours.append(cells[None])
                digests[path] = digest
                same[digest].append(path)
            if number % _PER_REPORT == 0 or number == len(rows):
                tell("looking at images", number, len(rows))
    all_colours = np.concatenate(colours)
    pairs = close_pictures(np.concatenate(hashes), all_colours)
    if candidates is not None:
        numbers = {digest: number for number, digest in enumerate(compared)}
        positions = [numbers.get(digests.get(path, b""), -1) for path in manifest.paths]
        named = np.sort(np.array(positions, np.int64)[candidates], axis=1)
        named = named[(named[:, 0] >= 0) & (named[:, 0] < named[:, 1])]
        pairs = np.concatenate([pairs, named[of_equal_colours(all_colours, named)]])
    exact, changed = [], []
    for paths in same.values():
        group = sorted(itertools.chain(*(rows[path] for path in paths)))
        is_one = manifest.texts is None and len({manifest.regions[row] for row in group}) == 1
        is_in_two = len({(manifest.splits[row], labels[row]) for row in group}) > 1
        # One path that is listed again in the same split and class is a duplicate path, which has its own check.
        if len(paths) > 1 or (is_one and is_in_two):
            exact.append(group)
    close, position = np.unique(pairs, return_inverse=True)
    first, second = position.reshape(-1, 2).T
    links = coo_array((np.ones(len(first), np.int8), (first, second)), shape=(len(close), len(close)))
    count, component = connected_components(links, directed=False)
    for number in range(count):
        copies = [path for at in close[component == number].tolist() for path in same[compared[at]]]
        changed.append(sorted(itertools.chain(*(rows[path] for path in copies))))
    return [
        finding_of("unreadable", [*unreadable.values()], [rows[path] for path in unreadable]),
        *_of_groups(manifest, labels, "same image", exact),
        *_of_groups(manifest, labels, "nearly the same image", changed),
    ]


def look_at(pixels: Pixels) -> Look:
    """Return what is compared of an image: of more than three channels the first three, of two the first."""
    digest = hashlib.sha256(repr(pixels.shape).encode() + pixels.tobytes()).digest()
    image = Image.fromarray(pixels[..., 0] if pixels.shape[2] < 3 else pixels[..., :3])
    grey = image.convert("L")
    height, width = pixels.shape[:2]
    if min(grey.size) > LOOK_SIDE:
        factor = LOOK_SIDE / min(grey.size)
        grey = grey.resize((round(width * factor), round(height * factor)), Image.Resampling.BOX)
    # The perceptual hash says which of the 64 slowest waves are above their median.
    waves = dctn(np.asarray(grey.resize((32, 32), Image.Resampling.BOX), np.float32))[:8, :8]
    hash = np.ravel(waves > np.median(waves))
    return digest, min(height, width), hash, colours_of(image)


def colours_of(image: Image.Image) -> Int8[np.ndarray, "2 cell 3"]:
    """Return the mean Lab colours of a coarse grid's cells, over the whole image, and again without its margin."""
    image = image.convert("RGB")
    colours = np.empty((2, CELLS**2, 3), np.int8)
    for part, inset in zip(colours, (0, INSET), strict=True):
        box = inset * image.width, inset * image.height, (1 - inset) * image.width, (1 - inset) * image.height
        cells = image.resize((CELLS, CELLS), Image.Resampling.BOX, box)
        encoded = np.asarray(ImageCms.applyTransform(cells, _TO_LAB)).reshape(-1, 3)
        part[:, 0], part[:, 1:] = np.round(encoded[:, 0] / 2.55), encoded[:, 1:].view(np.int8)  # lightness is 0 … 255
    return colours


def _of_groups(
    manifest: Manifest, labels: Int64[np.ndarray, " image"], name: str, groups: list[list[int]]
) -> list[Finding]:
    texts = [same_thing([manifest.paths[row] for row in rows]) for rows in groups]
    splits = [set(manifest.splits[rows].tolist()) for rows in groups]
    queries, answers = manifest.is_query & ~manifest.is_gallery, manifest.is_gallery & ~manifest.is_query
    across = [bool(queries[rows].any() and answers[rows].any()) for rows in groups]
    checks: list[tuple[str, str, list[bool]]] = [
        ("splits", f"{name} in {first} and {second}", [{first, second} <= within for within in splits])
        for first, second in SPLIT_PAIRS
    ]
    checks += [
        ("sides", f"{name} in query and gallery", across),
        ("classes", f"{name} under two classes", [len(set(labels[rows].tolist()) - {-1}) > 1 for rows in groups]),
        (
            "within",
            f"{name} more than once in a split",
            [len(within) == 1 and not sides for within, sides in zip(splits, across, strict=True)],
        ),
    ]
    findings = []
    for kind, check, is_found in checks:
        chosen = list(itertools.compress(groups, is_found))
        drop = [row for rows in chosen for row in _left_out(manifest, labels, rows, kind)]
        findings.append(finding_of(kind, list(itertools.compress(texts, is_found)), chosen, drop, check=check))
    return findings


def _left_out(manifest: Manifest, labels: Int64[np.ndarray, " image"], rows: Sequence[int], kind: str) -> list[int]:
    if kind == "splits":
        return surplus(manifest, rows)
    if kind == "within":  # two classes are no repetition: nobody knows which is right
        classes = [[row for row in rows if labels[row] == label] for label in np.unique(labels[rows])]
        return [row for of_class in classes for row in surplus(manifest, of_class)]
    labelled = [row for row in rows if labels[row] >= 0]
    return [
        row
        for row in labelled
        if any(labels[twin] != labels[row] and stand_alike(manifest, row, twin) for twin in labelled)
    ]


def of_equal_colours(
    colours: Int8[np.ndarray, "image 2 cell 3"], pairs: Int64[np.ndarray, "pair 2"]
) -> Bool[np.ndarray, " pair"]:
    """Return whether the colours of both images of each pair, or of one and of the other's inner part, are alike."""
    first, second = colours[pairs[:, 0]].astype(np.int16), colours[pairs[:, 1]]
    alike = np.zeros(len(pairs), np.bool_)
    for of_first, of_second in ((0, 0), (1, 0), (0, 1)):
        apart = np.square(first[:, of_first] - second[:, of_second], dtype=np.int32).sum(axis=2)
        alike |= (apart <= COLOURS_APART**2).all(axis=1)
    return alike


def close_pictures(
    hashes: Bool[np.ndarray, "image bit"],
    colours: Int8[np.ndarray, "image 2 cell 3"],
    *,
    at_most: int = HASH_BITS_APART,
    k: int = 16,
) -> Int64[np.ndarray, "pair 2"]:
    """Return the pairs of images of equal colours whose hashes differ in few bits: for each image the k closest."""
    codes = np.packbits(hashes, axis=1).view(np.uint64)[:, 0]
    pairs: list[tuple[int, int]] = []
    for image, code in enumerate(codes):
        apart = np.bitwise_count(codes ^ code)
        near = np.flatnonzero(apart <= at_most)
        near = near[near != image]
        near = near[np.argsort(apart[near], kind="stable")]
        alike: list[int] = []
        for start in range(0, len(near), _COLOURS_AT_ONCE):
            next_ones = near[start : start + _COLOURS_AT_ONCE]
            both = np.stack([np.full_like(next_ones, image), next_ones], axis=1)
            alike += next_ones[of_equal_colours(colours, both)].tolist()
            if len(alike) >= k:
                break
        pairs += [(min(image, copy), max(image, copy)) for copy in alike[:k]]
    return np.unique(np.array(pairs, np.int64).reshape(-1, 2), axis=0)
