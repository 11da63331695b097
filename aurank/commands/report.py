"""report.html of an evaluation: the report, with what else was at hand and what the doctor finds in it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from aurank.arrays import select_rows
from aurank.commands.doctor import examine_rows
from aurank.data import Manifest
from aurank.data.checks.findings import finding_of
from aurank.data.manifest import count_labels
from aurank.embedding.embedded import Embedded
from aurank.evaluation.checks import near_rows
from aurank.evaluation.report import Report
from aurank.models.image_model import ImageModel

MOST_WORK = 2**39  # rows times classes times dimensions up to which labels are judged: about 15 s on one core
_ELSEWHERE = "Not looked at here: images by their pixels, and other splits. aurank doctor DATA does that."
_NO_LISTS = "Without lists of neighbours no hubs and no copies are found."
_NO_LABELS = "There are too many rows and classes to doubt labels here: aurank doctor --embeddings FILE takes the time."


@dataclass(frozen=True, eq=False)
class Measurement:
    """What an evaluation ranked, before post-processing, and all images chosen, None of saved rows."""

    model: str
    embedded: Embedded
    images: Manifest | None = None
    notes: Sequence[str] = ()
    network: ImageModel | None = None


def evaluation_page(report: Report, measured: Measurement, *, classes: Sequence[str] = ()) -> str:
    """Return the page of an evaluation as HTML text, with the doctor's findings; `classes` get grids of their own."""
    from aurank.reporting.report_page import report_page

    images, embedded = measured.images, measured.embedded
    rows = f"{len(embedded.labels):,} embeddings" if images is None else f"{images.name}: {len(images):,} images"
    data = f"{rows} of {count_labels(embedded)}" + (f", manifest {images.sha256[:16]}" if images else "")
    facts, examined = [("model", measured.model), ("data", data)], examine_measured(report, measured)
    title = measured.model.split(",")[0]  # without options, which the facts have
    source, model = None if images is None else images.source, measured.network
    shown: dict[str, Any] = {"examined": examined, "embeddings": select_rows(embedded.embeddings, embedded.is_query)}
    return report_page(report, source=source, model=model, classes=classes, facts=facts, title=title, **shown)


def examine_measured(report: Report, measured: Measurement) -> dict[str, Any]:
    embedded, images, lists = measured.embedded, measured.images, report.neighbours
    rows, dim = embedded.embeddings.shape
    classes = len(np.unique(embedded.labels))
    is_quick = rows * classes * dim <= MOST_WORK
    left_out = [_ELSEWHERE, *([] if lists is not None else [_NO_LISTS]), *([] if is_quick else [_NO_LABELS])]
    if lists is None:
        lists = near_rows(embedded.embeddings, np.arange(0))
    labelled = np.full(rows, is_quick and classes < rows)
    skipped = (
        [] if images is None else [images.paths[row] for row in np.setdiff1d(np.arange(len(images)), embedded.ids)]
    )
    findings = [finding_of("not_measured", skipped)]
    by_cosine = report.distance == "cosine" and report.approximation is None and report.postprocessing is None
    findings += examine_rows(embedded, labelled, lists=lists, by_cosine=by_cosine)[0]
    names = embedded.labels if embedded.classes is None else embedded.classes[embedded.labels]
    shown = [finding for finding in findings if finding.count]
    return {"findings": shown, "paths": embedded.paths, "classes": names, "left_out": left_out}
