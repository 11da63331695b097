"""What only the pixels show: unreadable images, and images that stand in a data set twice, perhaps changed a little."""

import itertools
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from jaxtyping import Int64, UInt8
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from aurank.data.checks.findings import Advice, Finding, finding_of, stand_alike, surplus
from aurank.data.checks.looks import Looks, examine_quality, for_each, grey, look_at_images
from aurank.data.checks.same_picture import SIDE, close_hashes, likeness, square
from aurank.data.decode import decode
from aurank.data.manifest import Manifest
from aurank.errors import UserError

PAIRS_OF_SPLITS = (("train", "test"), ("train", "val"), ("val", "test"))
HASH_BITS_APART = 16  # of 64; a copy cropped by 6 % at each side has up to 20, most have fewer
ALIKE = 0.95  # least likeness; of copies all but 1 in 200 have more, of pairs of different photos 1 in 100,000
LEAST_SIDE = 32  # pixels; smaller pictures of one kind are too alike to tell copies
_BLOCK = 8192  # pairs, and images, at a time
_FIXES = {"splits": "leaks", "classes": "conflicts", "within": "repeats"}  # of nearly the same images "near-…"

Groups = list[list[int]]  # rows that show one image
_LEAK = Advice(
    "The score counts images that training has seen, so it is too high.", "Leave them out of training; --fix does."
)
_ADVICE = {
    "splits": _LEAK,
    "sides": Advice("A query finds itself in the gallery, so its score is too high.", "Leave one of the two out."),
    "classes": Advice(
        "One of the labels is wrong: a negative is the same picture.",
        "Decide which class is right and remove the other; --fix leaves out all of them.",
    ),
    "within": Advice(
        "The copies find each other first, so scores are too high and training learns little from them.",
        "Keep one of each; --fix does.",
    ),
}


def examine_contents(
    manifest: Manifest,
    labels: Int64[np.ndarray, " image"],
    missing: set[str],
    *,
    max_pixels: int,
    candidates: Int64[np.ndarray, "pair 2"] | None = None,
) -> list[Finding]:
    """Return the unreadable, repeated, nearly repeated, blurred, dark, tiny and odd images.

    Args:
        labels: of each row, −1 for none.
        missing: paths that are not there.
        candidates: pairs of rows that may show one image, besides those of close hashes.
    """
    paths = manifest.paths
    rows: defaultdict[str, list[int]] = defaultdict(list)
    for row, path in enumerate(paths):
        if path not in missing:
            rows[path].append(row)
    looks = look_at_images(manifest, list(rows), max_pixels=max_pixels)
    unreadable = finding_of(
        "unreadable images",
        [str(error) for error in looks.unreadable.values()],
        Advice("Training and measuring stop at them.", "Replace them, or set data.on_error=skip."),
        is_error=True,
        rows=[rows[path] for path in looks.unreadable],
        fix="unreadable",
        drop=[row for path in looks.unreadable for row in rows[path]],
    )
    same: defaultdict[bytes, list[str]] = defaultdict(list)
    for path, look in looks.of.items():
        same[look.digest].append(path)
    regions = manifest.regions

    def differ(held: Sequence[int]) -> bool:
        """Return whether one image is listed in two splits or classes."""
        is_one = manifest.texts is None and len({regions[row] for row in held}) == 1
        return is_one and len({(manifest.splits[row], labels[row]) for row in held}) > 1

    # One path that is listed again in the same split and class is a duplicate path, which has its own check.
    several = [alike for alike in same.values() if len(alike) > 1 or differ(rows[alike[0]])]
    exact = [sorted(itertools.chain(*(rows[path] for path in alike))) for alike in several]
    told_apart = (alike[0] for alike in same.values())
    firsts = [path for path in told_apart if min(looks.of[path].height, looks.of[path].width) >= LEAST_SIDE]
    near = _near(manifest, looks, firsts, max_pixels, candidates)
    changed = [
        sorted(row for first in group for path in same[looks.of[first].digest] for row in rows[path]) for group in near
    ]
    return [
        unreadable,
        *_of_groups(manifest, labels, "same image", exact),
        *_of_groups(manifest, labels, "nearly the same image", changed),
        *examine_quality(looks.of, rows),
    ]


