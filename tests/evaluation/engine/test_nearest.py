"""The lists that people see equal a plain sort, and agree with the ranks that metrics are made of."""

from typing import Any

import numpy as np
import pytest
import torch
from oracles.brute_force import left_out

from aurank.errors import UserError
from aurank.evaluation import inputs
from aurank.evaluation.engine import scores, tiles
from aurank.evaluation.engine.nearest import nearest_rows
from aurank.evaluation.engine.ranks import positive_ranks
from aurank.evaluation.engine.scores import ExactScores
from aurank.evaluation.inputs import RetrievalProblem


def sorted_list(problem: RetrievalProblem, query: int, distance: str) -> list[tuple[float, bool, int]]:
    """The whole list of a query, best first, as (minus score, is positive, gallery row)."""
    found = []
    for row, other in enumerate(problem.target):
        out, positive = left_out(problem, query, row)
        if not out:
            this, that = problem.embeddings[query].astype(np.float64), other.astype(np.float64)
            score = -((this - that) ** 2).sum() if distance == "euclidean" else (this * that).sum()
            found.append((-float(score), positive, row))
    return sorted(found)


def random_problem(seed: int, kind: str) -> RetrievalProblem:
    """Rows of small integers, so that scores are exact and many tie."""
    rng = np.random.default_rng(seed)
    queries, rows, classes = 24, 40, 6
    embeddings, labels = rng.integers(-2, 3, (queries, 6)).astype(np.float32), rng.integers(0, classes, queries)
    gallery, gallery_labels = rng.integers(-2, 3, (rows, 6)).astype(np.float32), rng.integers(0, classes, rows)
    other: dict[str, Any] = {"gallery": gallery, "gallery_labels": gallery_labels}
    if kind == "own":
        return RetrievalProblem(embeddings, labels)
    if kind == "own, junk, groups":
        return RetrievalProblem(embeddings, labels, groups=rng.integers(-1, 3, queries), junk=np.arange(0, 24, 7))
    if kind == "ids, groups":
        sides = {"ids": np.arange(queries), "gallery_ids": rng.permutation(60)[:rows]}
        groups = {"groups": rng.integers(-1, 3, queries), "gallery_groups": rng.integers(-1, 3, rows)}
        return RetrievalProblem(embeddings, labels, **other, **sides, **groups)
    pairs = np.unique(np.stack([rng.integers(0, queries, 90), rng.integers(0, rows, 90)], axis=1), axis=0)
    if kind == "ignore, junk":
        return RetrievalProblem(embeddings, labels, **other, ignore=pairs, junk=np.array([3, 11, 39]))
    return RetrievalProblem(embeddings, None, gallery, positives=pairs, junk=np.array([0]))


KINDS = ("own", "own, junk, groups", "ids, groups", "ignore, junk", "listed")


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("distance", ["dot", "euclidean"])
@pytest.mark.parametrize("kind", KINDS)
def test_lists_equal_a_plain_sort_and_positives_stand_at_their_ranks(
    kind: str, distance: str, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiles, "SIDES", {"cpu": 8, "cuda": 16})
    for module in (scores, inputs):
        monkeypatch.setattr(module, "importable", lambda _: compiled)
    for seed in range(2):
        problem = random_problem(seed, kind)
        found = nearest_rows(problem, 12, distance=distance)
        ranks = positive_ranks(problem, distance=distance)
        assert found.query.tolist() == ranks.query.tolist()
        for i, query in enumerate(found.query):
            expected = sorted_list(problem, int(query), distance)[:12]
            assert found.row[i, : len(expected)].tolist() == [row for _, _, row in expected]
            assert found.is_positive[i, : len(expected)].tolist() == [positive for _, positive, _ in expected]
            assert (-found.score[i, : len(expected)]).tolist() == [score for score, _, _ in expected]
            own = slice(ranks.offset[i], ranks.offset[i + 1])
            near = ranks.rank[own] <= 12
            assert (np.flatnonzero(found.is_positive[i]) + 1).tolist() == ranks.rank[own][near].tolist()
            assert found.row[i][found.is_positive[i]].tolist() == ranks.positive[own][near].tolist()


def test_queries_without_a_positive_have_no_lists() -> None:
    assert nearest_rows(RetrievalProblem(np.eye(3), [0, 1, 2]), 1).row.shape == (0, 1)


def test_a_shorter_list_ends_in_minus_one_and_nan() -> None:
    found = nearest_rows(RetrievalProblem(np.eye(4)[:3] + 0.1, [0, 0, 1]), 5)
    assert found.row.tolist() == [[2, 1, -1], [2, 0, -1]]
    assert np.isnan(found.score[:, 2]).all()
    assert not found.is_positive[:, 2].any()


def test_a_collapsed_model_lists_negatives_first_in_gallery_order() -> None:
    labels = np.arange(400) // 4
    found = nearest_rows(RetrievalProblem(np.ones((400, 8), np.float32), labels), 10)
    assert found.row[0].tolist() == list(range(4, 14))
    assert found.row[399].tolist() == list(range(10))
    assert not found.is_positive.any()


def test_close_scores_are_told_apart_beyond_float32() -> None:
    rng = np.random.default_rng(0)
    rows = np.ones((300, 16)) + 1e-9 * rng.standard_normal((300, 16))
    problem = RetrievalProblem(rows, np.arange(300) // 3)
    found, ranks = nearest_rows(problem, 7), positive_ranks(problem)
    for i in range(300):
        own = ranks.rank[ranks.offset[i] : ranks.offset[i + 1]]
        assert (np.flatnonzero(found.is_positive[i]) + 1).tolist() == own[own <= 7].tolist()


def test_progress_is_told() -> None:
    told: list[tuple[int, int]] = []
    nearest_rows(random_problem(0, "own"), 3, progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 1)]


def test_an_error_bound_that_says_nothing_asks_for_a_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_problem(2, "own")
    usual = nearest_rows(problem, 3)
    error = ExactScores.error
    monkeypatch.setattr(ExactScores, "error", lambda *given: np.inf if given[1] == torch.float32 else error(*given))
    again = nearest_rows(problem, 3)
    assert again.row.tolist() == usual.row.tolist()
    assert again.score.tolist() == usual.score.tolist()


def test_what_cannot_be_listed_is_refused() -> None:
    problem = RetrievalProblem(np.eye(3), [0, 0, 1])
    with pytest.raises(UserError, match="k must be 1 or more, got 0"):
        nearest_rows(problem, 0)
