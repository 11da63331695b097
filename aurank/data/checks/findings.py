"""What the doctor found: findings with their consequence and remedy, and what a cleaned table leaves out."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from aurank.data.manifest import Manifest
from aurank.errors import UserError
from aurank.names import meant, nearest

_EXAMPLES = 3
_KEPT_SPLITS = ("test", "val", "train")  # of an image in several, the first keeps it

FIXES = {
    "missing": "missing files",
    "unreadable": "images that cannot be decoded",
    "repeats": "an image more than once in a split and class: all rows but one",
    "near-repeats": "the same of nearly the same image",
    "leaks": "an image in two splits: all rows but one, of test before val before train",
    "near-leaks": "the same of nearly the same image",
    "conflicts": "an image under two classes: all its rows",
    "near-conflicts": "the same of nearly the same image",
    "blurred": "blurred images",
    "dark": "dark images",
    "tiny": "tiny images",
    "odd-shapes": "images of an odd shape",
    "embeddings": "images whose embedding is NaN, infinite or zero (--model)",
    "labels": "doubtful labels (--model)",
}
"""The names of what a cleaned table can leave out, and what that is."""
NEED_MODEL = ("embeddings", "labels")
"""Those of FIXES that only embeddings show."""


class Advice(NamedTuple):
    """What follows from a kind of finding, and what to do about it."""

    consequence: str = ""
    remedy: str = ""


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
        shown = f" ({'; '.join(self.examples)}{more})" if self.examples else ""
        return f"{self.check}: {self.count}{shown}"


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
        return replace(self, findings=(*self.findings, *(found for found in more if found.count)))

    def left_out(self, fix: str) -> set[int]:
        """Return the rows that the findings of one name of FIXES leave out."""
        return {row for finding in self.findings if finding.fix == fix for row in finding.drop}

    def kept(self, fixes: Collection[str]) -> Manifest:
        """Return the data set without the rows that the findings of these names leave out."""
        assert self.manifest is not None
        dropped = set().union(*map(self.left_out, fixes))
        return self.manifest.select([row for row in range(len(self.manifest)) if row not in dropped])

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {what}" for what, count in self.counts.items())
        lines = [f"{self.name}: {counts}"]
        lines += [f"  error: {text}" for text in self.errors] + [f"  warning: {text}" for text in self.warnings]
        return "\n".join(lines if self.findings else [*lines, "  nothing wrong was found"])


def finding_of(
    check: str,
    found: Sequence[str],
    advice: Advice = Advice(),  # noqa: B008  # a tuple of texts
    *,
    is_error: bool = False,
    rows: Sequence[Sequence[int]] = (),
    fix: str = "",
    drop: Sequence[int] = (),
) -> Finding:
    """Return the finding of some things by their names; `--fix` in its remedy is written out with the name of the fix.

    Example:
        >>> finding_of("empty splits", ["test"]).count
        1
    """
    groups, left_out = tuple(tuple(group) for group in rows), tuple(drop)
    told = advice.consequence, advice.remedy.replace("--fix", f"--fix {fix}")
    return Finding(check, len(found), tuple(found[:_EXAMPLES]), is_error, *told, rows=groups, fix=fix, drop=left_out)


def read_fixes(text: str) -> list[str]:
    """Return the names in "repeats,unreadable"; UserError for one that is not among FIXES.

    Example:
        >>> read_fixes("repeats, unreadable")
        ['repeats', 'unreadable']
    """
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in FIXES:
            hint = "; the table to write is --out FILE.csv" if name.endswith(".csv") else meant(nearest(name, FIXES))
            raise UserError(f"--fix {text}: no finding is named {name!r}{hint}; expected some of {', '.join(FIXES)}")
    return list(dict.fromkeys(names))


def surplus(manifest: Manifest, rows: Sequence[int], *, by_path: bool = True) -> list[int]:
    """Return which rows of one image a cleaned table leaves out: all that stand beside one that it keeps.

    A test row is kept before one of validation and of training, and a query before others.

    Args:
        by_path: a path that is kept once is kept in all its rows of the split, which differ in their box or text.
    """
    order = {split: place for place, split in enumerate(_KEPT_SPLITS)}
    ordered = sorted(rows, key=lambda row: (order[str(manifest.splits[row])], not manifest.is_query[row], row))
    kept: list[int] = []
    left: list[int] = []
    for row in ordered:
        place = manifest.paths[row], manifest.splits[row]
        is_kept = by_path and place in {(manifest.paths[other], manifest.splits[other]) for other in kept}
        (left if not is_kept and any(stand_alike(manifest, row, other) for other in kept) else kept).append(row)
    return left


def stand_alike(manifest: Manifest, one: int, other: int) -> bool:
    """Return whether two rows are of one camera (group) and, within a split, both query, both gallery, or both both.

    Nearly the same picture by two cameras, or as query and in the gallery, is what is to be found, and no repetition.
    """
    groups, query, gallery = manifest.groups, manifest.is_query, manifest.is_gallery
    same_camera = groups is None or groups[one] == groups[other]
    same_roles = query[one] == query[other] and gallery[one] == gallery[other]
    return bool(same_camera and (same_roles or manifest.splits[one] != manifest.splits[other]))
