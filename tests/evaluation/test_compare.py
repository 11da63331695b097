"""Paired comparison: what changed, whether chance could do it, and pairs of reports that may not be compared."""

import math
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from testing.listing import ranks_of, read

from aurank.errors import UserError
from aurank.evaluation import Report, evaluate
from aurank.evaluation.compare import compare, compare_all, holm
from aurank.evaluation.evaluate import build_report

LISTS = ["+ - -", "- + -", "- - +", "+ - -", "- + -", "+ + -"]
LABELS = np.array([4, 4, 5, 5, 6, 6])


def report(lists: list[str] = LISTS, *, protocol: dict[str, str] | None = None, **options: Any) -> Report:
    options = {"labels": LABELS, "recall_at": (1,), **options}
    return replace(build_report(ranks_of([read(text) for text in lists]), **options), protocol=protocol)


def noisy(seed: int, *, shift: float, classes: int = 400) -> tuple[Report, Report]:
    """Two reports of 5 queries a class, whose values differ by noise that a class shares, and a shift."""
    chance = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), 5)
    values = chance.random(len(labels))
    change = shift + 0.05 * chance.normal(size=classes)[labels] + 0.02 * chance.normal(size=len(labels))
    one = build_report(ranks_of([read("+ -")] * len(labels)), labels=labels, metrics=["mauprc"])
    first, second = ({**one.per_query, "ap": column} for column in (values, values + change))
    return replace(one, per_query=first), replace(one, per_query=second)


def test_the_difference_and_the_queries_that_changed_most_by_hand() -> None:
    better = [*LISTS]
    better[2], better[3], better[4] = "+ - -", "- + -", "- - +"  # 1/3 → 1, 1 → 1/2, 1/2 → 1/3
    result = compare(report(), report(better), most=2)
    assert result.a == pytest.approx((1 + 1 / 2 + 1 / 3 + 1 + 1 / 2 + 1) / 6)
    assert result.difference == result.b - result.a == pytest.approx((2 / 3 - 1 / 2 - 1 / 6) / 6, abs=1e-15)
    assert (result.num_queries, result.num_better, result.num_worse) == (6, 1, 2)
    assert result.changed["query"].tolist() == [2, 3, 4]  # one won, two lost
    assert result.changed["label"].tolist() == [5, 5, 6]
    assert result.changed["difference"] == pytest.approx([2 / 3, -1 / 2, -1 / 6])
    won, lost = str(result).partition("won most:")[2].split("lost most:")
    assert won.strip() == "+0.6667  0.3333 → 1.0000  query 2 (label 5)"
    assert [line.strip() for line in lost.strip().splitlines()] == [
        "-0.5000  1.0000 → 0.5000  query 3 (label 5)",
        "-0.1667  0.5000 → 0.3333  query 4 (label 6)",
    ]
    assert "6 queries: 1 better, 2 worse, 3 equal" in str(result)
    macro = compare(report(), report(better), metric="macro:recall@1")
    assert (macro.a, macro.b) == (pytest.approx((1 / 2 + 1 / 2 + 1 / 2) / 3), pytest.approx(1 / 2))
    assert compare(report(), report(better), most=1).changed["query"].tolist() == [2, 3]


def test_equal_reports_do_not_differ() -> None:
    result = compare(report(), report())
    assert (result.difference, result.interval, result.p_value) == (0.0, (0.0, 0.0), 1.0)
    assert len(result.changed["query"]) == 0
    assert "most:" not in str(result)


def test_a_change_of_every_query_is_beyond_chance() -> None:
    one, _ = noisy(0, shift=0.0)
    other = replace(one, per_query={**one.per_query, "ap": one.per_query["ap"] + 0.25})
    result = compare(one, other, resamples=999)
    assert result.interval == pytest.approx((0.25, 0.25))
    assert result.p_value == 2 / 1000
    assert "  p ≤ 0.002\n" in str(result)  # fewer resamples cannot say less
    three = compare_all({"a": one, "b": other, "c": other}, resamples=999)
    assert "  p ≤ 0.002 (≤ 0.004 corrected)\n" in str(three["c"])


def test_of_few_classes_no_p_value_is_below_the_chance_that_all_change_the_same_way() -> None:
    one, _ = noisy(0, shift=0.0, classes=6)
    other = replace(one, per_query={**one.per_query, "ap": one.per_query["ap"] + 0.25})
    result = compare(one, other, resamples=9999)
    assert result.p_value == 2 / 64
    assert "  p = 0.031\n" in str(result)
    narrow = "of 6 classes, seed 0; of so few it comes out too narrow"
    assert result.how.endswith(f"{narrow}; p cannot be below 0.031, as only 6 of them changed")
    other.per_query["ap"][10:] = one.per_query["ap"][10:]  # four of the classes do not change
    assert compare(one, other, resamples=9999).p_value >= 2 / 4


@pytest.mark.parametrize("shift", [0.0, 0.003, 0.006])
def test_interval_and_p_value_are_those_of_theory_by_class(shift: float) -> None:
    one, other = noisy(2, shift=shift)
    result = compare(one, other)
    by_class = (other.per_query["ap"] - one.per_query["ap"]).reshape(-1, 5).mean(axis=1)
    deviation = by_class.std() / math.sqrt(len(by_class))
    assert result.interval == pytest.approx(
        (result.difference - 1.96 * deviation, result.difference + 1.96 * deviation), abs=0.15 * deviation
    )
    assert result.p_value == pytest.approx(math.erfc(abs(result.difference) / deviation / math.sqrt(2)), abs=0.03)


