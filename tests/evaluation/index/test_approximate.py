"""What is read from lists of neighbours equals slow counting, and the exact numbers where lists are whole."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from aurank.errors import UserError
from aurank.evaluation import Index, evaluate


def clusters(seed: int = 0, classes: int = 12, each: int = 9, dim: int = 8) -> tuple[np.ndarray, np.ndarray]:
    chance = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), each)
    centres = chance.normal(size=(classes, dim))
    embeddings = centres[labels] + chance.normal(size=(len(labels), dim))
    shuffled = chance.permutation(len(labels))
    labels[:2] = [1000, 1001]  # lone
    return embeddings[shuffled].astype(np.float32), labels[shuffled]


def cases() -> list[dict[str, Any]]:
    """Arguments of `evaluate` beside the embeddings."""
    (embeddings, labels), (other, other_labels) = clusters(), clusters(1)
    pairs = np.array([[0, 3], [0, 50], [4, 7], [9, 90], [9, 3]])
    left_out = {"ignore": pairs, "junk": np.array([1, 2, 100])}
    gallery = {"gallery": np.concatenate([other, embeddings[:30]])}
    gallery["gallery_labels"] = np.concatenate([other_labels, labels[:30]])
    ids = {"ids": np.arange(108), "gallery_ids": np.concatenate([np.arange(500, 608), np.arange(30)])}
    groups = {"groups": np.arange(108) % 4, "gallery_groups": np.arange(138) % 4}
    return [
        {"labels": labels, "groups": np.arange(108) % 3, **left_out},
        {"labels": labels, **gallery},
        {"labels": labels, **gallery, **ids, **groups, **left_out},
        {"gallery": other, "positives": pairs},
    ]


def measured(
    index: str | Index, recall_at: tuple[int, ...], given: dict[str, Any] | None = None, **options: Any
) -> SimpleNamespace:
    """What an index retrieves, beside the exact metrics."""
    embeddings, labels = clusters()
    names = ["mauprc", *(f"recall@{k}" for k in recall_at)]
    content = evaluate(embeddings, **(given or {"labels": labels}), index=index, metrics=names, **options).approximation
    del content["measured"]  # of one run
    return SimpleNamespace(**content)


@pytest.mark.parametrize("distance", ["cosine", "dot", "euclidean"])
def test_an_exact_index_reports_the_exact_numbers(distance: str) -> None:
    for given in cases():
        result = measured("Flat", (1, 5, 200), given, distance=distance)
        assert result.metrics == pytest.approx(result.exact, abs=1e-12)
        assert result.neighbour_recall == {"1": 1.0, "5": 1.0, "200": 1.0}


@pytest.mark.parametrize("ties", ["threshold", "pessimistic"])
@pytest.mark.parametrize("depth", [10, 30])
def test_what_no_list_shows_was_never_retrieved(depth: int, ties: str) -> None:
    embeddings, labels = clusters()
    kind = "IVF6,Flat"
    result = measured(kind, (1, depth), ties=ties)
    found = Index.build(embeddings, kind, device="cpu").search(embeddings, depth, leave_out=np.arange(108))
    precision, hits = [], {1: [], depth: []}
    for row, near in enumerate(found.row):
        positives = int((labels == labels[row]).sum()) - 1
        if not positives:
            continue
        hit = [other < 108 and labels[other] == labels[row] for other in near]
        at = [sum(hit[: place + 1]) / (place + 1) for place in range(depth) if hit[place]]
        precision.append(math.fsum(at) / positives)
        for k in hits:
            hits[k].append(any(hit[:k]))
    assert len(precision) == 106
    assert result.metrics["mauprc"] == pytest.approx(np.mean(precision), abs=1e-12)
    assert result.metrics["recall@1"] == pytest.approx(np.mean(hits[1]))
    assert result.metrics[f"recall@{depth}"] == pytest.approx(np.mean(hits[depth]))
    assert result.metrics["mauprc"] < result.exact["mauprc"]


def test_neighbour_recall_is_the_part_of_the_true_neighbours_found() -> None:
    embeddings, _ = clusters()
    result = measured("IVF6,Flat", (1, 10))
    own = np.arange(108)
    found = Index.build(embeddings, "IVF6,Flat", device="cpu").search(embeddings, 10, leave_out=own).row.tolist()
    true = Index.build(embeddings, device="cpu").search(embeddings, 10, leave_out=own).row.tolist()
    for k, value in ((int(k), value) for k, value in result.neighbour_recall.items()):
        shares = [len({*a[:k]} & {*b[:k]}) / k for a, b in zip(found, true, strict=True)]
        assert value == pytest.approx(np.mean(shares))
        assert value < 1
    assert result.neighbour_queries == 108


def test_an_index_at_hand_is_used_if_it_holds_the_gallery() -> None:
    embeddings, _ = clusters()
    ready = Index.build(embeddings, "IVF4,Flat", device="cpu")
    assert measured(ready, (1, 10)) == measured("IVF4,Flat", (1, 10))
    with pytest.raises(UserError, match=r"holds 50 rows of width 8 .* the gallery is 108 rows"):
        measured(Index.build(embeddings[:50], device="cpu"), (1,))
    with pytest.raises(UserError, match=r"for the distance cosine, .* under dot"):
        measured(ready, (1,), distance="dot")
