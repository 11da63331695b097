"""A report as Markdown, LaTeX and in a notebook: the numbers of the report, and no text that is run."""

from dataclasses import replace

import numpy as np

from aurank.evaluation import Report, evaluate
from aurank.evaluation.bootstrap import Resampling
from aurank.evaluation.report import html_table, latex_table, markdown_table

EVIL = '<script>alert(1)</script>|`a`\n\\| 50% & a_b^~ {x} "q"'


def measured() -> Report:
    return evaluate(np.eye(3)[[0, 0, 1, 1, 1]], [5, 5, 6, 6, 7], metrics=["mauprc", "recall@1"])


def test_the_tables_hold_the_metrics_of_the_report() -> None:
    report = measured()
    for text in (report.to_markdown(), report.to_latex(), report._repr_html_()):
        for name, value in report.metrics.items():
            assert name in text
            assert f"{value:.4f}" in text
    head, _, *rows = report.to_markdown().splitlines()
    low, high = report.tie_bounds or (0, 0)
    assert head == "| metric | value | equal scores allow |"
    assert rows[0].endswith(f"| {low:.4f} to {high:.4f} |")
    assert rows[1].endswith("|  |")


def test_intervals_and_plain_scores_are_columns_of_their_own() -> None:
    rows = np.random.default_rng(0).standard_normal((12, 4))
    report = evaluate(rows, np.arange(12) % 3, metrics=["mrr"], resampling=Resampling(100, level=0.9))
    report = replace(report, postprocessing={"plain": {"mrr": 0.25}})
    head, _, row = report.to_markdown().splitlines()[:3]
    assert head.startswith("| metric | value | 90 % interval | plain |")
    assert row.startswith(f"| mrr | {report.metrics['mrr']:.4f} | {report.interval('mrr')} | 0.2500 |")


def test_a_notebook_shows_what_the_numbers_are_of_and_runs_none_of_it() -> None:
    report = replace(measured(), notes=[EVIL], metrics={EVIL: 0.5})
    page = report._repr_html_()
    assert "5 queries, 1 of them skipped: no positive; 5 gallery rows" in page
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_every_sign_that_means_something_is_escaped() -> None:
    assert markdown_table([EVIL], []).splitlines()[0] == (
        '| &lt;script>alert(1)&lt;/script>\\|\\`a\\` \\\\\\| 50% &amp; a_b^~ {x} "q" |'
    )
    wanted = r"\textbackslash{}| 50\% \& a\_b\textasciicircum{}\textasciitilde{} \{x\}"
    assert wanted in latex_table([EVIL], [])
    assert "<script>" not in html_table([EVIL], [[EVIL]])
