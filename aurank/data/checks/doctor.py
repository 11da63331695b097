"""What is wrong or odd in a data set, found before a long run finds it."""

import functools
import hashlib
import itertools
import os
import posixpath
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64, Shaped

from aurank.data.captions import text_key
from aurank.data.decode import decode, quiet_decoding
from aurank.data.manifest import Manifest
from aurank.data.sources import FolderSource, ImageSource
from aurank.errors import UserError

_EXAMPLES = 3
_PAIRS = (("train", "test"), ("train", "val"), ("val", "test"))
_SPLIT_NAMES = {
    *("train", "training", "val", "valid", "validation", "dev", "test", "testing"),
    *("query", "queries", "gallery", "index", "database", "distractors"),
}


@dataclass(frozen=True)
class Finding:
    """One kind of problem: how many of it, and the first few.

    Example:
        >>> print(Finding("missing files", 5, ("a.png", "b.png"), is_error=True))
        missing files: 5 (a.png; b.png, and 3 more)
    """

    check: str
    count: int
    examples: tuple[str, ...]
    is_error: bool

    def __str__(self) -> str:
        more = f", and {self.count - len(self.examples)} more" if self.count > len(self.examples) else ""
        shown = f" ({'; '.join(self.examples)}{more})" if self.examples else ""
        return f"{self.check}: {self.count}{shown}"


@dataclass(frozen=True)
class DoctorReport:
    """All findings about one data set. Errors would stop or falsify a run; warnings may be meant.

    Attributes:
        counts: of "images", "classes", "train images", "train classes", …

    Example:
        >>> print(DoctorReport("toy", {"images": 2, "classes": 1}, ()))
        toy: 2 images, 1 classes
          nothing wrong was found
    """

    name: str
    counts: dict[str, int]
    findings: tuple[Finding, ...]

    @property
    def errors(self) -> list[str]:
        """Missing and unreadable files, duplicate paths."""
        return [str(finding) for finding in self.findings if finding.is_error]

    @property
    def warnings(self) -> list[str]:
        """Everything else."""
        return [str(finding) for finding in self.findings if not finding.is_error]

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {what}" for what, count in self.counts.items())
        lines = [f"{self.name}: {counts}"]
        lines += [f"  error: {text}" for text in self.errors] + [f"  warning: {text}" for text in self.warnings]
        return "\n".join(lines if self.findings else [*lines, "  nothing wrong was found"])


def examine(manifest: Manifest, contents: bool, train_labels: bool, ask_classes: bool, max_pixels: int) -> DoctorReport:
    """Return every finding about a data set; the arguments are those of `Manifest.doctor`.

    With texts, a row is a pair: an image may stand in several, but in one split, and needs no other of its class. Where
    each row is of a class of its own name, none has a class.
    """
    paths, labels, classes, splits = manifest.paths, manifest.labels, manifest.classes, manifest.splits
    labelled = np.full(len(paths), classes != paths) & (train_labels | (splits != "train"))
    missing = [path for path in dict.fromkeys(paths) if not manifest.source.exists(path)]
    findings = [
        _finding("missing files", missing, is_error=True),
        *_repeated_rows(manifest),
        _finding("empty splits", [split for split in ("train", "test")[: 1 + train_labels] if split not in splits]),
    ]
    if manifest.texts is None:  # as a query it would have no positive
        within = {split: labels[labelled & (splits == split)] for split in np.unique(splits[labelled]).tolist()}
        lone = {split: np.flatnonzero(np.bincount(held) == 1).tolist() for split, held in within.items()}
        found = [f"{classes[label]} in {split}" for split, alone in lone.items() for label in alone]
        findings.append(_finding("classes with one image in their split", found))
    held = [classes[label] for label in np.unique(labels[labelled]).tolist()]
    if ask_classes and held and (odd := odd_classes(held)) is not None:
        findings.append(_finding(f"{odd[0]}, so the folder may be a level too high", odd[1]))
    for one, other in _PAIRS:
        shared = np.intersect1d(labels[labelled & (splits == one)], labels[labelled & (splits == other)])
        findings.append(_finding(f"classes in both {one} and {other}", [classes[label] for label in shared.tolist()]))
    if contents:
        findings += _examine_contents(manifest, np.where(labelled, labels, -1), set(missing), max_pixels)
    counts = _counts(manifest, labelled)
    return DoctorReport(name=manifest.name, counts=counts, findings=tuple(found for found in findings if found.count))


def odd_classes(classes: Sequence[str]) -> tuple[str, list[str]] | None:
    """Return what is odd about the classes, and which they are, where they look like splits or are two at most.

    They are then hardly any: the folder of the data set was named a level too high. A class looks like a split where a
    folder of its name, or the last word of one (bounding_box_train), is the name of one; that is no chance where
    classes do so in two ways.
    """
    folders = [re.split(r"[/\\]", name.lower()) for name in classes]
    words = [_SPLIT_NAMES & {*parts, *(re.split(r"[ _-]", part)[-1] for part in parts)} for parts in folders]
    alike = list(itertools.compress(classes, words))
    if len(set().union(*words)) < 2 and len(classes) > 2:
        return None
    if alike:
        return "classes that look like splits", alike
    return ("two classes" if len(classes) == 2 else "one class"), list(classes)


