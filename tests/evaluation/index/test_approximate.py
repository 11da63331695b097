"""What is read from lists of neighbours equals slow counting, and the exact numbers where lists are whole."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from aurank.errors import UserError
from aurank.evaluation import Index, RetrievalProblem, metrics, positive_ranks
from aurank.evaluation.index.approximate import index_report


def clusters(seed: int = 0, classes: int = 12, each: int = 9, dim: int = 8) -> tuple[np.ndarray, np.ndarray]:
    chance = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), each)
    centres = chance.normal(size=(classes, dim))
    embeddings = centres[labels] + chance.normal(size=(len(labels), dim))
    shuffled = chance.permutation(len(labels))
    labels[:2] = [1000, 1001]  # lone
    return embeddings[shuffled].astype(np.float32), labels[shuffled]


def cases() -> dict[str, RetrievalProblem]:
    embeddings, labels = clusters()
    other, other_labels = clusters(1)
    pairs = np.array([[0, 3], [0, 50], [4, 7], [9, 90], [9, 3]])
    own = RetrievalProblem(embeddings, labels)
    both = RetrievalProblem(
        embeddings, labels, np.concatenate([other, embeddings[:30]]), np.concatenate([other_labels, labels[:30]])
    )
    shared = {"ids": np.arange(108), "gallery_ids": np.concatenate([np.arange(500, 608), np.arange(30)])}
    return {
        "own": own,
        "gallery": both,
        "ids": replace(both, **shared),
        "groups": replace(own, groups=np.arange(108) % 3),
        "ignore": replace(own, ignore=pairs),
        "junk": replace(own, junk=np.arange(0, 108, 5)),
        "positives": RetrievalProblem(embeddings, None, other, positives=pairs),
        "everything": replace(
            both,
            **shared,
            groups=np.arange(108) % 4,
            gallery_groups=np.arange(138) % 4,
            ignore=pairs,
            junk=np.array([1, 2, 130]),
        ),
    }


def measured(
    sides: RetrievalProblem, index: str | Index, recall_at: tuple[int, ...], **options: Any
) -> SimpleNamespace:
    """What an index retrieves, beside the metrics of exact ranks."""
    sides_by_name = {name: value for name, value in vars(sides).items() if name != "embeddings"}
    labels, gallery, gallery_labels = (sides_by_name.pop(name) for name in ("labels", "gallery", "gallery_labels"))
    distance, ties = options.get("distance", "cosine"), options.get("ties", "threshold")
    ranks = positive_ranks(sides.embeddings, labels, gallery, gallery_labels, **sides_by_name, distance=distance)
    exact = {"mauprc": metrics.mean(metrics.average_precision(ranks, ties=ties))}
    exact |= {f"recall@{k}": metrics.mean(metrics.recall_at(ranks, k)) for k in recall_at}
    content = index_report(sides, exact, index=index, recall_at=recall_at, device="cpu", **options)
    del content["measured"]  # of one run
    return SimpleNamespace(**content)


@pytest.mark.parametrize("distance", ["cosine", "dot", "euclidean"])
def test_an_exact_index_reports_the_exact_numbers(distance: str) -> None:
    for sides in cases().values():
        result = measured(sides, "Flat", (1, 5, 200), distance=distance)
        assert result.metrics == pytest.approx(result.exact, abs=1e-12)
        assert result.neighbour_recall == {"1": 1.0, "5": 1.0, "200": 1.0}


@pytest.mark.parametrize("ties", ["threshold", "pessimistic"])
@pytest.mark.parametrize("depth", [10, 30])
def test_what_no_list_shows_was_never_retrieved(depth: int, ties: str) -> None:
    embeddings, labels = clusters()
    sides = RetrievalProblem(embeddings, labels)
    kind = "IVF6,Flat"
    result = measured(sides, kind, (1, depth), ties=ties)
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
    embeddings, labels = clusters()
    sides = RetrievalProblem(embeddings, labels)
    result = measured(sides, "IVF6,Flat", (1, 10))
    own = np.arange(108)
    found = Index.build(embeddings, "IVF6,Flat", device="cpu").search(embeddings, 10, leave_out=own).row.tolist()
    true = Index.build(embeddings, device="cpu").search(embeddings, 10, leave_out=own).row.tolist()
    for k, value in ((int(k), value) for k, value in result.neighbour_recall.items()):
        shares = [len({*a[:k]} & {*b[:k]}) / k for a, b in zip(found, true, strict=True)]
        assert value == pytest.approx(np.mean(shares))
        assert value < 1
    assert result.neighbour_queries == 108


def test_an_index_at_hand_is_used_if_it_holds_the_gallery() -> None:
    embeddings, labels = clusters()
    sides = RetrievalProblem(embeddings, labels)
    ready = Index.build(embeddings, "IVF4,Flat", device="cpu")
    assert measured(sides, ready, (1, 10)) == measured(sides, "IVF4,Flat", (1, 10))
    with pytest.raises(UserError, match=r"holds 50 rows of width 8 .* the gallery is 108 rows"):
        measured(sides, Index.build(embeddings[:50], device="cpu"), (1,))
    with pytest.raises(UserError, match=r"for the distance cosine, .* under dot"):
        measured(sides, ready, (1,), distance="dot")
