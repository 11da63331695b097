"""Ranks of reordered lists equal counting by hand, ties at the end of a list included."""

import numpy as np
import pytest
from oracles.postprocessing import ranks_by_scores

from aurank.evaluation import RetrievalProblem
from aurank.evaluation.engine.nearest import nearest_rows
from aurank.evaluation.engine.ranks import positive_ranks
from aurank.evaluation.postprocessing.neighbour_steps import reordered_ranks


@pytest.mark.parametrize("depth", [1, 11, 40])
@pytest.mark.parametrize("seed", range(2))
def test_reordered_lists_are_counted_as_by_hand(seed: int, depth: int) -> None:
    generator = np.random.default_rng(seed)
    rows = generator.integers(-2, 3, size=(40, 3))  # whole numbers: exact scores, and many ties
    labels = generator.integers(0, 9, 40)
    groups = generator.integers(-1, 2, 40)
    problem = RetrievalProblem(rows, labels, groups=groups)
    ranks, lists = positive_ranks(problem, distance="dot"), nearest_rows(problem, depth, distance="dot")
    score = np.where(lists.row >= 0, generator.integers(0, 4, lists.row.shape), np.nan)
    found = reordered_ranks(ranks, lists, score)

    combined = rows @ rows.T
    for query, listed, new in zip(lists.query, lists.row, score, strict=True):
        combined[query, listed[listed >= 0]] = 100 + new[listed >= 0]
    same = labels[:, None] == labels
    left_out = np.eye(40, dtype=bool) | (same & (groups[:, None] == groups) & (groups >= 0))
    expected = ranks_by_scores(combined, same, left_out)
    assert found.query.tolist() == list(expected)
    for place, query in enumerate(found.query.tolist()):
        here = slice(found.offset[place], found.offset[place + 1])
        columns = (found.positive, found.higher, found.tied, found.at_least)
        assert list(zip(*(one[here].tolist() for one in columns), strict=True)) == expected[query]
