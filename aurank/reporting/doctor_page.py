"""doctor.html: what the doctor found, each with pictures, its consequence and a remedy, in one file."""

from collections.abc import Callable, Sequence
from typing import Any

from aurank.data.checks.findings import DoctorReport, Finding
from aurank.reporting.page import endings, render
from aurank.reporting.pictures import Pictures

MOST_SHOWN = 24  # things found that are shown of a finding
MOST_OF_ONE = 6  # pictures of one of them
MOST_NAMED = 100  # images of one of them whose paths are listed


def doctor_page(report: DoctorReport, *, title: str = "Doctor", summary: str = "", command: str = "") -> str:
    """Return the page of a report; `summary`: the line below its heading in place of how many errors there are."""
    manifest = report.manifest
    pictures = Pictures(None if manifest is None else manifest.source)

    def image(row: int) -> tuple[str, str]:
        assert manifest is not None
        path, label, split = manifest.paths[row], manifest.classes[manifest.labels[row]], str(manifest.splits[row])
        return path, split if label == path else f"{split} · {endings([label])[0]}"

    findings = shown_findings(report.findings, pictures, image)
    return render(
        "doctor.html",
        title=f"{title}: {report.name}",
        counts=[{"name": name, "value": f"{count:,}"} for name, count in report.counts.items()],
        findings=findings,
        summary=summary,
        num_errors=len(report.errors),
        num_warnings=len(report.warnings),
        command=command,
        left_out=pictures.left_out,
    )


def shown_findings(
    findings: Sequence[Finding], pictures: Pictures, image: Callable[[int], tuple[str, str]]
) -> list[dict[str, Any]]:
    """Return each finding, errors first, with groups of images if one of them has a picture."""
    shown = []
    for finding in sorted(findings, key=lambda finding: not finding.is_error):
        groups: list[dict[str, Any]] = []
        for rows in finding.rows[:MOST_SHOWN] if pictures.source is not None else ():
            named = [image(row) for row in rows[:MOST_OF_ONE]]
            items = [
                {"path": path, "caption": caption, "beside": beside, "picture": pictures.of(path)}
                for (path, beside), caption in zip(named, endings([path for path, _ in named]), strict=True)
            ]
            further = [image(row)[0] for row in rows[MOST_OF_ONE:MOST_NAMED]]
            groups.append({"items": items, "more": len(rows) - len(items), "further": further})
        if not any(item["picture"] for group in groups for item in group["items"]):
            groups = []
        shown.append({"finding": finding, "groups": groups})
    return shown
