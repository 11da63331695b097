"""doctor.html: what the doctor found, each with pictures, its consequence and a remedy, in one file."""

from typing import Any

from aurank.data.checks.findings import DoctorReport, Finding
from aurank.reporting.page import render
from aurank.reporting.pictures import Pictures

MOST_SHOWN = 24  # things found that are shown of a finding
MOST_OF_ONE = 6  # pictures of one of them


def doctor_page(report: DoctorReport, *, command: str = "", budget: int = 10 * 2**20) -> str:
    """Return the page of a report as HTML text.

    Args:
        report: of data, whose images are shown, or of saved embeddings.
        command: that made it.
        budget: bytes of all pictures together; what does not fit is counted on the page.

    Example:
        >>> finding = Finding("missing files", 1, ("<a>.png",), True, "Training stops.", "Fetch them.")
        >>> page = doctor_page(DoctorReport("toy", {"images": 2}, (finding,)))
        >>> "&lt;a&gt;.png" in page, "Fetch them." in page, "<a>" in page
        (True, True, False)
    """
    manifest = report.manifest
    pictures = Pictures(None if manifest is None else manifest.source, budget)
    findings = [
        _shown(finding, report, pictures) for finding in sorted(report.findings, key=lambda one: not one.is_error)
    ]
    return render(
        "doctor.html",
        title=f"Doctor: {report.name}",
        counts=[{"name": name, "value": f"{count:,}"} for name, count in report.counts.items()],
        findings=findings,
        num_errors=len(report.errors),
        num_warnings=len(report.warnings),
        command=command,
        left_out=pictures.left_out,
    )


def _shown(finding: Finding, report: DoctorReport, pictures: Pictures) -> dict[str, Any]:
    """Return a finding as the page shows it."""
    manifest, groups = report.manifest, []
    for rows in finding.rows[:MOST_SHOWN] if manifest is not None else ():
        assert manifest is not None
        items = []
        for row in rows[:MOST_OF_ONE]:
            path = manifest.paths[row]
            label = manifest.classes[manifest.labels[row]]
            beside = str(manifest.splits[row]) if label == path else f"{manifest.splits[row]} · {label}"
            items.append({"path": path, "beside": beside, "picture": pictures.of(path)})
        groups.append({"items": items, "more": len(rows) - len(items)})
    return {
        "check": finding.check,
        "kind": "error" if finding.is_error else "warning",
        "count": f"{finding.count:,}",
        "examples": finding.examples,
        "consequence": finding.consequence,
        "remedy": finding.remedy,
        "groups": groups,
        "more": len(finding.rows) - len(groups) if groups else 0,
    }
