from dataclasses import replace

import numpy as np
import pytest

from aurank.evaluation.checks import (
    RIDGE,
    close_rows,
    crowded,
    doubtful_labels,
    faulty_rows,
    has_collapsed,
    near_rows,
    spread,
    with_cosines,
)
from aurank.evaluation.engine.nearest import NearestRows


def clusters(classes: int = 6, each: int = 20, dim: int = 16) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    labels = np.repeat(np.arange(classes), each)
    rows = draw.normal(size=(classes, dim))[labels] * 2 + draw.normal(size=(len(labels), dim))
    return rows.astype(np.float32), labels


def held_out(rows: np.ndarray, labels: np.ndarray, row: int) -> np.ndarray:
    """Returns the predictions for one row of a ridge regression fitted on all others, one solve a row."""
    unit = rows.astype(np.float64) / np.linalg.norm(rows, axis=1, keepdims=True)
    unit = unit - unit.mean(0)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    ridge = RIDGE * np.trace(unit.T @ unit) / unit.shape[1] * np.eye(unit.shape[1])
    others = np.arange(len(rows)) != row
    target = np.eye(labels.max() + 1)[labels[others]]
    return unit[row] @ np.linalg.solve(unit[others].T @ unit[others] + ridge, unit[others].T @ target)


def test_predictions_are_those_of_a_fit_without_the_row():
    rows, labels = clusters()
    labels[[3, 50, 77]] = [4, 0, 1]
    doubtful, _, ahead = doubtful_labels(rows, labels, margin=-2.0)
    margins = dict(zip(doubtful.tolist(), ahead.tolist(), strict=True))
    for row in (0, 3, 50, 77, 119):
        predicted = held_out(rows, labels, row)
        other = np.delete(predicted, labels[row]).max()
        assert margins[row] == pytest.approx(other - predicted[labels[row]], abs=1e-5)


def test_planted_wrong_labels_are_found_and_what_they_were():
    rows, labels = clusters()
    true = labels.copy()
    labels[[3, 50, 77]] = [4, 0, 1]
    doubtful, predicted, _ = doubtful_labels(rows, labels)
    assert set(doubtful.tolist()) == {3, 50, 77}
    assert predicted.tolist() == true[doubtful].tolist()
    assert not len(doubtful_labels(rows, true)[0])


def test_rows_of_float32_may_be_so_long_or_short_that_it_cannot_hold_their_squares():
    rows, labels = clusters()
    labels[[3, 50, 77]] = [4, 0, 1]
    doubtful, _, ahead = doubtful_labels(rows, labels)
    for exponent in (80, -80):
        scaled, _, scaled_ahead = doubtful_labels(rows * np.float32(2.0**exponent), labels)
        assert scaled.tolist() == doubtful.tolist()
        assert scaled_ahead.tolist() == ahead.tolist()


def test_lengths_are_compared_with_one_only_where_that_is_usual():
    rows, _ = clusters()
    assert not len(faulty_rows(rows)["length"])
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    unit[4] *= 1.5
    assert faulty_rows(unit)["length"].tolist() == [4]
    rows[7] *= 1000
    assert faulty_rows(rows)["length"].tolist() == [7]


def test_spread_is_the_same_from_the_smaller_and_the_larger_gram_matrix():
    rows, _ = clusters()
    wide = np.concatenate([rows, np.zeros((len(rows), 200), np.float32)], axis=1)
    (rank, cosine, _), (wide_rank, _, silent) = spread(rows), spread(wide)
    assert rank == pytest.approx(wide_rank, rel=1e-6)
    assert silent.tolist() == list(range(16, 216))
    cosines = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    pairs = cosines @ cosines.T
    assert cosine == pytest.approx((pairs.sum() - len(rows)) / (len(rows) * (len(rows) - 1)), abs=1e-5)


def test_embeddings_on_a_line_or_around_one_direction_have_collapsed():
    rows, _ = clusters()
    assert not has_collapsed(*spread(rows)[:2], 16)
    assert has_collapsed(*spread(rows[:, :1] * np.ones((1, 16), np.float32))[:2], 16)
    assert has_collapsed(*spread(rows + 100)[:2], 16)


def test_close_rows_are_found_whatever_their_length():
    rows, _ = clusters()
    rows[9] = rows[8] * 3
    assert close_rows(near_rows(rows), at_least=0.9999).tolist() == [[8, 9]]


def test_hubs_are_counted_among_the_rows_that_lists_can_hold():
    nothing = np.zeros((60, 1))
    lists = NearestRows(np.arange(60), np.full((60, 1), 3), nothing, nothing.astype(bool))
    assert crowded(lists, np.arange(60))["row"].tolist() == [3]
    # Of six rows one holds all lists: ten are usual, and it is in sixty. Of twelve, five are usual.
    assert not len(crowded(lists, np.arange(3, 9))["row"])
    assert crowded(lists, np.arange(3, 15))["expected"] == 5
    spread_out = replace(lists, row=np.arange(60)[:, None])
    assert not len(crowded(spread_out, np.arange(60))["row"])


def test_lists_ranked_otherwise_get_their_cosines():
    rows, _ = clusters()
    rows *= np.random.default_rng(2).uniform(0.1, 9, (len(rows), 1)).astype(np.float32)
    near = near_rows(rows)
    ended = replace(near, row=np.where(np.arange(10) < 7, near.row, -1), score=np.zeros_like(near.score))
    again = with_cosines(ended, rows)
    assert again.score[:, :7] == pytest.approx(near.score[:, :7], abs=1e-6)
    assert (again.score[:, 7:] == -1).all()
