"""What the doctor found: findings with their consequence and remedy, and what a cleaned table leaves out."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from aurank.data.manifest import Manifest

_EXAMPLES = 3


class Advice(NamedTuple):
    """What follows from a kind of finding, and what to do about it."""

    consequence: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Finding:
    """One kind of problem: how many of it, and the first few.

    Attributes:
        rows: of the data set, those of each thing found; empty where a finding is of no rows.
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

    def kept(self) -> Manifest:
        """Return the data set without the rows that findings would drop."""
        assert self.manifest is not None
        dropped = {row for finding in self.findings for row in finding.drop}
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
    drop: Sequence[int] = (),
) -> Finding:
    """Return the finding of some things by their names.

    Example:
        >>> finding_of("empty splits", ["test"]).count
        1
    """
    groups, left_out = tuple(tuple(group) for group in rows), tuple(drop)
    return Finding(check, len(found), tuple(found[:_EXAMPLES]), is_error, *advice, rows=groups, drop=left_out)
