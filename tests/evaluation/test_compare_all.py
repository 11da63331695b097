"""Several reports against the first: the same answers as one by one, and p-values corrected for their number."""

from itertools import combinations

import numpy as np
import pytest

from aurank.errors import UserError
from aurank.evaluation import Report, compare, evaluate
from aurank.evaluation.compare import compare_all, holm


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
        assert f"({one.corrected_p_value:.2g} corrected)" in str(one)
    wanted = by_closed_testing([one.p_value for one in found.values()])
    assert [one.corrected_p_value for one in found.values()] == pytest.approx(wanted)


def test_a_single_comparison_is_not_corrected() -> None:
    found = compare_all({"a": measured(2), "b": measured(3)}, resamples=200)["b"]
    assert found.corrected_p_value is None
    assert str(found) == str(compare(measured(2), measured(3), resamples=200))


def test_reports_that_do_not_go_together_are_named() -> None:
    reports = {"one": measured(2), "two": measured(3), "three": measured(3, classes=5)}
    with pytest.raises(UserError, match="one and three: the reports' queries differ in their labels"):
        compare_all(reports)
    with pytest.raises(UserError, match="needs two reports or more; got 1"):
        compare_all({"one": measured(2)})
