"""Definitions worked by hand on ranks written down, ties among them, and what a report keeps of them."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from aurank.errors import UserError
from aurank.evaluation import Ranks, Report, evaluate, metrics


def written_down(groups: list[tuple[int, int]], *, num_gallery: int) -> Ranks:
    """Ranks of one query from groups of equal scores, best first: (positives, negatives) in each."""
    higher, tied, at_least, ahead, found = [], [], [], 0, 0
    for positives, negatives in groups:
        found += positives
        higher += [ahead] * positives
        tied += [negatives] * positives
        at_least += [found] * positives
        ahead += negatives
    return Ranks(
        query=np.array([0]),
        num_negatives=np.array([ahead]),
        offset=np.array([0, found]),
        positive=np.arange(found),
        higher=np.array(higher),
        tied=np.array(tied),
        at_least=np.array(at_least),
        num_queries=1,
        num_gallery=num_gallery,
    )


# A negative; a group of 2 positives and 1 negative; 2 positives alone; 3 negatives. R = 4, ranks 3, 4, 5, 6.
TIED = written_down([(0, 1), (2, 1), (2, 0), (0, 3)], num_gallery=9)


def test_average_precision_of_ties_by_each_rule() -> None:
    (threshold,) = metrics.average_precision(TIED)
    assert threshold == pytest.approx((2 / 4 + 2 / 4 + 4 / 6 + 4 / 6) / 4, abs=1e-15)
    assert threshold == pytest.approx(average_precision_score([0, 1, 1, 0, 1, 1, 0, 0, 0], [4, 3, 3, 3, 2, 2, 1, 1, 1]))
    (optimistic,) = metrics.average_precision(TIED, ties="optimistic")
    assert optimistic == pytest.approx((2 / 3 + 2 / 3 + 4 / 6 + 4 / 6) / 4, abs=1e-15)
    (pessimistic,) = metrics.average_precision(TIED, ties="pessimistic")
    assert pessimistic == pytest.approx((1 / 3 + 2 / 4 + 3 / 5 + 4 / 6) / 4, abs=1e-15)


def test_all_other_metrics_count_a_tied_negative_as_ahead() -> None:
    assert TIED.rank.tolist() == [3, 4, 5, 6]
    assert metrics.recall_at(TIED, 2) == [0.0]
    assert metrics.recall_at(TIED, 3) == [1.0]
    assert metrics.precision_at(TIED, 4) == [2 / 4]
    assert metrics.precision_at(TIED, 100) == [4 / 100]
    assert metrics.map_at_r(TIED) == pytest.approx([(1 / 3 + 2 / 4) / 4], abs=1e-15)
    assert metrics.r_precision(TIED) == [2 / 4]
    gains = [1 / math.log2(1 + rank) for rank in (3, 4, 5, 6)]
    assert metrics.ndcg(TIED) == pytest.approx([sum(gains) / sum(1 / math.log2(1 + j) for j in (1, 2, 3, 4))])
    assert metrics.reciprocal_rank(TIED) == [1 / 3]
    assert metrics.inverse_negative_penalty(TIED) == [4 / 6]
    assert metrics.auroc(TIED) == [1 - (2 + 2 + 2 + 2) / (4 * 5)]


@pytest.mark.parametrize("seed", range(20))
def test_the_tie_rules_bound_the_threshold_and_every_order_of_tied_items(seed: int) -> None:
    chance = np.random.default_rng(seed)
    groups = [(int(p), int(n)) for p, n in chance.integers(0, 4, size=(5, 2))] + [(1, 1)]
    ranks = written_down(groups, num_gallery=60)
    low, middle, high = (
        float(metrics.average_precision(ranks, ties=rule)[0]) for rule in ("pessimistic", "threshold", "optimistic")
    )
    assert low <= middle <= high
    for _ in range(10):
        order = [chance.permutation([1] * positives + [0] * negatives) for positives, negatives in groups]
        relevant = np.concatenate(order)
        value = average_precision_score(relevant, -np.arange(len(relevant)))
        assert low - 1e-12 <= value <= high + 1e-12


def test_a_query_whose_whole_gallery_is_positive_is_perfect() -> None:
    report = evaluate(np.random.default_rng(0).normal(size=(6, 3)), [4] * 6, recall_at=(1, 10**9))
    assert {name: value for name, value in report.metrics.items() if not name.startswith("precision")} == {
        name: 1.0 for name in report.metrics if not name.startswith("precision")
    }
    assert report.metrics["precision@1000000000"] == pytest.approx(5 / 10**9)


def test_the_report_names_its_metrics_in_order_and_prints_them() -> None:
    labels = [1, 1, 1, 2, 2, 9]
    report = evaluate(np.random.default_rng(0).normal(size=(6, 3)), labels, recall_at=[10, 1, 10])
    assert list(report.metrics) == [
        *("mauprc", "recall@1", "recall@10", "precision@1", "precision@10"),
        *("map@r", "r_precision", "ndcg", "mrr", "minp", "auroc"),
    ]
    assert report.per_query["query"].tolist() == [0, 1, 2, 3, 4]
    assert report.per_query["num_positives"].tolist() == [2, 2, 2, 1, 1]
    text = str(report)
    assert all(name in text for name in report.metrics)
    assert "6 queries, 1 of them skipped: no positive; 6 gallery rows" in text
    assert "equal scores" not in text


def test_a_report_is_plain_json_and_replaces_the_old_one_whole(tmp_path: Path) -> None:
    report = evaluate(np.eye(4)[[0, 0, 1, 1]], [1, 1, 2, 2])
    path = tmp_path / "new" / "report.json"
    report.save(path)
    report.save(str(path))
    content = json.loads(path.read_text(encoding="utf-8"))
    assert content["metrics"]["mauprc"] == report.mauprc
    assert (content["num_queries"], content["num_lone_queries"]) == (4, 0)
    assert [entry.name for entry in path.parent.iterdir()] == ["report.json"]
    loaded = Report.load(path)
    assert (loaded.tie_bounds, loaded.ties, loaded.num_gallery) == (report.tie_bounds, "threshold", 4)
    assert {name: array.dtype for name, array in loaded.per_query.items()} == {
        name: array.dtype for name, array in report.per_query.items()
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1, 2]", "is not a report: expected a file that"),
        ('{"metrics": {}}', "is not a report: expected a file that"),
        ('{"format": "aurank.report", "version": 99}', "is a report of version 99, and this aurank reads version 1"),
        ('{"format": "aurank.report", "version": 1, "metrics": {}}', "is a damaged report"),
        ("\u0000\u0001", "is not a report, or is cut short"),
    ],
)
def test_what_is_no_report_is_refused(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        Report.load(tmp_path / "report.json")


def test_a_missing_report_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read the report .*nothing\.json: No such file"):
        Report.load(tmp_path / "nothing.json")
