"""What is wrong or odd in a data set, found before a long run finds it."""

import itertools
import posixpath
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Int64, Shaped

from aurank.data.checks.findings import SPLIT_PAIRS, DoctorReport, Finding, finding_of, same_thing, surplus
from aurank.data.decode import MAX_PIXELS
from aurank.data.manifest import Manifest, by_ending, labels_among
from aurank.names import text_key

_SPLIT_NAMES = {
    *("train", "training", "val", "valid", "validation", "dev", "test", "testing"),
    *("query", "queries", "gallery", "index", "database", "distractors"),
}


def examine(
    manifest: Manifest,
    *,
    contents: bool = True,
    train_labels: bool = True,
    ask_classes: bool = False,
    max_pixels: int = MAX_PIXELS,
    candidates: Int64[np.ndarray, "pair 2"] | None = None,
    listener: Callable[[str, int, int], object] | None = None,
) -> DoctorReport:
    """Return all that is wrong or odd in a data set, together, with counts."""
    paths, labels, classes, splits = manifest.paths, manifest.labels, manifest.classes, manifest.splits
    labelled = np.full(len(paths), classes != paths) & (train_labels | (splits != "train"))
    missing: dict[str, list[int]] = {path: [] for path in dict.fromkeys(paths) if not manifest.source.exists(path)}
    for row, path in enumerate(paths):
        if path in missing:
            missing[path].append(row)
    empty = [split for split in ("train", "test")[: 1 + train_labels] if split not in splits]
    findings = [
        finding_of("missing", list(missing), [*missing.values()]),
        *_repeated_rows(manifest),
        finding_of("unread", manifest.unread, check=f"files that are not read ({by_ending(manifest.unread)})"),
        finding_of("empty", empty),
    ]
    if manifest.texts is None:  # as a query it would have no positive
        within = {split: labels[labelled & (splits == split)] for split in np.unique(splits[labelled]).tolist()}
        counts = {split: np.bincount(inside, minlength=len(classes)) for split, inside in within.items()}
        lone = {split: np.flatnonzero(each * manifest.num_alike(each) == 1).tolist() for split, each in counts.items()}
        names = [f"{classes[label]} in {split}" for split, alone in lone.items() for label in alone]
        findings.append(finding_of("lone", names))
    names = [classes[label] for label in np.unique(labels[labelled]).tolist()]
    if ask_classes and names and (odd := odd_classes(names)) is not None:
        findings.append(finding_of("odd", odd[1], check=f"{odd[0]}, so the folder may be a level too high"))
    findings.append(_spelt_alike(manifest, np.flatnonzero(labelled)))
    for first, second in SPLIT_PAIRS:
        shared = np.intersect1d(labels[labelled & (splits == first)], labels[labelled & (splits == second)])
        names = [classes[label] for label in shared.tolist()]
        findings.append(finding_of("shared", names, check=f"classes in both {first} and {second}"))
    if contents:
        from aurank.data.checks.pictures import examine_contents  # whose libraries take a second to import

        findings += examine_contents(
            manifest,
            np.where(labelled, labels, -1),
            set(missing),
            max_pixels=max_pixels,
            candidates=candidates,
            tell=listener or (lambda *_: None),
        )
    return DoctorReport(manifest.name, _counts(manifest, labelled), (), manifest).with_findings(findings)


def odd_classes(classes: Sequence[str]) -> tuple[str, list[str]] | None:
    """Return what is odd about the classes, and which they are, where most look like splits or they are two at most."""
    folders = [re.split(r"[/\\]", name.lower()) for name in classes]
    words = [_SPLIT_NAMES & {*parts, *(re.split(r"[ _-]", part)[-1] for part in parts)} for parts in folders]
    alike = list(itertools.compress(classes, words))
    if len(classes) > 2 and (len(set().union(*words)) < 2 or 2 * len(alike) < len(classes)):
        return None
    if alike:
        return "classes that look like splits", alike
    return ("two classes" if len(classes) == 2 else "one class"), list(classes)


def repeated_image(manifest: Manifest) -> str | None:
    """Return words on the first image that is listed twice; None if none is."""
    paths = manifest.paths if manifest.texts is None else tuple(dict.fromkeys(manifest.paths))
    images = [*map(posixpath.normpath, paths)]
    if manifest.boxes is not None and manifest.texts is None:
        images = [f"{image} {box}" for image, box in zip(images, manifest.boxes.tolist(), strict=True)]
    repeated = [image for image, count in Counter(images).items() if count > 1]
    more = f", and {len(repeated) - 1:,} more" if len(repeated) > 1 else ""
    return f"{manifest.name} lists image {repeated[0]!r} twice{more}" if repeated else None


def _counts(manifest: Manifest, labelled: Shaped[np.ndarray, " image"]) -> dict[str, int]:
    texts, rows = manifest.texts, "images" if manifest.texts is None else "pairs"
    counts = {rows: len(manifest)}
    if texts is not None:
        counts |= {"images": len(set(manifest.paths)), "texts": len(set(map(text_key, texts)))}
    number, unit = labels_among(manifest, labelled)
    counts[unit] = number
    for split in np.unique(manifest.splits).tolist():
        within = manifest.splits == split
        counts[f"{split} {rows}"] = int(np.count_nonzero(within))
        counts[f"{split} {unit}"], _ = labels_among(manifest, labelled & within)
    return {name: count for name, count in counts.items() if count or unit not in name}


def _repeated_rows(manifest: Manifest) -> list[Finding]:
    paths, splits, texts = manifest.paths, manifest.splits.tolist(), manifest.texts
    names: Sequence[str] = manifest.regions
    if texts is not None:
        names = [f"{path}: {text_key(text)}" for path, text in zip(paths, texts, strict=True)]
    rows: defaultdict[str, list[int]] = defaultdict(list)
    for row, name in enumerate(names):
        rows[name].append(row)
    several = {name: repeats for name, repeats in rows.items() if len(repeats) > 1}
    drop = []
    for repeats in several.values():
        alike: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        for row in repeats:
            alike[splits[row], int(manifest.labels[row])].append(row)
        drop += [row for each in alike.values() for row in surplus(manifest, each, by_path=False)]
    check = "duplicate paths" if texts is None else "duplicate pairs"
    repeated = finding_of("listed_twice", [*several], [*several.values()], drop, check=check)
    if texts is None:
        return [repeated]
    by_split: dict[str, dict[str, list[int]]] = {}
    for row, (path, split) in enumerate(zip(paths, splits, strict=True)):
        by_split.setdefault(path, {}).setdefault(split, []).append(row)
    leaks = {path: parts for path, parts in by_split.items() if len(parts) > 1}
    groups = [[row for part in parts.values() for row in part] for parts in leaks.values()]
    drop = [row for parts in leaks.values() for row in parts.get("train", list(parts.values())[-1])]
    return [repeated, finding_of("listed_in_two_splits", [*leaks], groups, drop)]


def _spelt_alike(manifest: Manifest, rows: Int64[np.ndarray, " labelled"]) -> Finding:
    labels, first = np.unique(manifest.labels[rows], return_index=True)
    alike: dict[str, dict[str, int]] = {}
    for label, row in zip(labels.tolist(), rows[first].tolist(), strict=True):
        alike.setdefault(text_key(manifest.classes[label]), {})[manifest.classes[label]] = row
    several = [named for named in alike.values() if len(named) > 1]
    # Escaped where need be: two forms of one letter look the same.
    names = [same_thing([name if name.isascii() else ascii(name) for name in named]) for named in several]
    return finding_of("spelt", names, [list(named.values()) for named in several])
