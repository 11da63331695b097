"""What evaluate refuses, leaves out and notes."""

import numpy as np
import pytest

import aurank
from aurank.evaluation import RetrievalProblem, calibrate


def test_a_cut_beyond_every_list_is_left_out_with_a_note() -> None:
    embeddings, labels = np.random.default_rng(0).normal(size=(12, 6)), np.arange(12) // 3
    report = aurank.evaluate(embeddings, labels, recall_at=(1, 11, 12, 1000))  # its own row is not in a query's list
    assert [name for name in report.metrics if "@" in name] == [
        *("recall@1", "recall@11", "precision@1", "precision@11", "map@r")
    ]
    assert "recall and precision at 12, 1000 are left out: no gallery is that large" in report.notes
    assert not aurank.evaluate(embeddings, labels, recall_at=(1, 11)).notes
    # Query 1 has another 3 rows, query 0 one less, which it ignores: 3 still fits.
    rows = np.eye(3, dtype=np.float32) + 1
    report = aurank.evaluate(rows[:2], [0, 1], rows, [0, 1, 1], ignore=[(0, 1)], recall_at=(3, 4))
    assert report.recall == {3: 1.0}


ROWS = np.eye(4, dtype=np.float32)


@pytest.mark.parametrize("rows", [slice(None), slice(10, 30)], ids=["the same rows", "some of them"])
def test_queries_that_find_their_own_rows_are_noted_where_no_ids_tell_them_apart(rows: slice) -> None:
    embeddings, labels = np.random.default_rng(0).normal(size=(40, 8)), np.arange(40) // 4
    queries = embeddings[rows], labels[rows]
    (note,) = aurank.evaluate(*queries, embeddings, labels, metrics=["mauprc"]).notes
    count = len(queries[0])
    assert note.startswith(f"{count} of {count} queries find a gallery row equal to their own")
    assert "gallery=None" in note
    ids = np.arange(40)
    assert not aurank.evaluate(*queries, embeddings, labels, ids=ids[rows], gallery_ids=ids, metrics=["mauprc"]).notes
    assert not aurank.evaluate(*queries, metrics=["mauprc"]).notes
    assert not aurank.evaluate(*queries, embeddings + 1, labels, metrics=["mauprc"]).notes
    problem = RetrievalProblem(embeddings, labels, embeddings, labels)
    assert calibrate(problem, precision=0.5).notes[0].startswith("40 of 40 queries find a gallery row equal")


def test_a_set_without_negatives_is_noted() -> None:
    (note,) = aurank.evaluate(ROWS, [5] * len(ROWS), metrics=["mauprc"]).notes
    assert note == "no query has a negative (one class alone?), so every order is perfect by definition"
