"""compare.html: its numbers are those of the reports, both lists are shown, and no text from outside becomes markup."""

from dataclasses import replace

import numpy as np
import pytest
from testing.cases import Elements

import aurank
from aurank.data.sources import ArraySource
from aurank.evaluation import Report
from aurank.evaluation.compare import compare_all
from aurank.reporting.compare_page import compare_page
from aurank.reporting.pictures import Pictures

EVIL = ("<img src=x onerror=alert(1)>", "$\\frac{$", "_hidden", "</script><script>alert(2)</script>")


def measured(dim: int, *, neighbours: int = 4) -> Report:
    rows = np.random.default_rng(5).standard_normal((30, 6))
    labels = np.arange(30) // 3
    report = aurank.evaluate(rows[:, :dim], labels, neighbours=neighbours)
    return report.named(np.array([f"{row}.png" for row in range(30)]), np.array([f"kind {one}" for one in labels]))


@pytest.mark.slow
def test_the_numbers_are_those_of_the_reports() -> None:
    reports = {"small": measured(2), "large": measured(6), "middle": measured(4)}
    found = compare_all(reports, resamples=200, metric="macro:recall@1")
    page = Elements(compare_page(reports, found))
    for name, report in reports.items():
        assert f"{report.mauprc:.4f}" in page.text
        if name != "small":
            low, high = found[name].interval
            assert f"{found[name].difference:+.4f}" in page.text
            change = report.metrics["auroc"] - reports["small"].metrics["auroc"]
            assert f"{change:+.4f}" in page.text
            assert f"[{low:+.4f}, {high:+.4f}]" in page.text
            assert f"{name}: won {found[name].num_better:,} queries against small" in page.text
            assert f"{name}: lost {found[name].num_worse:,} queries against small" in page.text
    assert "corrected for the 2 comparisons" in page.text


def test_both_lists_of_a_query_are_shown_as_the_reports_have_them() -> None:
    small, large = measured(2), measured(6)
    page = compare_page({"small": small, "large": large}, compare_all({"small": small, "large": large}, resamples=200))
    won = page[page.index("won") : page.index("lost ")]
    first = won[won.index('<div class="query">') :].split('<div class="query">')[1]
    best = int(np.argmax(large.per_query["ap"] - small.per_query["ap"]))
    for report, side in zip((small, large), first.split("<h4>")[1:], strict=True):
        shown = [attributes["title"] for tag, attributes in Elements(side).tags if tag == "li"]
        listed = report.neighbours.row[best].tolist()
        is_positive = report.neighbours.is_positive[best].tolist()
        if not any(is_positive):
            listed, is_positive = [*listed, report.per_query["first_positive"][best]], [*is_positive, True]
        assert shown == [f"{row}.png" for row in listed]
        marks = [("right" in (attributes["class"] or "")) for tag, attributes in Elements(side).tags if tag == "li"]
        assert marks == is_positive
        assert f"first right item at rank {report.per_query['first_rank'][best]}" in Elements(side).text


@pytest.mark.slow
def test_no_name_becomes_markup_or_mathematics() -> None:
    reports = {name: measured(dim) for dim, name in enumerate(EVIL, start=2)}
    named = {name: replace(one, notes=list(EVIL), command=EVIL[3]) for name, one in reports.items()}
    page = compare_page(named, compare_all(named, resamples=100))
    elements = Elements(page)
    assert not any("onerror" in attributes for _, attributes in elements.tags)
    assert sum(tag == "script" for tag, _ in elements.tags) == 1
    assert all(name in elements.text for name in EVIL)
    assert not [attributes for _, attributes in elements.tags if (attributes.get("src") or "data:")[:5] != "data:"]


@pytest.mark.slow
def test_pictures_are_in_the_page_and_missing_ones_are_named() -> None:
    images = {f"{row}.png": np.full((90, 90, 3), 8 * row, np.uint8) for row in range(29)}
    reports = {"small": measured(2), "large": measured(6)}
    pictures = Pictures(ArraySource(images))
    page = compare_page(reports, compare_all(reports, resamples=100), pictures=pictures)
    assert page.count('src="data:image/jpeg') > 20
    assert list(pictures.missing) == ["29.png"]
    assert "<li>29.png</li>" in page
    few = Pictures(ArraySource(images), budget=20_000)
    small = compare_page(reports, compare_all(reports, resamples=100), pictures=few)
    assert f"{few.left_out:,} pictures were left out" in small
    assert len(small) < len(page)
