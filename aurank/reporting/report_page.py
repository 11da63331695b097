"""report.html: what an evaluation found, in one file that people look at."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from aurank.arrays import Rows
from aurank.data.checks.findings import Finding
from aurank.data.sources import ImageSource
from aurank.evaluation.checks import confusions, hubs
from aurank.evaluation.report import Report
from aurank.reporting.charts import ap_histogram, frequency_chart, precision_recall_chart, recall_chart
from aurank.reporting.doctor_page import shown_findings
from aurank.reporting.grids import gallery_names, make_grids, query_names
from aurank.reporting.maps import draw_maps
from aurank.reporting.page import endings, render, trusted
from aurank.reporting.pictures import Pictures
from aurank.reporting.plots import codes_chart
from aurank.reporting.tables import describe_ties

MOST_CLASSES = 500  # in the table; per_class.csv has all
MOST_NAMES = 100  # of a list of images
CARDS = ("mauprc", "recall@1", "recall@10", "map@r", "mrr", "auroc")


@dataclass(frozen=True, eq=False)
class PageImages:
    """What a page shows beside the numbers, where it is at hand."""

    source: ImageSource | None = None  # of the images, by the paths in the report
    embeddings: Rows | None = None  # [query, dim] of all queries, for the map


@dataclass(frozen=True, eq=False)
class Examined:
    """What the doctor found in what was measured: rows of ``paths`` and ``classes``; ``left_out`` was not looked at."""

    findings: Sequence[Finding]
    paths: np.ndarray
    classes: np.ndarray
    left_out: Sequence[str] = ()


def report_page(
    report: Report,
    *,
    images: PageImages | None = None,
    budget: int = 10 * 2**20,
    classes: Sequence[str] = (),
    examined: Examined | None = None,
    facts: Sequence[tuple[str, str]] = (),
    title: str = "Retrieval report",
) -> str:
    """Return the page of a report as HTML text: numbers, curves, grids, classes, confusions, hubs and a map.

    Args:
        report: without neighbours grids, confusions and hubs are left out.
        budget: bytes of all pictures; the page says how many did not fit.
        classes: names of classes that get a grid of their own.
        facts: names and values that say what was measured.

    Raises:
        UserError: no query of a class asked for.
    """
    images = images or PageImages()
    pictures = Pictures(images.source, budget)
    lists = report.neighbours is not None
    grids = make_grids(report, pictures, classes=classes) if lists else []
    charts = _charts(report, images.embeddings)
    shown_hubs = _hubs(report, pictures) if lists else None
    table, columns, note = _class_rows(report)
    confused = _confused(report) if lists and table else None
    findings = [] if examined is None else _found(examined, pictures)
    sections = {
        "findings": examined, "grids": grids, "classes": table, "confusions": confused, "hubs": shown_hubs,
    }  # fmt: skip
    left_out = _left_out(report, pictures)
    contents = [("numbers", "Numbers"), ("curves", "Curves")]
    contents += [(name, name.capitalize()) for name, content in sections.items() if content]
    return render(
        "report.html",
        title=title,
        counted=_counted(report),
        contents=contents,
        cards=_cards(report),
        notes=[note for note in report.notes if not (facts and note.startswith("model "))],  # the facts say it
        metrics=[
            {"name": name, "value": f"{value:.4f}", "interval": _interval(report, name), "plain": _plain(report, name)}
            for name, value in report.metrics.items()
        ],
        is_processed=report.postprocessing is not None,
        codes=report.codes or [],
        level=_level(report),
        facts=[*facts, *_facts(report)],
        charts=charts,
        examined=examined,
        findings=findings,
        grids=grids,
        classes=table,
        class_columns=columns,
        classes_note=note,
        confused=confused,
        hubs=shown_hubs,
        lists=left_out,
    )


def _charts(report: Report, embeddings: Rows | None) -> list[dict[str, Any]]:
    """Return the curves of a report, and maps of the embeddings."""
    shown = {
        "Precision over recall, mean over queries.": precision_recall_chart({"": report}),
        "Recall@k: queries with a positive among the first k.": recall_chart({"": report}),
        "Average precision of the queries.": ap_histogram({"": report}),
    }
    if len(np.unique(np.log2(report.per_query["num_positives"]).astype(int))) > 1:
        shown["mAUPRC by the number of positives of a query."] = frequency_chart(report)
    if report.codes:
        shown["Shorter and coarser embeddings: quality by bytes an image."] = codes_chart(report.codes)
    if embeddings is not None:
        shown |= draw_maps(report, embeddings)
    return [{"svg": trusted(chart), "caption": caption} for caption, chart in shown.items()]


def _counted(report: Report) -> str:
    lone = f", {report.num_lone_queries:,} of them without a positive and skipped" if report.num_lone_queries else ""
    protocol = f", protocol {report.protocol['name']}" if report.protocol else ""
    return f"{report.num_queries:,} queries{lone}, {report.num_gallery:,} gallery rows{protocol}"


def _interval(report: Report, name: str) -> str:
    if report.intervals is None or name not in report.intervals.bounds:
        return ""
    low, high = report.intervals.bounds[name]
    return f"{low:.4f} to {high:.4f}"


def _level(report: Report) -> str:
    """Return the level of the intervals, such as "95 %"."""
    return "" if report.intervals is None else f"{100 * report.intervals.resampling.level:.4g} %"


def _plain(report: Report, name: str) -> str:
    """Return a metric without post-processing, where there was one."""
    value = (report.postprocessing or {}).get("plain", {}).get(name)
    return "" if value is None else f"{value:.4f}"


def _cards(report: Report) -> list[dict[str, Any]]:
    cards = []
    for name in CARDS:
        if name == "mauprc" or name in report.metrics:
            value = report.mauprc if name == "mauprc" else report.metrics[name]
            beside = [between] if (between := _interval(report, name)) else []
            low, high = report.tie_bounds or (0.0, 0.0)
            if name == "mauprc" and low != high:
                beside.append(f"equal scores allow {low:.4f} to {high:.4f}")
            if plain := _plain(report, name):
                beside.append(f"plain {plain}")
            cards.append({"name": name, "value": f"{value:.4f}", "beside": beside})
    if "num_negatives" in report.per_query:
        cards.append({"name": "a random order", "value": f"{report.random_order:.4f}", "beside": ["mauprc"]})
    return cards


def _facts(report: Report) -> list[tuple[str, str]]:
    protocol = report.protocol or {}
    facts = {
        "command": report.command,
        "date": report.date,
        "protocol": protocol.get("name"),
        "checksum of the protocol's data": protocol.get("checksum"),
        "distance": report.distance,
        "equal scores count": describe_ties(report.ties),
        "post-processing": (report.postprocessing or {}).get("steps"),
        "intervals": None if report.intervals is None else str(report.intervals),
        "versions": ", ".join(f"{name} {version}" for name, version in report.versions.items()),
    }
    return [(name, str(value)) for name, value in facts.items() if value]


def _class_rows(report: Report) -> tuple[list[list[dict[str, Any]]], list[str], str]:
    """Return the rows of the table of classes, worst first, its columns, and what was left out."""
    if "label" not in report.per_query:
        return [], [], ""
    table = report.class_table()
    shown = [name for name in ("mauprc", "recall@1", "r_precision") if name in table]
    label, first = np.unique(report.per_query["label"], return_index=True)
    names = dict(zip(label.tolist(), query_names(report)[first].tolist(), strict=True))
    positives = dict(zip(label.tolist(), report.per_query["num_positives"][first].tolist(), strict=True))
    order = np.argsort(table["mauprc"], kind="stable")[:MOST_CLASSES]
    rows = []
    for index in order.tolist():
        own = table["label"][index].item()
        cells = [(names[own], None), *((f"{n:,}", n) for n in (int(table["num_queries"][index]), positives[own]))]
        cells += [(f"{table[name][index]:.4f}", float(table[name][index])) for name in shown]
        rows.append([{"text": text, "value": value} for text, value in cells])
    whole = len(table["label"])
    note = (
        f"{whole:,} classes, worst first."
        if len(rows) == whole
        else (f"The {len(rows):,} worst of {whole:,} classes; per_class.csv has all.")
    )
    return rows, ["class", "queries", "positives", *shown], note


def _confused(report: Report) -> dict[str, Any] | None:
    assert report.neighbours is not None
    found = confusions(report.neighbours, query_names(report), gallery_names(report))
    if not found.count.size:
        return None
    part = found.count / np.maximum(1, found.places)[:, None]
    most = max(float(part.max()), 0.01)
    rows = [
        {
            "name": name,
            "cells": [
                {"text": f"{100 * one:.0f}" if one >= 0.01 else "", "shade": round(70 * one / most)} for one in line
            ],
        }
        for name, line in zip(found.query_class.tolist(), part.tolist(), strict=True)
    ]
    return {"columns": found.gallery_class.tolist(), "rows": rows, "kept": report.neighbours.row.shape[1]}


def _hubs(report: Report, pictures: Pictures) -> dict[str, Any] | None:
    assert report.neighbours is not None
    found = hubs(report.neighbours, report.num_gallery)
    names, paths = gallery_names(report), report.gallery.get("path")
    items = []
    for row, lists, right in zip(found.row.tolist(), found.lists.tolist(), found.right.tolist(), strict=True):
        path = "" if paths is None else str(paths[row])
        picture = pictures.of(path)
        items.append(
            {"row": row, "lists": lists, "right": right, "label": names[row], "path": path, "picture": picture}
        )
    if not items:
        return None
    numbers = {"expected": f"{found.expected:.1f}", "skewness": f"{found.skewness:.1f}", "never": f"{found.never:,}"}
    return {**numbers, "kept": report.neighbours.row.shape[1], "shown": items}


def _found(examined: Examined, pictures: Pictures) -> list[dict[str, Any]]:
    """Return the findings as the page shows them."""

    def image(row: int) -> tuple[str, str]:
        return str(examined.paths[row]), endings([str(examined.classes[row])])[0]

    return shown_findings(examined.findings, pictures, image)


def _left_out(report: Report, pictures: Pictures) -> list[dict[str, Any]]:
    """Return lists of images that no number speaks of, or that could not be shown."""
    lone = np.setdiff1d(np.arange(report.num_queries), report.per_query["query"])
    paths = report.gallery.get("path")
    same = paths is not None and report.num_queries == report.num_gallery
    names = [str(paths[row]) if same and paths is not None else f"row {row}" for row in lone[:MOST_NAMES].tolist()]
    lists = [
        {"title": "Queries without a positive, skipped", "count": len(lone), "names": names},
        {
            "title": "Images that could not be read",
            "count": len(pictures.missing),
            "names": [*pictures.missing][:MOST_NAMES],
        },
    ]
    if pictures.left_out:
        what = "Pictures left out to keep the page small"
        lists.append({"title": what, "count": pictures.left_out, "names": []})
    return [one for one in lists if one["count"]]
