"""What evaluate refuses, leaves out and notes."""

from typing import Any

import numpy as np
import pytest

import aurank
from aurank.errors import UserError
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
PAIR = [[0, 1]]
BAD: list[tuple[dict[str, Any], str]] = [
    ({"labels": [0, 0, 1]}, "query labels have shape .3,"),
    ({"labels": [0.0, 0.0, 1.0, 1.0]}, "query labels are float64"),
    ({"labels": np.array([2**63, 1, 1, 1], np.uint64)}, "query labels are uint64"),
    ({"labels": ["a", "a", "b", 1]}, "query labels are <U21"),
    ({"labels": None}, "labels are missing"),
    ({"gallery": ROWS, "gallery_labels": list("abcd")}, "some labels are text"),
    ({"labels": [0, 1, 2, 3]}, "none of the 4 queries has a positive"),
    ({"embeddings": np.where(ROWS > 2, ROWS, np.nan)}, "row 0 of the query embeddings holds NaN"),
    ({"embeddings": ROWS * [[1], [1], [0], [1]]}, "row 2 of the query embeddings is all zeros"),
    ({"embeddings": ROWS[0]}, "query embeddings have type float32 and shape"),
    ({"embeddings": ROWS.astype(str)}, "query embeddings have type <U"),
    ({"gallery": ROWS}, "labels and gallery_labels belong"),
    ({"gallery": ROWS[:, :2], "gallery_labels": [0] * 4}, "4 columns and the gallery has 2"),
    ({"gallery": ROWS, "gallery_labels": [0] * 4, "ids": [1, 2, 3, 4]}, "ids and gallery_ids"),
    ({"gallery": ROWS, "gallery_labels": [0] * 4, "groups": [1, 2, 3, 4]}, "groups and gallery_groups"),
    ({"gallery": ROWS, "gallery_labels": [0] * 4, "ids": [1, 1, 3, 4], "gallery_ids": range(4)}, "query ids name .* 1"),
    ({"embeddings": np.ma.masked_equal(ROWS, 1)}, "query embeddings are a masked array with 4 entries"),
    ({"positives": [[0, 4]]}, "positives names gallery row 4"),
    ({"ignore": [0, 1]}, "pairs in ignore have shape"),
    ({"junk": [4]}, "junk names gallery row 4"),
    ({"junk": [True] * 4}, "all 4 gallery rows are junk"),
    ({"relevance": [1.0]}, "relevance .*each pair in positives"),
    ({"positives": PAIR, "relevance": [1.0, 2.0]}, "relevance has shape"),
    ({"positives": PAIR, "relevance": [0]}, "a number above 0 for each pair"),
    ({"positives": PAIR * 2, "relevance": [1, 1]}, "positives names a pair twice"),
    ({"recall_at": (0,)}, "recall_at"),
    ({"distance": "manhattan"}, "distance must be one of cosine, dot, euclidean"),
    ({"ties": "random"}, "ties must be one of"),
    ({"max_memory": "lots"}, "max_memory"),
    ({"device": "quantum"}, "device must name"),
    ({"neighbours": -1}, "neighbours must be 0 or more"),
]


@pytest.mark.parametrize(("change", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_input_is_refused_in_one_line(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"embeddings": ROWS, "labels": [0, 0, 1, 1], **change}
    with pytest.raises(UserError, match=message) as caught:
        aurank.evaluate(**arguments)
    assert "\n" not in str(caught.value)


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