def _near(
    manifest: Manifest,
    looks: Looks,
    firsts: Sequence[str],
    max_pixels: int,
    candidates: Int64[np.ndarray, "pair 2"] | None,
) -> list[list[str]]:
    """Return groups of the images `firsts`, no two of which are equal, that show one picture."""
    if len(firsts) < 2:
        return []
    hashes = np.stack([looks.of[path].hash for path in firsts])
    pairs, _ = close_hashes(hashes, at_most=HASH_BITS_APART)
    if candidates is not None and len(candidates):
        number = {looks.of[path].digest: place for place, path in enumerate(firsts)}
        place = [number.get(looks.of[path].digest, -1) if path in looks.of else -1 for path in manifest.paths]
        named = np.sort(np.array(place)[candidates], axis=1)
        pairs = np.unique(np.concatenate([pairs, named[(named[:, 0] >= 0) & (named[:, 0] < named[:, 1])]]), axis=0)
    shown = np.zeros(len(pairs), dtype=np.bool_)
    used, at = np.unique(pairs, return_inverse=True)
    at = at.reshape(pairs.shape)
    with _squares(manifest, [firsts[place] for place in used.tolist()], max_pixels) as squares:
        for start in range(0, len(pairs), _BLOCK):
            first, second = at[start : start + _BLOCK].T
            shown[start : start + _BLOCK] = likeness(squares(first), squares(second)) >= ALIKE
    linked = pairs[shown]
    size = (len(firsts), len(firsts))
    links = coo_array((np.ones(len(linked), np.int8), (linked[:, 0], linked[:, 1])), shape=size)
    _, component = connected_components(links, directed=False)
    groups: defaultdict[int, list[str]] = defaultdict(list)
    for place in np.unique(linked).tolist():
        groups[int(component[place])].append(firsts[place])
    return list(groups.values())


@contextmanager
def _squares(
    manifest: Manifest, paths: Sequence[str], max_pixels: int
) -> Iterator[Callable[[Int64[np.ndarray, " chosen"]], UInt8[np.ndarray, "chosen side side"]]]:
    """Yield what returns the squares of chosen images, by their places in `paths`; each image is read once.

    The squares are kept in a temporary file, 4 KiB an image. It is mapped anew for every choice, for a page that was
    read through a mapping counts as this process's memory until the mapping goes.
    """

    def read(path: str) -> np.ndarray:
        return square(grey(decode(manifest.source, path, None, max_pixels=max_pixels)))

    with tempfile.TemporaryFile() as file:
        try:
            for start in range(0, len(paths), _BLOCK):
                file.write(np.stack(for_each(read, paths[start : start + _BLOCK])).tobytes())
            file.flush()
        except OSError as error:
            raise UserError(
                f"small copies of {len(paths):,} images, {len(paths) * SIDE * SIDE / 1e6:,.0f} MB, cannot be kept in "
                f"{tempfile.gettempdir()} ({error.strerror}): let TMPDIR name a folder with more room"
            ) from error
        shape = (len(paths), SIDE, SIDE)
        yield lambda places: np.array(np.memmap(file, np.uint8, "r", shape=shape)[places])


def _of_groups(manifest: Manifest, labels: Int64[np.ndarray, " image"], what: str, groups: Groups) -> list[Finding]:
    """Return the findings about rows that show one image, by where they stand."""
    texts = [" = ".join(manifest.paths[row] for row in rows) for rows in groups]
    splits = [set(manifest.splits[rows].tolist()) for rows in groups]
    across = [_between_sides(manifest, rows) for rows in groups]

    def of(kind: str, check: str, chosen: Iterable[bool]) -> Finding:
        selected = list(chosen)
        held = list(itertools.compress(groups, selected))
        fix = f"{'near-' * what.startswith('nearly')}{_FIXES[kind]}" if kind in _FIXES else ""
        drop = [row for rows in held for row in _left_out(manifest, labels, rows, kind)]
        names = list(itertools.compress(texts, selected))
        return finding_of(check, names, _ADVICE[kind], rows=held, fix=fix, drop=drop)

    return [
        *(
            of("splits", f"{what} in {' and '.join(pair)}", (within.issuperset(pair) for within in splits))
            for pair in PAIRS_OF_SPLITS
        ),
        of("sides", f"{what} in query and gallery", across),
        of("classes", f"{what} under two classes", (len(set(labels[rows].tolist()) - {-1}) > 1 for rows in groups)),
        of(
            "within",
            f"{what} more than once in a split",
            (len(within) == 1 and not sides for within, sides in zip(splits, across, strict=True)),
        ),
    ]


def _between_sides(manifest: Manifest, rows: Sequence[int]) -> bool:
    """Return whether one of the rows is a query alone, and one a gallery row alone."""
    query, gallery = manifest.is_query[rows], manifest.is_gallery[rows]
    return bool((query & ~gallery).any() and (gallery & ~query).any())


def _left_out(manifest: Manifest, labels: Int64[np.ndarray, " image"], rows: Sequence[int], kind: str) -> list[int]:
    """Return which rows of one image a cleaned table leaves out for a kind of finding."""
    if kind == "splits":
        return surplus(manifest, rows)
    if kind == "within":  # two classes are no repetition: nobody knows which is right
        of_class = [[row for row in rows if labels[row] == label] for label in np.unique(labels[rows])]
        return [row for held in of_class for row in surplus(manifest, held)]
    if kind == "classes":
        known = [row for row in rows if labels[row] >= 0]
        strangers = ((row, [other for other in known if labels[other] != labels[row]]) for row in known)
        return [row for row, others in strangers if any(stand_alike(manifest, row, other) for other in others)]
    return []
