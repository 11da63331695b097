"""compare.html: several models on the same queries, in one file that people look at."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from aurank.evaluation.compare import Comparison
from aurank.evaluation.report import Report
from aurank.reporting.charts import ap_scatter, curves, svg
from aurank.reporting.grids import grid_rows
from aurank.reporting.page import render
from aurank.reporting.pictures import Pictures
from aurank.reporting.tables import class_names, counted, facts_of, same_metrics

QUERIES = 8  # won, and as many lost, of each model; fewer where there are many models
MOST_CLASSES = 500


def compare_page(
    reports: Mapping[str, Report],
    comparisons: Mapping[str, Comparison],
    *,
    pictures: Pictures | None = None,
) -> str:
    """Return the page of reports, of which the first is compared with each other one, as HTML text."""
    pictures = pictures or Pictures(None)
    first, comparison = next(iter(reports)), next(iter(comparisons.values()))
    metric = comparison.metric
    queries = max(2, min(QUERIES, 24 // len(comparisons)))
    charts = curves(reports)
    for name in comparisons:
        caption = f"Each dot a query; above the line {name} is better, below it {first}."
        draw = partial(ap_scatter, names=(first, name), reports=(reports[first], reports[name]))
        charts[caption] = svg(draw, caption)
    models = {}
    for name, report in reports.items():  # a report is named after its folder; its notes name the model
        notes = (note.partition(";")[0] for note in report.notes if note.startswith(("model ", "best weights")))
        models[name] = next(notes, "").removeprefix("model ")
    return render(
        "compare.html",
        title="Comparison",
        first=first,
        metric=metric,
        metric_of_query="AP" if metric.removeprefix("macro:") == "mauprc" else metric.removeprefix("macro:"),
        counted=counted(reports[first]),
        reports=reports,
        models=models,
        comparisons=comparisons,
        values={name: each.b for name, each in comparisons.items()} | {first: comparison.a},
        how=comparison.how,
        metrics=[
            (name, same, [report.metrics[name] for report in reports.values()])
            for name, same in same_metrics(*reports.values()).items()
        ],
        charts=charts,
        pairs=[
            {"name": name, "groups": _won_and_lost((first, name), reports, metric, queries, pictures)}
            for name in comparisons
        ],
        lacking={name: report.command for name, report in reports.items() if report.neighbours is None},
        classes=_classes(reports, metric),
        facts=[{"name": name, "facts": facts_of(report), "notes": report.notes} for name, report in reports.items()],
        missing=list(pictures.missing)[:100],
        num_missing=len(pictures.missing),
        left_out=pictures.left_out,
    )


def _won_and_lost(
    names: tuple[str, str], reports: Mapping[str, Report], metric: str, queries: int, pictures: Pictures
) -> list[dict[str, Any]]:
    both = [reports[name] for name in names]
    a, b = (report.values(metric) for report in both)
    change = b - a
    groups = []
    for title, sign in (("won", 1), ("lost", -1)):
        count = int((sign * change > 0).sum())
        # Among equal changes the first query comes first.
        indices = np.argsort(-sign * change, kind="stable")[: min(queries, count)].tolist()
        sides = [grid_rows(report, indices, pictures) for report in both]
        rows = [
            {
                "query": shown[0]["query"],
                "row": shown[0]["row"],
                "values": f"{a[index]:.3f} → {b[index]:.3f}",
                "change": float(change[index]),
                "sides": list(zip(names, shown, strict=True)),
            }
            for index, *shown in zip(indices, *sides, strict=True)
        ]
        groups.append({"title": title, "count": f"{count:,}", "rows": rows})
    return groups


def _classes(reports: Mapping[str, Report], metric: str) -> dict[str, Any] | None:
    first = next(iter(reports.values()))
    if "label" not in first.per_query:
        return None
    tables = [report.class_table() for report in reports.values()]
    values = np.stack([table[metric.removeprefix("macro:")] for table in tables], axis=1)
    names = class_names(first)
    change = values[:, 1:] - values[:, :1]
    order = np.argsort(-np.abs(change).max(axis=1), kind="stable")[:MOST_CLASSES].tolist()
    counts = tables[0]["num_queries"].tolist()
    columns = {"name": names, "count": counts, "values": values.tolist(), "changes": change.tolist()}
    rows = [{key: column[index] for key, column in columns.items()} for index in order]
    return {"rows": rows, "total": len(values)}
