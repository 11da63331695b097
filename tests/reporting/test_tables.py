"""Tables that other programs read: nothing in them is run."""

import csv
import io

import numpy as np
import pytest

import aurank
from aurank.errors import UserError
from aurank.reporting.tables import class_csv, to_markdown

EVIL = ["=HYPERLINK(1)", "+1", "-1", "@SUM(A1)", "\tx", 'a,"b"\nc', "plain"]


def test_no_class_name_is_a_formula_in_csv() -> None:
    labels = np.repeat(EVIL, 2)
    report = aurank.evaluate(np.random.default_rng(0).standard_normal((14, 4)), labels, recall_at=(1,))
    head, *rows = csv.reader(io.StringIO(class_csv(report)))
    assert head[:3] == ["class", "num_queries", "mauprc"]
    assert {row[0] for row in rows} == {"'=HYPERLINK(1)", "'+1", "'-1", "'@SUM(A1)", "'\tx", 'a,"b"\nc', "plain"}
    table = report.class_table()
    assert [float(row[2]) for row in rows] == pytest.approx(sorted(table["mauprc"].tolist()), abs=1e-6)


def test_names_are_escaped() -> None:
    report = aurank.evaluate(np.eye(2)[[0, 0, 1, 1]], [5, 5, 6, 6], metrics=["mauprc"])
    name = '<script>alert(1)</script>|`a`\n\\| 50% & a_b^~ {x} "q"'
    assert to_markdown({name: report}).splitlines()[2] == (
        '| &lt;script>alert(1)&lt;/script>\\|\\`a\\` \\\\\\| 50% &amp; a_b^~ {x} "q" | 1.0000 |'
    )


def test_only_common_metrics_are_shown_unless_named() -> None:
    reports = {
        name: aurank.evaluate(np.eye(2)[[0, 0, 1, 1]], [5, 5, 6, 6], metrics=metrics)
        for name, metrics in (("a", ["mauprc", "mrr"]), ("b", ["mauprc", "minp"]))
    }
    assert to_markdown(reports).splitlines()[0] == "| model | mauprc |"
    with pytest.raises(UserError, match="the report 'b' has no mrr; it has mauprc, minp"):
        to_markdown(reports, ["mrr"])
