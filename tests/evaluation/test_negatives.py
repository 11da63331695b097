"""Mined negatives equal those of a loop over all pairs, with ties, duplicates and classes of one row."""

import numpy as np
import pytest

from aurank.evaluation import negatives
from aurank.evaluation.negatives import mine_negatives


def by_loop(
    rows: np.ndarray, labels: np.ndarray, k: int, share: float, distance: str
) -> dict[int, tuple[list[int], list[float], float, float, list[bool]]]:
    """The rows, scores, best and worst positive score and suspects of each query, by the definition."""
    others = {one: [other for other in range(len(rows)) if other != one] for one in range(len(rows))}

    def score(one: int, other: int) -> float:
        if distance == "euclidean":
            return -float(((rows[one] - rows[other]) ** 2).sum())
        return float(rows[one] @ rows[other])

    def positives(one: int) -> list[float]:
        return [score(one, other) for other in others[one] if labels[other] == labels[one]]

    def listed(one: int) -> list[tuple[float, int]]:
        return sorted((-score(one, other), other) for other in others[one] if labels[other] != labels[one])

    found = {}
    for query in others:
        if own := positives(query):
            suspects = []
            for minus, negative in listed(query)[:k]:
                first = [(-each, other) for each, other in listed(negative)[:11] if other != query]
                nearer = [other for each, other in first if each >= max(positives(negative), default=-np.inf)]
                alike = sum(labels[other] == labels[query] for other in nearer)
                suspects.append(-minus >= max(own) and alike >= share * min(10, len(own)))
            pairs = listed(query)[:k]
            found[query] = [row for _, row in pairs], [-minus for minus, _ in pairs], max(own), min(own), suspects
    return found


@pytest.mark.parametrize("distance", ["dot", "euclidean"])
@pytest.mark.parametrize("seed", range(12))
def test_negatives_are_those_of_a_loop(distance: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.integers(-2, 3, (50, 3 + seed % 3)).astype(np.float32)  # exact scores, many equal
    rows[40:] = rows[rng.integers(0, 40, 10)]  # duplicates
    classes = [2, 5, 12, 30][seed % 4]  # two that hold everything; many of one row
    labels = rng.integers(0, classes, 50) * 7 - 3
    k, share = [1, 4, 60][seed % 3], [0.3, 0.5, 1.0][seed % 3]
    monkeypatch.setattr(negatives, "_SCORES", 40)  # in several pieces
    found = mine_negatives(rows, labels, k, suspect=share, distance=distance)
    expected = by_loop(rows.astype(np.float64), labels, k, share, distance)
    assert list(dict.fromkeys(found["query"].tolist())) == [query for query, (listed, *_) in expected.items() if listed]
    for query, (listed, scores, best, worst, suspects) in expected.items():
        there = found["query"] == query
        count = len(listed)
        values = {"negative": listed, "rank": range(1, count + 1), "score": scores, "is_suspect": suspects}
        values |= {"positive_score": [best] * count, "worst_positive_score": [worst] * count}
        values["margin"] = [best - score for score in scores]
        assert {name: found[name][there].tolist() for name in values} == {
            name: list(each) for name, each in values.items()
        }


def test_a_planted_label_and_a_copy_under_another_class_are_suspect_and_no_other_pair_is() -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(6), 12)
    rows = np.eye(6)[labels] + 0.1 * rng.standard_normal((72, 6))
    labels[5] = 4  # of class 0
    rows[70] = rows[13]  # class 5, a copy of class 1
    pairs = mine_negatives(rows.astype(np.float32), labels, 10)
    assert set(pairs["negative"][pairs["is_suspect"]].tolist()) == {5, 70}
    assert set(labels[pairs["query"][pairs["is_suspect"]]].tolist()) == {0, 1}
    assert pairs["margin"][pairs["query"] == 13][0] < 0