def repeated_image(manifest: Manifest) -> str | None:
    """Return words on the first image that is listed twice, by one path or by links to one file; None if none is.

    It would be a perfect match of itself. Where images have texts, one may stand in several rows by one path.
    """
    paths = manifest.paths if manifest.texts is None else tuple(dict.fromkeys(manifest.paths))
    first: dict[str, str] = {}
    repeats = []
    for path, image in zip(paths, _identities(manifest.source, paths), strict=True):
        if image in first:
            repeats.append((first[image], path))
        first.setdefault(image, path)
    if not repeats:
        return None
    before, path = repeats[0]
    again = "twice" if path == before else f"again as {path!r}"
    more = f", and {len(repeats) - 1:,} more rows repeat an image" if len(repeats) > 1 else ""
    return f"{manifest.name} lists image {before!r} {again}{more}"


def _identities(source: ImageSource, paths: Sequence[str]) -> list[str]:
    """Return what tells images apart: the file that a path leads to, or the member of an archive."""
    if not isinstance(source, FolderSource):
        return [posixpath.normpath(path) for path in paths]
    root = source.root

    @functools.cache  # one look at a folder for all of its images
    def resolved(parent: str) -> tuple[str, dict[str, str]]:
        """Where a folder really is, and of the links in it where they lead."""
        try:
            with os.scandir(root / parent) as entries:
                links = {entry.name: os.path.realpath(entry.path) for entry in entries if entry.is_symlink()}
            return os.path.realpath(root / parent), links
        except (OSError, ValueError):  # missing, or no folder: so are its images, which is said when they are read
            return str(root / parent), {}

    places = ((*resolved(parent), name) for parent, name in map(posixpath.split, paths))
    return [links.get(name) or f"{folder}/{name}" for folder, links, name in places]


def _finding(check: str, found: Sequence[str], *, is_error: bool = False) -> Finding:
    return Finding(check=check, count=len(found), examples=tuple(found[:_EXAMPLES]), is_error=is_error)


def _counts(manifest: Manifest, labelled: Shaped[np.ndarray, " image"]) -> dict[str, int]:
    """Return the counts of a report; of classes only where images have some."""
    texts, rows = manifest.texts, "images" if manifest.texts is None else "pairs"
    counts = {rows: len(manifest)}
    if texts is not None:
        counts |= {"images": len(set(manifest.paths)), "texts": len(set(map(text_key, texts)))}
    counts["classes"] = len(np.unique(manifest.labels[labelled]))
    for split in np.unique(manifest.splits).tolist():
        within = manifest.splits == split
        counts[f"{split} {rows}"] = int(np.count_nonzero(within))
        counts[f"{split} classes"] = len(np.unique(manifest.labels[labelled & within]))
    return {what: count for what, count in counts.items() if count or "classes" not in what}


def _repeated_rows(manifest: Manifest) -> list[Finding]:
    """Return the images that stand twice; of pairs those, and the images that one split has seen of another."""

    paths, found = manifest.paths, {"duplicate paths": list(manifest.paths)}
    if manifest.texts is not None:
        pairs = [f"{path}: {text_key(text)}" for path, text in zip(paths, manifest.texts, strict=True)]
        within = dict.fromkeys(zip(paths, manifest.splits.tolist(), strict=True))
        found = {"duplicate pairs": pairs, "images in several splits": [path for path, _ in within]}
    return [
        _finding(check, [name for name, count in Counter(names).items() if count > 1], is_error=True)
        for check, names in found.items()
    ]


def _examine_contents(
    manifest: Manifest, labels: Int64[np.ndarray, " image"], missing: set[str], max_pixels: int
) -> list[Finding]:
    """Return what only the pixels show: unreadable images, and images that are the same, pixel for pixel."""
    paths, source = manifest.paths, manifest.source
    present = [path for path in dict.fromkeys(paths) if path not in missing]
    with quiet_decoding(), ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        digests = dict(zip(present, pool.map(lambda path: _digest(source, path, max_pixels), present), strict=True))
    same: defaultdict[bytes, list[int]] = defaultdict(list)
    for row, path in enumerate(paths):
        if isinstance(digest := digests.get(path), bytes):
            same[digest].append(row)
    # One path is one file, or a duplicate path, which has its own check.
    groups = [rows for rows in same.values() if len({paths[row] for row in rows}) > 1]
    texts = [" = ".join(paths[row] for row in rows) for rows in groups]
    splits = [set(manifest.splits[rows].tolist()) for rows in groups]

    def of(check: str, chosen: Iterable[bool]) -> Finding:
        return _finding(check, list(itertools.compress(texts, chosen)))

    unreadable = [str(error) for error in digests.values() if isinstance(error, UserError)]
    return [
        _finding("unreadable images", unreadable, is_error=True),
        *(of(f"same image in {' and '.join(pair)}", (within.issuperset(pair) for within in splits)) for pair in _PAIRS),
        of("same image under two classes", (len(set(labels[rows].tolist()) - {-1}) > 1 for rows in groups)),
        of("same image more than once in a split", (len(within) == 1 for within in splits)),
    ]


def _digest(source: ImageSource, path: str, max_pixels: int) -> bytes | UserError:
    """Return the digest of the decoded pixels, which another compression does not change, or why there is none."""
    try:
        pixels = decode(source, path, None, max_pixels=max_pixels)
    except UserError as error:
        return error
    return hashlib.sha256(repr(pixels.shape).encode() + pixels.tobytes()).digest()
