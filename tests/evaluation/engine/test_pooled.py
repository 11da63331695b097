"""Counts of all negative pairs against brute force, one pair at a time."""

import numpy as np
import pytest
import torch
from oracles.brute_force import exact_score, left_out

from aurank.evaluation import RetrievalProblem, inputs
from aurank.evaluation.engine import scores as exact_scores
from aurank.evaluation.engine import tiles
from aurank.evaluation.engine.pooled import PooledScores
from aurank.evaluation.engine.scores import ExactScores

LABELS = np.arange(70) % 12


def some_rows(seed: int, *, kind: str) -> np.ndarray:
    """Rows of one of several kinds: plain ones, duplicates that tie, few values that tie much, all the same."""
    chance = np.random.default_rng(seed)
    rows = chance.normal(size=(70, 6)) + chance.normal(size=(12, 6))[LABELS]
    if kind == "duplicates":
        rows[20:40] = rows[3]
    if kind == "signs":
        rows = np.sign(rows)
    return np.ones((70, 6)) if kind == "collapsed" else rows


def brute_force(problem: RetrievalProblem, distance: str) -> list[tuple[int, float, bool]]:
    """(query, score, whether positive) of every pair of a query that has a positive; scores as the engine defines."""
    queries, gallery = np.arange(len(problem.embeddings)), np.arange(len(problem.target))
    exact = ExactScores(problem, queries, gallery, distance=distance, compiled=False)
    found = []
    for query in queries.tolist():
        pairs = []
        for row, score in enumerate(exact.pairs(np.full(len(gallery), query), gallery).tolist()):
            out, same = left_out(problem, query, row)
            pairs += [] if out else [(query, score, same)]
        found += pairs if any(same for *_, same in pairs) else []
    return found


def problems() -> dict[str, tuple[RetrievalProblem, str]]:
    """Problems with what may be in one, by name."""
    found = {
        kind: (RetrievalProblem(some_rows(0, kind=kind), LABELS), "cosine")
        for kind in ("plain", "duplicates", "signs", "collapsed")
    }
    rows = some_rows(1, kind="plain").astype(np.float32)
    found["lone"] = RetrievalProblem(rows, np.where(np.arange(70) < 60, LABELS, 100 + np.arange(70))), "cosine"
    found["mostly lone"] = RetrievalProblem(rows, np.where(np.arange(70) < 20, LABELS, 100 + np.arange(70))), "cosine"
    found["gallery"] = RetrievalProblem(rows[:30], LABELS[:30], rows[30:], LABELS[30:]), "cosine"
    found["groups"] = RetrievalProblem(rows, LABELS, groups=np.arange(70) % 4 - 1), "cosine"
    found["ignore"] = RetrievalProblem(rows, LABELS, ignore=[[0, 12], [0, 1], [5, 69]]), "cosine"
    return found | {name: (RetrievalProblem(50 * rows, LABELS), name) for name in ("dot", "euclidean")}


@pytest.mark.slow
@pytest.mark.parametrize(("compiled", "side"), [(True, 32), (True, 768), (False, 32)])
@pytest.mark.parametrize("name", problems())
def test_counts_are_those_of_every_pair(name: str, compiled: bool, side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tiles.SIDES, "cpu", side)
    if not compiled:
        for module in (exact_scores, inputs):
            monkeypatch.setattr(module, "importable", lambda name: False)
    problem, distance = problems()[name]
    pairs = brute_force(problem, distance)
    scores = PooledScores(problem, distance=distance)
    assert scores.positives.tolist() == sorted(score for _, score, positive in pairs if positive)
    negatives = np.array([score for _, score, positive in pairs if not positive])
    assert scores.num_negatives == len(negatives)
    edges = np.unique([*scores.positives, *negatives[::7], -1e9, 1e9])
    expected = [int((negatives >= edge).sum()) for edge in edges]
    assert scores.negatives_at_least(edges).tolist() == expected
    least, most = scores.bracket(edges)
    assert (least <= expected).all()
    assert (expected <= most).all()
    edge = float(np.median(negatives))
    rows = [query for query, score, positive in pairs if not positive and score >= edge]
    counted = np.zeros(len(np.asarray(problem.labels)), np.int64)
    counted[scores.ordered.query_index] = scores.negatives_by_query(edge)
    assert counted.tolist() == np.bincount(rows, minlength=len(counted)).tolist()


def test_an_edge_between_float32_neighbours_is_told_apart() -> None:
    """Cosines that differ by less than float32 can say, on both sides of an edge."""
    angle = 0.7 + np.array([0.0, 1e-10, 2e-10, 0.0])
    rows = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    rows = np.concatenate([[[1.0, 0.0], [1.0, 1e-9]], rows])
    scores = PooledScores(RetrievalProblem(rows, [0, 0, 1, 2, 3, 4]), distance="cosine")
    edges = np.unique([exact_score(rows[0], row) for row in rows[2:]])
    assert len(edges) == 3
    negatives = [exact_score(rows[query], row) for query in (0, 1) for row in rows[2:]]
    assert scores.negatives_at_least(edges).tolist() == [sum(one >= edge for one in negatives) for edge in edges]


def test_progress_is_told_and_no_edges_need_no_pass() -> None:
    told: list[tuple[int, int]] = []
    scores = PooledScores(
        problems()["plain"][0], distance="cosine", progress=lambda done, total: told.append((done, total))
    )
    assert scores.negatives_at_least(np.empty(0)).tolist() == []
    assert told == []
    scores.negatives_at_least(np.array([0.5]))
    assert told == [(1, 1)]
    assert torch.is_grad_enabled()