def test_order_and_names_change_no_digit_and_seeds_do() -> None:
    one, other = noisy(3, shift=0.002)
    order = np.random.default_rng(0).permutation(2000)

    def moved(given: Report) -> Report:
        columns = {name: values[order] for name, values in given.per_query.items()}
        return replace(given, per_query={**columns, "label": 10**9 - columns["label"] ** 2})

    reference, result = compare(one, other), compare(moved(one), moved(other))
    for name in ("difference", "interval", "p_value"):
        assert getattr(result, name) == getattr(reference, name)
    assert compare(one, other, seed=1).interval != reference.interval


PROTOCOL = {"name": "sop", "checksum": "12ab"}
REFUSED: list[tuple[Report, str]] = [
    (report(LISTS[:5], labels=LABELS[:5]), r"are about 6 and 5 queries with a positive; evaluate both models on the"),
    (
        report(labels=LABELS + 1),
        r"queries differ in their labels: 4 and 5 at position 0; evaluate both models on the same",
    ),
    (report(labels=None), r"only one of the reports has the queries' labels"),
    (report([*LISTS[:5], "+ - -"]), r"queries differ in their numbers of positives: 2 and 1 at position 5"),
    (report([*LISTS[:5], "+ + - - -"]), r"galleries of 3 and 5 rows"),
    (report(distance="dot"), r"distances cosine and dot: .*add --force"),
    (report(ties="optimistic"), r"ties threshold and optimistic"),
    (report(protocol=PROTOCOL), r"protocols none \(None\) and sop \(12ab\): .*add --force"),
]


@pytest.mark.parametrize(("other", "message"), REFUSED, ids=[message[:30] for _, message in REFUSED])
def test_reports_that_answer_different_questions_are_refused(other: Report, message: str) -> None:
    with pytest.raises(UserError, match=message):
        compare(report(), other)


def test_force_compares_across_protocols_and_what_agrees_where_it_counts_needs_none() -> None:
    assert compare(report(), report(protocol=PROTOCOL, distance="dot"), force=True).difference == 0
    assert compare(report(protocol=PROTOCOL), report(protocol={**PROTOCOL, "root": "x"})).difference == 0
    assert compare(report(), report(ties="optimistic"), metric="recall@1").difference == 0  # which heeds no ties


def test_a_metric_that_the_report_lacks_is_refused_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"no values per query of 'recall@2'.*; did you mean 'recall@1'"):
        compare(report(), report(), metric="recall@2")


def test_the_queries_that_changed_are_named_by_path_and_class() -> None:
    labels = np.array([1, 1, 0, 0])
    names = np.array(["a/0.png", "a/1.png", "b/2.png", "b/3.png"]), np.array(["apple", "pear"])[labels]
    rows = np.array([[1, 0], [1, 0.1], [0, 1], [0.1, 1]])
    a, b = (evaluate(found, labels) for found in (rows, rows[[0, 2, 1, 3]]))
    found = compare(a.named(*names), b.named(*names), resamples=100, most=1)
    assert found.changed["path"].tolist() == ["a/0.png"]
    assert str(found).splitlines()[-1].endswith("  1.0000 → 0.3333  query 0 a/0.png (class pear)")
    assert "(label 1)" in str(compare(a, b, resamples=100, most=1))


def measured(dim: int, *, classes: int = 6) -> Report:
    rows = np.random.default_rng(0).standard_normal((48, 6))
    return evaluate(rows[:, :dim], np.arange(48) % classes)


def by_closed_testing(p_values: list[float]) -> list[float]:
    """Holm as what it is: the greatest Bonferroni p-value of all sets of hypotheses that hold the one."""
    tests = range(len(p_values))
    sets = [some for size in range(1, len(p_values) + 1) for some in combinations(tests, size)]
    bonferroni = {some: min(1.0, len(some) * min(p_values[test] for test in some)) for some in sets}
    return [max(value for some, value in bonferroni.items() if test in some) for test in tests]


def test_holm_is_the_closed_test_of_bonferroni() -> None:
    rng = np.random.default_rng(0)
    for count in (1, 2, 3, 5, 7):
        p_values = np.round(rng.random(count) ** 3, 2).tolist()  # some of them equal
        assert holm(p_values).tolist() == pytest.approx(by_closed_testing(p_values))


def test_each_report_is_compared_with_the_first() -> None:
    reports = {f"{dim} dims": measured(dim) for dim in (2, 4, 6)}
    found = compare_all(reports, resamples=200, metric="mrr", most=3)
    assert list(found) == ["4 dims", "6 dims"]
    for name, one in found.items():
        alone = compare(reports["2 dims"], reports[name], resamples=200, metric="mrr", most=3)
        assert (one.difference, one.interval, one.p_value) == (alone.difference, alone.interval, alone.p_value)
        assert f"{one.corrected_p_value:.2g} corrected)" in str(one)
    wanted = by_closed_testing([one.p_value for one in found.values()])
    assert [one.corrected_p_value for one in found.values()] == pytest.approx(wanted)


def test_reports_that_do_not_go_together_are_named() -> None:
    reports = {"one": measured(2), "two": measured(3), "three": measured(3, classes=5)}
    with pytest.raises(UserError, match="one and three: the reports' queries differ in their labels"):
        compare_all(reports)
    with pytest.raises(UserError, match="needs two reports or more; got 1"):
        compare_all({"one": measured(2)})
