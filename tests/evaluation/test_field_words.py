"""Words that the field has for what is called otherwise here."""

import numpy as np
import pytest

import aurank
from aurank.evaluation import Index, RetrievalProblem, calibrate, neighbours, positive_ranks

ROWS, LABELS = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32), np.repeat(np.arange(4), 3)


def test_l2_is_euclidean_everywhere() -> None:
    reports = [aurank.evaluate(ROWS, LABELS, distance=word, neighbours=2) for word in ("euclidean", "l2", "L2")]
    assert {report.distance for report in reports} == {"euclidean"}
    assert len({report.mauprc for report in reports}) == 1
    assert aurank.evaluate(ROWS, LABELS).mauprc != reports[0].mauprc
    assert Index(4, distance="l2", device="cpu").distance == "euclidean"
    lists = [neighbours(ROWS, 3, distance=word, device="cpu").row for word in ("euclidean", "l2")]
    np.testing.assert_array_equal(*lists)
    problem = RetrievalProblem(ROWS, LABELS)
    ranks = [positive_ranks(problem, distance=word).rank for word in ("euclidean", "l2")]
    np.testing.assert_array_equal(*ranks)
    assert calibrate(problem, distance="l2", false_match_rate=0.5).distance == "euclidean"


def test_neighbors_are_neighbours() -> None:
    one, other = (aurank.evaluate(ROWS, LABELS, **{word: 2}) for word in ("neighbours", "neighbors"))  # type: ignore[arg-type]
    assert one.neighbours is not None
    assert other.neighbours is not None
    np.testing.assert_array_equal(one.neighbours.row, other.neighbours.row)
    with pytest.raises(TypeError, match="evaluate was given 'neighbours' by two names"):
        aurank.evaluate(ROWS, LABELS, neighbours=2, neighbors=2)  # type: ignore[call-arg]
