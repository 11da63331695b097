"""Lists that heed no label are exact: scores are those of a plain sort, however close."""

import numpy as np
import pytest

from aurank.evaluation.engine import tiles
from aurank.evaluation.postprocessing.neighbour_steps import farthest_scores, nearest_lists, pair_scores


def all_scores(queries: np.ndarray, gallery: np.ndarray) -> np.ndarray:
    query, row = np.divmod(np.arange(len(queries) * len(gallery)), len(gallery))
    return pair_scores(queries, gallery, query, row).reshape(len(queries), -1)


@pytest.mark.parametrize("noise", [1.0, 1e-9])
@pytest.mark.parametrize("alone", [True, False])
def test_lists_are_those_of_a_plain_sort(alone: bool, noise: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "SIDES", {"cpu": 32, "cuda": 64})
    rng = np.random.default_rng(0)
    gallery = np.ones((150, 8)) + noise * rng.standard_normal((150, 8))
    queries = gallery if alone else gallery[::-1][:40].copy()
    own = np.arange(150) if alone else 149 - np.arange(40)
    scores = all_scores(queries, gallery)
    farthest = scores.min(axis=1)
    scores[np.arange(len(own)), own] = -np.inf
    row, score = nearest_lists(queries, gallery, 5, leave_out=own)
    assert score.tolist() == (-np.sort(-scores, axis=1)[:, :5]).tolist()
    assert np.take_along_axis(scores, row, 1).tolist() == score.tolist()
    if alone:
        assert farthest_scores(gallery).tolist() == farthest.tolist()


def test_equal_rows_come_in_an_order_that_is_not_the_files() -> None:
    row, _ = nearest_lists(np.ones((90, 4)), np.ones((90, 4)), 5, leave_out=np.full(90, -1))
    assert (row == row[0]).all()
    assert row[0].tolist() != [0, 1, 2, 3, 4]
