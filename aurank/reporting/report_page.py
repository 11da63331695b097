"""report.html: the numbers, curves and lists of an evaluation in one file that people look at."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from aurank.arrays import Rows
from aurank.data.sources import ImageSource
from aurank.evaluation.checks import confusions, hubs
from aurank.evaluation.engine.nearest import NearestRows
from aurank.evaluation.index.overview import plane
from aurank.evaluation.report import Report
from aurank.models.image_model import ImageModel
from aurank.reporting.charts import codes, curves, svg
from aurank.reporting.doctor_page import shown_findings
from aurank.reporting.grids import gallery_names, make_grids, query_names
from aurank.reporting.page import endings, render
from aurank.reporting.pictures import Pictures
from aurank.reporting.tables import class_names, counted, facts_of, same_metrics

MOST_CLASSES = 500  # in the table; per_class.csv has all
MOST_NAMES = 100  # of a list of images
MOST_POINTS = 1500  # of the map, whose pictures have 64 pixels and 4 MiB together
HEADINGS = {
    "numbers": "Numbers",
    "training": "Training",
    "curves": "Curves",
    "map": "Map",
    "findings": "Findings",
    "grids": "What queries find",
    "cameras": "Cameras",
    "classes": "Classes",
    "confusions": "Classes taken for each other",
    "hubs": "Images that many queries find",
}
CARDS = ("mauprc", "recall@1", "recall@10", "map@r", "mrr", "auroc")


def report_page(
    report: Report,
    *,
    source: ImageSource | None = None,
    model: ImageModel | None = None,
    classes: Sequence[str] = (),
    examined: Mapping[str, Any] | None = None,
    course: Mapping[str, Any] | None = None,
    facts: Sequence[tuple[str, str]] = (),
    title: str = "Retrieval report",
    embeddings: Rows | None = None,
) -> str:
    """Return the page of a report as HTML text: numbers, curves, grids, classes, confusions and hubs.

    `examined`: the doctor's "findings", about rows of "paths" and "classes"; "left_out" says what was not looked at.
    `embeddings`: of all queries, drawn as a map.
    """
    pictures, lists = Pictures(source, model=model), report.neighbours
    grids = [] if lists is None else make_grids(report, pictures, classes=classes)
    charts = curves({"": report})
    if report.codes:
        caption = "Shorter and coarser embeddings: quality by bytes an image."
        charts[caption] = svg(partial(codes, table=report.codes), caption)
    hub_images = None if lists is None else _hubs(report, lists, pictures)
    table = _classes(report) if "label" in report.per_query else None
    confused: dict[str, Any] | None = None
    if lists is not None and table is not None:
        queried, listed, part = confusions(lists, query_names(report), gallery_names(report))
        if part.size:
            shade = np.rint(70 * part / max(float(part.max()), 0.01)).astype(int)
            cells = zip((100 * part).tolist(), shade.tolist(), strict=True)
            rows = [(name, [*zip(*line, strict=True)]) for name, line in zip(queried.tolist(), cells, strict=True)]
            confused = {"columns": listed.tolist(), "rows": rows}
    findings: list[dict[str, Any]] = []
    if examined is not None:
        paths, names = (examined[name].astype(np.str_).tolist() for name in ("paths", "classes"))
        findings = shown_findings(examined["findings"], pictures, lambda row: (paths[row], endings([names[row]])[0]))
    places = None if embeddings is None or embeddings.shape[1] < 2 else _map(report, embeddings, source)
    pairs = {(pair["query"], pair["gallery"]): pair for pair in report.group_pairs or []}
    cameras = dict.fromkeys(name for pair in pairs for name in pair)
    sections = {
        "numbers": report, "training": course, "curves": charts, "map": places, "findings": examined, "grids": grids,
        "cameras": pairs, "classes": table, "confusions": confused, "hubs": hub_images,
    }  # fmt: skip
    return render(
        "report.html",
        title=title,
        report=report,
        counted=counted(report),
        contents=[name for name, content in sections.items() if content],
        headings=HEADINGS,
        cards=_cards(report),
        notes=[note for note in report.notes if not (facts and note.startswith("model "))],  # a fact names it
        plain=(report.postprocessing or {}).get("plain"),
        facts=[*facts, *facts_of(report)],
        charts=charts,
        map=places,
        course=course,
        examined=examined,
        findings=findings,
        grids=grids,
        classes=table,
        confused=confused,
        hubs=hub_images,
        pairs=pairs,
        cameras=[[name for name in cameras if any(pair[side] == name for pair in pairs)] for side in (0, 1)],
        length=0 if lists is None else lists.row.shape[1],
        single=bool((report.per_query["num_positives"] == 1).all()),
        metrics=same_metrics(report),
        lists=_left_out(report, pictures),
    )


def _map(report: Report, embeddings: Rows, source: ImageSource | None) -> dict[str, Any]:
    names, total = query_names(report), len(report.per_query["query"])
    shown = np.random.default_rng(0).permutation(total)[:MOST_POINTS]
    coordinates, method = plane(embeddings[report.per_query["query"][shown]])
    low, size = coordinates.min(axis=0), np.maximum(np.ptp(coordinates, axis=0), 1e-9)
    columns = np.round((coordinates - low) / size * 96 + 2, 1).T
    hues = np.unique(names, return_inverse=True)[1][shown] * 137 % 360  # golden angle: the first classes differ most
    paths = report.per_query.get("path", np.full(total, "")).astype(np.str_)[shown].tolist()
    pictures, ap = Pictures(source, budget=4 * 2**20, side=64), report.per_query["ap"][shown].round(4)
    fields = zip(*columns, hues, ap, names[shown], paths, map(pictures.of, paths), strict=True)
    keys = ("x", "y", "hue", "ap", "label", "path", "picture")
    points = [dict(zip(keys, values, strict=True)) for values in fields]
    return {"points": points, "method": method, "total": total, "left_out": pictures.left_out}


def _cards(report: Report) -> list[dict[str, Any]]:
    values = {"mauprc": report.mauprc} | {name: report.metrics[name] for name in same_metrics(report)}
    plain, (low, high) = (report.postprocessing or {}).get("plain", {}), report.tie_bounds
    cards = []
    for name in (name for name in CARDS if name in values):
        beside = [report.interval(name)] if report.interval(name) else []
        if name == "mauprc" and low != high:
            beside.append(f"equal scores allow {low:.4f} to {high:.4f}")
        if name in plain:
            beside.append(f"plain {plain[name]:.4f}")
        cards.append({"name": name, "value": f"{values[name]:.4f}", "beside": beside})
    return [*cards, {"name": "a random order", "value": f"{report.random_order:.4f}", "beside": ["mauprc"]}]


def _classes(report: Report) -> dict[str, Any]:
    table, names, distinct = report.class_table(), class_names(report), same_metrics(report)
    shown = ["mauprc", *(name for name in ("recall@1", "r_precision") if name in distinct)]
    first = np.unique(report.per_query["label"], return_index=True)[1]
    positives = {} if report.tags else {"positives": report.per_query["num_positives"][first]}  # differs within a tag
    columns = {"queries": table["num_queries"], **positives, **{name: table[name] for name in shown}}
    order = np.argsort(table["mauprc"], kind="stable")[:MOST_CLASSES].tolist()
    rows = [(names[index], *(column[index].item() for column in columns.values())) for index in order]
    return {"rows": rows, "columns": ["class", *columns], "total": len(names)}


def _hubs(report: Report, lists: NearestRows, pictures: Pictures) -> dict[str, Any] | None:
    counts = hubs(lists, report.num_gallery)
    names, paths = gallery_names(report), report.gallery.get("path")
    images = []
    for row, number, right in zip(*(counts[name].tolist() for name in ("row", "lists", "right")), strict=True):
        path = "" if paths is None else str(paths[row])
        image = {"row": row, "lists": number, "right": right, "label": names[row]}
        images.append({**image, "path": path, "picture": pictures.of(path)})
    return {"counts": counts, "images": images} if images else None


def _left_out(report: Report, pictures: Pictures) -> list[dict[str, Any]]:
    lone = np.setdiff1d(np.arange(report.num_queries), report.per_query["query"])
    paths = report.gallery.get("path") if report.num_queries == report.num_gallery else None
    names = [f"row {row}" if paths is None else str(paths[row]) for row in lone.tolist()]
    lists: list[dict[str, Any]] = [
        {"title": "Queries without a positive, skipped", "count": len(lone), "names": names},
        {"title": "Images that could not be read", "count": len(pictures.missing), "names": [*pictures.missing]},
        {"title": "Pictures left out to keep the page small", "count": pictures.left_out, "names": []},
    ]
    return [{**images, "names": images["names"][:MOST_NAMES]} for images in lists if images["count"]]
