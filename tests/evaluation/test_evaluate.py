"""evaluate equals scikit-learn, takes what holds rows and labels, and says what it leaves out."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, ndcg_score, roc_auc_score

import aurank
from aurank.evaluation import RetrievalProblem, calibrate


def hard_data(seed: int, *, rows: int = 60, dim: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings with duplicates, near duplicates and lone labels; labels negative and beyond 2³¹."""
    chance = np.random.default_rng(seed)
    embeddings = chance.normal(size=(rows, dim))
    copied = chance.integers(0, rows, size=(rows // 4, 2))
    embeddings[copied[:, 0]] = embeddings[copied[:, 1]]
    near = chance.integers(0, rows, size=(rows // 4, 2))
    embeddings[near[:, 0]] = embeddings[near[:, 1]] + 1e-4 * chance.normal(size=(rows // 4, dim))
    labels = chance.choice([-5, 7, 2**31 + 1, 2**31 + 2, 2**62, -(2**40)], size=rows)
    labels[:2] = [11, 12]  # lone
    return embeddings.astype(np.float32), labels.astype(np.int64)


def test_without_ties_auroc_and_ndcg_equal_scikit_learn() -> None:
    chance = np.random.default_rng(0)
    embeddings, labels = chance.normal(size=(50, 8)), chance.integers(0, 5, 50)
    report = aurank.evaluate(embeddings, labels)
    unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    for row in range(50):
        others = np.arange(50) != row
        positive, scores = (labels == labels[row])[others].astype(int), (unit @ unit[row])[others]
        assert report.per_query["auroc"][row] == pytest.approx(roc_auc_score(positive, scores))
        assert report.per_query["ndcg"][row] == pytest.approx(ndcg_score(positive[None], scores[None]))
        assert report.per_query["ap"][row] == pytest.approx(average_precision_score(positive, scores))


def test_tensors_and_memory_maps_give_the_same_report(tmp_path: Path) -> None:
    embeddings, labels = hard_data(5)
    expected = aurank.evaluate(embeddings, labels).metrics
    np.save(tmp_path / "rows.npy", embeddings)
    assert aurank.evaluate(np.load(tmp_path / "rows.npy", mmap_mode="r"), labels.tolist()).metrics == expected
    assert aurank.evaluate(torch.from_numpy(embeddings).requires_grad_(), torch.from_numpy(labels)).metrics == expected
    half = torch.from_numpy(embeddings).bfloat16()
    assert aurank.evaluate(half, labels).metrics == aurank.evaluate(half.double(), labels).metrics


ROWS = np.eye(4, dtype=np.float32)


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
