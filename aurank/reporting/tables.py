"""Tables of reports as files and text: CSV that no spreadsheet runs, Markdown and LaTeX of several models."""

import csv
import io
from collections.abc import Mapping, Sequence

from aurank.errors import UserError
from aurank.evaluation.report import Report, latex_table, markdown_table
from aurank.reporting.grids import query_names

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")  # what a spreadsheet takes for the beginning of one


def class_csv(report: Report) -> str:
    """Return the metrics of each class as CSV text, worst first by mAUPRC.

    A text that a spreadsheet would take for a formula gets an apostrophe in front, as OWASP advises
    (https://owasp.org/www-community/attacks/CSV_Injection).

    Raises:
        UserError: the report has no labels.
    """
    table = report.class_table()
    names = dict(zip(report.per_query["label"].tolist(), query_names(report).tolist(), strict=True))
    metrics = [name for name in table if name not in ("label", "num_queries")]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["class", "num_queries", *metrics])
    for row in table["mauprc"].argsort(kind="stable").tolist():
        name = names[table["label"][row].item()]
        values = (f"{table[metric][row]:.6f}" for metric in metrics)
        writer.writerow([without_formula(name), int(table["num_queries"][row]), *values])
    return text.getvalue()


def without_formula(text: str) -> str:
    """Return a text as a spreadsheet shows it: with an apostrophe before what it would take for a formula."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def to_markdown(reports: Mapping[str, Report], metrics: Sequence[str] | None = None) -> str:
    """Return a Markdown table, one report a line by its name and one metric a column, intervals in brackets.

    Args:
        metrics: default: those that all reports have, in the order of the first.

    Raises:
        UserError: a report lacks one of the metrics, or none is common to all.
    """
    return markdown_table(*_cells(reports, metrics))


def to_latex(reports: Mapping[str, Report], metrics: Sequence[str] | None = None) -> str:
    r"""Return a LaTeX tabular (with booktabs), one report a line by its name and one metric a column.

    Args:
        metrics: default: those that all reports have, in the order of the first.

    Raises:
        UserError: a report lacks one of the metrics, or none is common to all.
    """
    return latex_table(*_cells(reports, metrics))


def _cells(reports: Mapping[str, Report], metrics: Sequence[str] | None) -> tuple[list[str], list[list[str]]]:
    """Return the head of a table, and each report's name with its values as text."""
    names = common_metrics(reports) if metrics is None else list(metrics)
    if not names:
        raise UserError("the reports have no metric in common: evaluate them with the same metrics")
    rows = []
    for title, report in reports.items():
        lacking = [name for name in names if name not in report.metrics]
        if lacking:
            raise UserError(f"the report {title!r} has no {lacking[0]}; it has {', '.join(report.metrics)}")
        rows.append([title, *(_with_interval(report, name) for name in names)])
    return ["model", *names], rows


def common_metrics(reports: Mapping[str, Report]) -> list[str]:
    """Return the metrics that all reports have, in the order of the first."""
    first = next(iter(reports.values()))
    return [name for name in first.metrics if all(name in one.metrics for one in reports.values())]


def describe_ties(ties: str) -> str:
    """Return in words how equal scores were counted."""
    words = {
        "threshold": "all at the place of the last of them",
        "optimistic": "the right ones first",
        "pessimistic": "the wrong ones first",
    }
    return f"{words[ties]} (ties: {ties})"


def _with_interval(report: Report, name: str) -> str:
    between = report.interval(name)
    return f"{report.metrics[name]:.4f}{f' {between}' if between else ''}"
