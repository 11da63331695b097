"""Comparing models by their reports: what ``aurank compare`` calls."""

from collections.abc import Sequence
from pathlib import Path

from pydantic import NonNegativeInt

from aurank.embedding.image_selection import ImageSelection
from aurank.embedding.select_images import select
from aurank.errors import UserError
from aurank.evaluation.compare import Comparison, compare_all
from aurank.evaluation.inputs import ProgressCallback
from aurank.evaluation.report import Report
from aurank.files import require_writable, write_text
from aurank.reporting.compare_page import compare_page
from aurank.reporting.pictures import Pictures
from aurank.reporting.results import REPORT

_MADE = "Made by aurank"  # at the foot of every page


def compare_reports(
    paths: Sequence[Path],
    *,
    out: Path | None = None,
    images: ImageSelection | None = None,
    metric: str = "mauprc",
    resamples: int = 10_000,
    seed: int = 0,
    most: NonNegativeInt = 5,
    force: bool = False,
    progress: ProgressCallback | None = None,
) -> dict[str, Comparison]:
    """Return the comparison of each report with the first, by its path as given.

    Args:
        paths: of reports, or of folders that hold a report.json.
        out: an HTML page to write: numbers, curves, and the queries won and lost with what each model finds.
        images: that were measured, for pictures on the page; default: their paths stand in place of them.
        metric: what is compared, such as mauprc or recall@1.
        resamples: bootstrap resamples of intervals and p-values.
        seed: seed of the bootstrap.
        most: how many of the queries won to list, and of those lost.
        force: compare although protocols or distances differ.
        progress: called as progress(done, total) now and then.

    Raises:
        UserError: a file is no report, reports answer different questions, or `out` is a file of something else.

    Example:
        >>> import tempfile
        >>> import aurank, numpy as np
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     files = [Path(folder, f"{name}.json") for name in ("before", "after")]
        ...     for file, row in zip(files, (1, 2)):
        ...         aurank.evaluate(np.eye(4)[[0, 0, 1, row]], [0, 0, 1, 1]).save(file)
        ...     compare_reports(files, resamples=100).keys() == {str(files[1])}
        True
    """
    if out is not None:
        require_writable(out, suffix=".html")
        if out.exists() and _MADE.encode() not in out.read_bytes()[-4096:]:
            raise UserError(f"--out {out} is there already and is no page of aurank; name another file")
    if len(set(paths)) < 2:
        raise UserError(f"a comparison needs two reports or more; got {', '.join(map(str, paths)) or 'none'}")
    files = [path / REPORT if path.is_dir() else path for path in paths]
    reports = {str(path): Report.load(file) for path, file in zip(paths, files, strict=True)}
    pictures = None if images is None or not images.given else _pictures(images, reports)
    comparisons = compare_all(
        reports, metric=metric, resamples=resamples, seed=seed, most=most, force=force, progress=progress
    )
    if out is not None:
        write_text(out, compare_page(reports, comparisons, pictures=pictures))
    return comparisons


def _pictures(images: ImageSelection, reports: dict[str, Report]) -> Pictures:
    sides = [side for report in reports.values() for side in (report.per_query, report.gallery)]
    paths = {str(path) for side in sides for path in side.get("path", ())}
    manifest = select(images, None).images
    if paths.isdisjoint(manifest.paths):
        raise UserError(
            f"{images.given[0]}: {manifest.name} has none of the {len(paths):,} images of the reports; name the data "
            "and the split that they were measured on"
        )
    return Pictures(manifest.source)
