"""The lists that people see where they are short, tied, close or refused; that they are a sort: test_positives.py."""

import numpy as np
import pytest
import torch

from aurank.errors import UserError
from aurank.evaluation.engine.nearest import nearest_rows
from aurank.evaluation.engine.ranks import positive_ranks
from aurank.evaluation.engine.scores import ExactScores
from aurank.evaluation.inputs import RetrievalProblem

PROBLEM = RetrievalProblem(np.random.default_rng(2).integers(-2, 3, (24, 6)).astype(np.float32), np.arange(24) % 6)


def test_a_shorter_list_ends_in_minus_one_and_nan() -> None:
    found = nearest_rows(RetrievalProblem(np.eye(4)[:3] + 0.1, [0, 0, 1]), 5)
    assert found.row.tolist() == [[2, 1, -1], [2, 0, -1]]
    assert np.isnan(found.score[:, 2]).all()
    assert not found.is_positive[:, 2].any()


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
    nearest_rows(PROBLEM, 3, progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 1)]


def test_an_error_bound_that_says_nothing_asks_for_a_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = nearest_rows(PROBLEM, 3)
    error = ExactScores.error
    monkeypatch.setattr(ExactScores, "error", lambda *given: np.inf if given[1] == torch.float32 else error(*given))
    again = nearest_rows(PROBLEM, 3)
    assert again.row.tolist() == usual.row.tolist()
    assert again.score.tolist() == usual.score.tolist()


def test_what_cannot_be_listed_is_refused() -> None:
    with pytest.raises(UserError, match="k must be 1 or more, got 0"):
        nearest_rows(PROBLEM, 0)
