"""What is wrong or odd in a data set, found before a long run finds it."""

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64, Shaped

from aurank.data.captions import text_key
from aurank.data.checks.odd_classes import odd_classes
from aurank.data.decode import MAX_PIXELS, decode, quiet_decoding
from aurank.data.sources import ImageSource
from aurank.errors import UserError

_EXAMPLES = 3
_PAIRS = (("train", "test"), ("train", "val"), ("val", "test"))


@dataclass(frozen=True)
class Finding:
    """One kind of problem: how many of it, and the first few."""

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
    """All findings about one data set. Errors would stop or falsify a run; warnings may be meant."""

    name: str
    counts: dict[str, int]  # "images", "classes", "train images", "train classes", …
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


def examine(
    name: str,
    source: ImageSource,
    paths: Sequence[str],
    labels: Int64[np.ndarray, " image"],
    classes: Sequence[str],
    splits: Shaped[np.ndarray, " image"],
    *,
    texts: Sequence[str] | None = None,
    train_labels: bool = True,
    ask_classes: bool = False,
    contents: bool,
    max_pixels: int = MAX_PIXELS,
) -> DoctorReport:
    """Returns every finding about the columns of a manifest; `contents` decodes every image, with threads.

    With `texts`, a row is a pair: an image may stand in several, but in one split, and needs no other of its class.
    Without `train_labels` training rows have no classes, and there may be no test split. Where each row is of a class
    of its own name, none has. `ask_classes` finds classes that look like splits, or two at most.
    """
    labelled = np.ones(len(paths), dtype=np.bool_) if train_labels else splits != "train"
    if tuple(classes) == tuple(paths):
        labelled = np.zeros_like(labelled)
    missing = [path for path in dict.fromkeys(paths) if not source.exists(path)]
    findings = [
        _finding("missing files", missing, is_error=True),
        *(_repeated_images(paths) if texts is None else _repeated_pairs(paths, texts, splits)),
        _finding("empty splits", [split for split in ("train", "test")[: 1 + train_labels] if split not in splits]),
    ]
    if texts is None:
        lone = _lone_classes(labels[labelled], classes, splits[labelled])
        findings.append(_finding("classes with one image in their split", lone))
    held = [classes[label] for label in np.unique(labels[labelled]).tolist()]
    if ask_classes and held and (odd := odd_classes(held)) is not None:
        findings.append(_finding(f"{odd[0]}, so the folder may be a level too high", odd[1]))
    for one, other in _PAIRS:
        shared = np.intersect1d(labels[labelled & (splits == one)], labels[labelled & (splits == other)])
        findings.append(_finding(f"classes in both {one} and {other}", [classes[label] for label in shared.tolist()]))
    if contents:
        findings += _examine_contents(source, paths, np.where(labelled, labels, -1), splits, set(missing), max_pixels)
    if texts is None:
        rows, counts = "images", {"images": len(paths)}
    else:
        distinct = {"images": len(set(paths)), "texts": len({text_key(text) for text in texts})}
        rows, counts = "pairs", {"pairs": len(paths), **distinct}
    if labelled.any():
        counts["classes"] = len(held)
    for split in np.unique(splits).tolist():
        counts[f"{split} {rows}"] = int(np.count_nonzero(splits == split))
        if (labelled & (splits == split)).any():
            counts[f"{split} classes"] = len(np.unique(labels[labelled & (splits == split)]))
    return DoctorReport(name=name, counts=counts, findings=tuple(found for found in findings if found.count))


def _finding(check: str, found: Sequence[str], *, is_error: bool = False) -> Finding:
    return Finding(check=check, count=len(found), examples=tuple(found[:_EXAMPLES]), is_error=is_error)


def _repeated_images(paths: Sequence[str]) -> list[Finding]:
    return [_finding("duplicate paths", _repeated(paths), is_error=True)]


def _repeated_pairs(paths: Sequence[str], texts: Sequence[str], splits: Shaped[np.ndarray, " image"]) -> list[Finding]:
    """Returns the pairs that stand twice, and the images that one split has seen of another."""
    pairs = [f"{path}: {text_key(text)}" for path, text in zip(paths, texts, strict=True)]
    within = dict.fromkeys(zip(paths, splits.tolist(), strict=True))
    return [
        _finding("duplicate pairs", _repeated(pairs), is_error=True),
        _finding("images in several splits", _repeated([path for path, _ in within]), is_error=True),
    ]


def _repeated(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


def _lone_classes(
    labels: Int64[np.ndarray, " image"], classes: Sequence[str], splits: Shaped[np.ndarray, " image"]
) -> list[str]:
    """Returns the classes, with their split, of which a split has one image: as a query it has no positive."""
    found = []
    for split in np.unique(splits).tolist():
        counts = np.bincount(labels[splits == split], minlength=len(classes))
        found += [f"{classes[label]} in {split}" for label in np.flatnonzero(counts == 1).tolist()]
    return found


def _examine_contents(
    source: ImageSource,
    paths: Sequence[str],
    labels: Int64[np.ndarray, " image"],
    splits: Shaped[np.ndarray, " image"],
    missing: set[str],
    max_pixels: int,
) -> list[Finding]:
    """Returns what only the pixels show: unreadable images, and images that are the same, pixel for pixel."""
    present = [path for path in dict.fromkeys(paths) if path not in missing]
    with quiet_decoding(), ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        digests = dict(zip(present, pool.map(lambda path: _digest(source, path, max_pixels), present), strict=True))
    unreadable = [error for error in digests.values() if isinstance(error, UserError)]
    same: defaultdict[bytes, list[int]] = defaultdict(list)
    for row, path in enumerate(paths):
        digest = digests.get(path)
        if isinstance(digest, bytes):
            same[digest].append(row)
    leaks: dict[tuple[str, str], list[str]] = {pair: [] for pair in _PAIRS}
    relabelled, repeated = [], []
    for rows in same.values():
        if len({paths[row] for row in rows}) == 1:
            continue  # one file, or a duplicate path, which has its own check
        text = " = ".join(paths[row] for row in rows)
        within = set(splits[rows].tolist())
        for pair in _PAIRS:
            if within.issuperset(pair):
                leaks[pair].append(text)
        if len(within) == 1:
            repeated.append(text)
        if len(set(labels[rows].tolist()) - {-1}) > 1:
            relabelled.append(text)
    return [
        _finding("unreadable images", _texts(unreadable), is_error=True),
        *(_finding(f"same image in {one} and {other}", found) for (one, other), found in leaks.items()),
        _finding("same image under two classes", relabelled),
        _finding("same image more than once in a split", repeated),
    ]


def _digest(source: ImageSource, path: str, max_pixels: int) -> bytes | UserError:
    """Returns the digest of the decoded pixels, which another compression does not change, or why there is none."""
    try:
        pixels = decode(source, path, None, max_pixels=max_pixels)
    except UserError as error:
        return error
    return hashlib.sha256(repr(pixels.shape).encode() + pixels.tobytes()).digest()


def _texts(errors: Iterable[UserError]) -> list[str]:
    return [str(error) for error in errors]
