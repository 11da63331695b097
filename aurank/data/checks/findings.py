"""What the doctor found: findings with their consequence and remedy, and the table of the rows left."""

import tomllib
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from aurank.data.manifest import Manifest
from aurank.data.sources import FolderSource, ZipSource
from aurank.errors import UserError
from aurank.files import csv_text, write_text
from aurank.names import meant, nearest

_EXAMPLES = 3
SPLIT_PAIRS = (("train", "test"), ("train", "val"), ("val", "test"))
_KEPT_SPLITS = ("test", "val", "train")  # of an image in several, the first keeps it

FIXES = (
    *("missing", "unreadable", "repeats", "near-repeats", "leaks", "near-leaks", "conflicts", "near-conflicts"),
    *("embeddings", "labels", "suspects"),
)
"""The names of what a cleaned table can leave out, which docs/doctor_table.md explains."""
NEED_MODEL = ("embeddings", "labels")
"""Those of FIXES that only embeddings show."""


_ADVICE = tomllib.loads(Path(__file__).with_name("findings.toml").read_text("utf-8"))


@dataclass(frozen=True)
class Finding:
    """One kind of problem: how many of it, and the first few.

    Attributes:
        rows: of the data set, those of each thing found; empty where a finding is of no rows.
        fix: its name among FIXES, "" where a cleaned table leaves nothing out for it.
        drop: rows that a cleaned table leaves out for it.

    Example:
        >>> print(Finding("missing files", 5, ("a.png", "b.png"), is_error=True))
        missing files: 5 (a.png; b.png, and 3 more)
    """

    check: str
    count: int
    examples: tuple[str, ...]
    is_error: bool
    consequence: str = ""
    remedy: str = ""
    rows: tuple[tuple[int, ...], ...] = field(default=(), repr=False)
    fix: str = ""
    drop: tuple[int, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        more = f", and {self.count - len(self.examples)} more" if self.count > len(self.examples) else ""
        return f"{self.check}: {self.count}" + (f" ({'; '.join(self.examples)}{more})" if self.examples else "")


def same_thing(names: Sequence[str]) -> str:
    """Return names of one thing as an example of a finding: the first few, and how many more."""
    more = [f"{len(names) - _EXAMPLES:,} more"] if len(names) > _EXAMPLES else []
    return " = ".join([*names[:_EXAMPLES], *more])


def finding_of(
    kind: str,
    names: Sequence[str],
    rows: Sequence[Sequence[int]] = (),
    drop: Sequence[int] | None = None,
    *,
    check: str = "",
) -> Finding:
    """Return the finding of some things by their names; where its kind has a fix it drops all their rows by default."""
    advice = _ADVICE[kind]
    fix = advice.get("fix", "")
    if fix and check.startswith("nearly"):
        fix = f"near-{fix}"
    dropped = ([row for group in rows for row in group] if drop is None else drop) if fix else ()
    return Finding(
        check or advice["check"],
        len(names),
        tuple(names[:_EXAMPLES]),
        advice.get("is_error", False),
        advice["consequence"],
        advice["remedy"].replace("--fix", f"--fix {fix}"),
        tuple(map(tuple, rows)),
        fix,
        tuple(dropped),
    )


@dataclass(frozen=True)
class DoctorReport:
    """All findings about one data set. Errors would stop or falsify a run; warnings may be meant.

    Attributes:
        counts: of "images", "classes", "train images", "train classes", …
        manifest: the data set, whose rows the findings name; None of saved embeddings.

    Example:
        >>> print(DoctorReport("toy", {"images": 2, "classes": 1}, ()))
        toy: 2 images, 1 classes
          nothing wrong was found
    """

    name: str
    counts: dict[str, int]
    findings: tuple[Finding, ...]
    manifest: Manifest | None = field(default=None, repr=False, compare=False)

    @property
    def errors(self) -> list[str]:
        """What would stop or falsify a run: missing and unreadable files, duplicate paths, embeddings of no number."""
        return [str(finding) for finding in self.findings if finding.is_error]

    @property
    def warnings(self) -> list[str]:
        """Everything else."""
        return [str(finding) for finding in self.findings if not finding.is_error]

    @property
    def severity(self) -> int:
        """2 where there are errors, 1 where other findings name rows, 0 where nothing is wrong with any row."""
        return 2 if self.errors else int(any(finding.rows for finding in self.findings))

    def with_findings(self, more: Sequence[Finding]) -> "DoctorReport":
        """Return the report with further findings behind its own; those of nothing are left out."""
        return replace(self, findings=(*self.findings, *(finding for finding in more if finding.count)))

    def left_out(self, fix: str) -> set[int]:
        return {row for finding in self.findings if finding.fix == fix for row in finding.drop}

    def kept(self, fixes: Collection[str]) -> Manifest:
        """Return the data set without the rows that the findings of these names leave out."""
        assert self.manifest is not None
        dropped = set().union(*map(self.left_out, fixes))
        return self.manifest.select([row for row in range(len(self.manifest)) if row not in dropped])

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {name}" for name, count in self.counts.items())
        lines = [f"{self.name}: {counts}"]
        lines += [f"  error: {text}" for text in self.errors] + [f"  warning: {text}" for text in self.warnings]
        return "\n".join(lines if self.findings else [*lines, "  nothing wrong was found"])


def surplus(manifest: Manifest, rows: Sequence[int], *, by_path: bool = True) -> list[int]:
    """Return which rows of one image a cleaned table leaves out: all that stand beside one that it keeps."""
    splits = manifest.splits.tolist()
    ordered = sorted(rows, key=lambda row: (_KEPT_SPLITS.index(splits[row]), not manifest.is_query[row], row))
    staying: list[int] = []
    for row in ordered:
        is_kept = by_path and any((manifest.paths[row], splits[row]) == (manifest.paths[k], splits[k]) for k in staying)
        if is_kept or not any(stand_alike(manifest, row, kept_row) for kept_row in staying):
            staying.append(row)
    return [row for row in ordered if row not in staying]


def stand_alike(manifest: Manifest, first: int, second: int) -> bool:
    """Return whether two rows are of one camera (group) and, within a split, both query, both gallery, or both both."""
    groups, query, gallery = manifest.groups, manifest.is_query, manifest.is_gallery
    same_camera = groups is None or groups[first] == groups[second]
    same_roles = query[first] == query[second] and gallery[first] == gallery[second]
    return bool(same_camera and (same_roles or manifest.splits[first] != manifest.splits[second]))


def read_fixes(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in FIXES:
            hint = "; the table to write is --out FILE.csv" if name.endswith(".csv") else meant(nearest(name, FIXES))
            raise UserError(f"--fix {text}: no finding is named {name!r}{hint}; expected some of {', '.join(FIXES)}")
    return list(dict.fromkeys(names))


def describe_cleaning(report: DoctorReport, fixes: Sequence[str]) -> str:
    """Return how many rows each name of FIXES leaves out, and which classes lose their last pair."""
    assert report.manifest is not None
    cleaned = report.kept(fixes)
    counts = ", ".join(f"{name} {len(report.left_out(name)):,}" for name in fixes)
    rows = f"{len(report.manifest) - len(cleaned):,} of {len(report.manifest):,} rows"
    before, after = classes_with_pairs(report.manifest), set(classes_with_pairs(cleaned))
    lost = [f"{name!r} in {split}" for split, name in before if (split, name) not in after]
    more = f", and {len(lost) - _EXAMPLES:,} more" if len(lost) > _EXAMPLES else ""
    named = f": {', '.join(lost[:_EXAMPLES])}{more}" if lost else ""
    return f"--fix leaves out {rows} ({counts})\n{len(lost):,} of {len(before):,} classes lose their last pair{named}"


def classes_with_pairs(manifest: Manifest) -> list[tuple[str, str]]:
    """Return the splits and classes, or single labels, in which an image finds another."""
    manifest = manifest.by_label()
    groups = np.full(len(manifest), -1) if manifest.groups is None else manifest.groups
    training = manifest.splits == "train"
    columns = [manifest.splits, manifest.labels, np.where(training, -1, groups)]
    columns += [manifest.is_query | training, manifest.is_gallery | training]
    sides: dict[tuple[str, int], list[tuple[int, bool, bool]]] = {}
    for split, label, *row in zip(*(column.tolist() for column in columns), strict=True):
        sides.setdefault((split, label), []).append((row[0], row[1], row[2]))
    pairs = []
    for (split, label), images in sides.items():
        gallery = Counter(group for group, _, is_gallery in images if is_gallery)
        answers = (gallery.total() - (gallery[group] if group >= 0 else both) for group, query, both in images if query)
        if any(count > 0 for count in answers):
            pairs.append((split, manifest.classes[label]))
    return pairs


def write_table(manifest: Manifest, file: Path) -> str:
    """Write a data set as a csv table, and return how it is named to read it: "table:FILE" and overrides."""
    overrides = require_table(manifest)
    columns: dict[str, list[str]] = {
        "path": list(manifest.paths),
        "label": [manifest.classes[label] for label in manifest.labels.tolist()],
        "split": manifest.splits.tolist(),
    }
    for name, flags in (("is_query", manifest.is_query), ("is_gallery", manifest.is_gallery)):
        if not flags.all():
            columns[name] = [str(int(flag)) for flag in flags.tolist()]
    boxes = (None,) * 4 if manifest.boxes is None else manifest.boxes.T
    numbers = (manifest.groups, manifest.super_labels, *boxes)
    for name, values in zip(("group", "super_label", "x1", "y1", "x2", "y2"), numbers, strict=True):
        if values is not None:
            names = manifest.group_names if name == "group" else None
            named = str if names is None else names.__getitem__
            columns[name] = ["" if number < 0 else named(number) for number in values.tolist()]
    if manifest.texts is not None:
        columns["text"] = list(manifest.texts)
    write_text(file, csv_text([columns, *zip(*columns.values(), strict=True)]))
    return f"table:{file} {overrides}"


def require_table(manifest: Manifest) -> str:
    """Return the overrides by which a table finds the images; raise UserError where none could."""
    source, name = manifest.source, manifest.name
    odd = [text for text in (*manifest.paths, *manifest.classes) if text.encode("utf-8", "ignore").decode() != text]
    if not len(manifest):
        problem = f"nothing of {name} would be left, so no table is written"
    elif manifest.positives is not None:
        problem = f"{name} lists which images belong together, which a table does not hold"
    elif odd:
        problem = f"{odd[0]!r} of {name} is no UTF-8, which a table is written in; rename it"
    elif isinstance(source, FolderSource):
        return f"data.params.path={source.root.resolve()}"
    elif isinstance(source, ZipSource):
        inside = f" data.params.images={source.prefix.rstrip('/')}" if source.prefix else ""
        return f"data.params.path={source.file.resolve()}{inside}"
    else:
        problem = f"the images of {name} are no files of a folder or zip, so no table names them; save them as such"
    raise UserError(problem)
