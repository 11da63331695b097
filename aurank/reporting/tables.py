"""Tables of reports as files and text: CSV that no spreadsheet runs, Markdown and LaTeX of several models."""

import csv
import io
from collections.abc import Mapping, Sequence

from aurank.errors import UserError
from aurank.evaluation.report import Report
from aurank.evaluation.text_tables import latex_table, markdown_table
from aurank.reporting.grids import query_names

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")  # what a spreadsheet takes for the beginning of one


def class_csv(report: Report) -> str:
    """Return the metrics of each class as CSV text, worst first by mAUPRC.

    A text that a spreadsheet would take for a formula gets an apostrophe in front, as OWASP advises
    (https://owasp.org/www-community/attacks/CSV_Injection).

    Raises:
        UserError: the report has no labels.

    Example:
        >>> import aurank
        >>> import numpy as np
        >>> rows = [[1.0, 0.0], [0.8, 0.6], [0.9, 0.1], [0.0, 1.0]]
        >>> report = aurank.evaluate(np.array(rows), ["cat", "cat", "=dog", "=dog"], metrics=["mauprc"])
        >>> print(class_csv(report))
        class,num_queries,mauprc
        '=dog,2,0.416667
        cat,2,0.500000
        <BLANKLINE>
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

    Example:
        >>> import aurank
        >>> import numpy as np
        >>> print(to_markdown({"ours | v1": aurank.evaluate(np.eye(2)[[0, 0, 1, 1]], [5, 5, 6, 6])}, ["mauprc"]))
        | model | mauprc |
        |---|---:|
        | ours \\| v1 | 1.0000 |
    """
    return markdown_table(*_cells(reports, metrics))


def to_latex(reports: Mapping[str, Report], metrics: Sequence[str] | None = None) -> str:
    r"""Return a LaTeX tabular (with booktabs), one report a line by its name and one metric a column.

    Args:
        metrics: default: those that all reports have, in the order of the first.

    Raises:
        UserError: a report lacks one of the metrics, or none is common to all.

    Example:
        >>> import aurank
        >>> import numpy as np
        >>> print(to_latex({"a_b": aurank.evaluate(np.eye(2)[[0, 0, 1, 1]], [5, 5, 6, 6])}, ["recall@1"]))
        \begin{tabular}{lr}
        \toprule
        model & recall@1 \\
        \midrule
        a\_b & 1.0000 \\
        \bottomrule
        \end{tabular}
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
    """Return the metrics that all reports have, in the order of the first.

    Example:
        >>> import aurank
        >>> import numpy as np
        >>> names = ["mrr", "mauprc"], ["mauprc", "minp"]
        >>> reports = [aurank.evaluate(np.eye(2)[[0, 0, 1, 1]], [5, 5, 6, 6], metrics=some) for some in names]
        >>> common_metrics({"a": reports[0], "b": reports[1]})
        ['mauprc']
    """
    first = next(iter(reports.values()))
    return [name for name in first.metrics if all(name in one.metrics for one in reports.values())]


def describe_ties(ties: str) -> str:
    """Return in words how equal scores were counted.

    Example:
        >>> describe_ties("optimistic")
        'the right ones first (ties: optimistic)'
    """
    words = {
        "threshold": "all at the place of the last of them",
        "optimistic": "the right ones first",
        "pessimistic": "the wrong ones first",
    }
    return f"{words[ties]} (ties: {ties})"


def _with_interval(report: Report, name: str) -> str:
    between = report.interval(name)
    return f"{report.metrics[name]:.4f}{f' {between}' if between else ''}"
