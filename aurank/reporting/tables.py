"""Tables of reports as files and text: CSV that no spreadsheet runs, Markdown of several models."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from aurank.errors import UserError
from aurank.evaluation.metrics import MACRO, pooled_rate
from aurank.evaluation.report import Report
from aurank.files import csv_text
from aurank.reporting.grids import query_names

TIES = {
    "threshold": "share the last rank among them",
    "optimistic": "rank positives first",
    "pessimistic": "rank negatives first",
}
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")  # the first characters of a spreadsheet's formula
_MARKDOWN = {sign: f"\\{sign}" for sign in "\\|`*"} | {"<": "&lt;", "&": "&amp;"}


def class_csv(report: Report) -> str:
    table, names = report.class_table(), class_names(report)
    metrics = [name for name in table if name not in ("label", "num_queries")]
    rows: list[list[object]] = [["class", "num_queries", *metrics]]
    for row in table["mauprc"].argsort(kind="stable").tolist():
        values = (f"{table[metric][row]:.6f}" for metric in metrics)
        # With an apostrophe a spreadsheet shows a name that would begin a formula as it is.
        name = f"'{names[row]}" if names[row].startswith(_FORMULA) else names[row]
        rows.append([name, int(table["num_queries"][row]), *values])
    return csv_text(rows)


def to_markdown(reports: Mapping[str, Report], metrics: Sequence[str] | None = None) -> str:
    """Return a Markdown table: a report a line, a metric a column, by default those of all reports."""
    names = common_metrics([*reports.values()]) if metrics is None else list(metrics)
    rows = []
    for title, report in reports.items():
        if lacking := [name for name in names if name not in report.metrics]:
            raise UserError(f"the report {title!r} has no {lacking[0]}; it has {', '.join(report.metrics)}")
        rows.append([title, *(f"{report.metrics[name]:.4f} {report.interval(name)}".rstrip() for name in names)])
    return markdown_table(["model", *names], rows)


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = []
    for row in (head, *rows):
        cells = ("".join(_MARKDOWN.get(sign, sign) for sign in " ".join(cell.split())) for cell in row)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([lines[0], "|---" + "|---:" * (len(head) - 1) + "|", *lines[1:]])


def common_metrics(reports: Sequence[Report]) -> list[str]:
    return [name for name in reports[0].metrics if all(name in report.metrics for report in reports)]


def same_metrics(*reports: Report) -> dict[str, list[str]]:
    """Return the metrics that all reports have, each with the names of those that are equal for every query."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    for name in common_metrics(reports):
        key: tuple[Any, ...] = (name,)
        if pooled_rate(name) is None:
            key = name.startswith(MACRO), *(np.round(report.values(name), 12).tobytes() for report in reports)
        groups.setdefault(key, []).append(name)
    return {first: equal for first, *equal in groups.values()}


def class_names(report: Report) -> list[str]:
    if report.tags is not None:
        return [*report.tags]
    _, first = np.unique(report.per_query["label"], return_index=True)
    return [str(name) for name in query_names(report)[first].tolist()]


def counted(report: Report) -> str:
    lone = f", {report.num_lone_queries:,} of them without a positive and skipped" if report.num_lone_queries else ""
    protocol = f", protocol {report.protocol['name']}" if report.protocol else ""
    return f"{report.num_queries:,} queries{lone}, {report.num_gallery:,} gallery rows{protocol}"


def facts_of(report: Report) -> list[tuple[str, str]]:
    protocol, (low, high) = report.protocol or {}, report.tie_bounds
    bounds = f", which allows {low:.4f} to {high:.4f}" if low != high else ""
    values = {
        "command": report.command,
        "date": report.date,
        "protocol": protocol.get("name"),
        "checksum of the protocol's data": protocol.get("checksum"),
        "distance": report.distance,
        "equal scores": f"{TIES[report.ties]} (ties: {report.ties}){bounds}",
        "post-processing": (report.postprocessing or {}).get("steps"),
        "intervals": report.intervals,
        "versions": ", ".join(f"{name} {version}" for name, version in report.versions.items()),
    }
    return [(name, str(value)) for name, value in values.items() if value]
