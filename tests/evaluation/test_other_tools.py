"""What docs/metrics.md says of scikit-learn and torchmetrics by name, held against both."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, ndcg_score, roc_auc_score
from testing.listing import Item, ranks_of, read, relevance

import aurank
from aurank.evaluation import metrics

TIED = read("- ++- ++ ---")  # the list of docs/metrics.md
FLAT = read("- + - + + - +")


@pytest.fixture(scope="module")
def retrieval() -> Any:
    pytest.importorskip("torchmetrics")
    from torchmetrics.functional import retrieval

    return retrieval


def value(items: list[Item], name: str) -> float:
    return float(metrics.query_values(ranks_of([items]), name)[0])


def columns(items: list[Item]) -> tuple[np.ndarray, np.ndarray]:
    """Scores above 0, and which items are positives."""
    scores, positive = (np.array(column) for column in zip(*items, strict=True))
    return scores + 10.0, positive.astype(np.int64)


def mean_over_orders(items: list[Item]) -> float:
    """nDCG as a mean over every order of the items, of which only the sorted ones count."""
    found = []
    for order in itertools.permutations(items[:6]):  # the last three are negatives that tie with one another alone
        if all(first[0] >= second[0] for first, second in itertools.pairwise(order)):
            gains = [positive / np.log2(place + 2) for place, (_, positive) in enumerate(order)]
            found.append(sum(gains) / sum(1 / np.log2(place + 2) for place in range(4)))
    return float(np.mean(found))


def test_scikit_learn_averages_ndcg_over_ties_and_counts_an_auroc_tie_as_half() -> None:
    scores, positive = columns(TIED)
    assert ndcg_score(positive[None], scores[None]) == pytest.approx(mean_over_orders(TIED))
    assert value(TIED, "ndcg") < mean_over_orders(TIED) - 0.03
    # 2 of the 20 pairs tie: lost here, half won there.
    assert roc_auc_score(positive, scores) == pytest.approx(value(TIED, "auroc") + 0.5 * 2 / 20)
    assert average_precision_score(positive, scores) == pytest.approx(value(TIED, "mauprc"))


def test_without_ties_torchmetrics_agrees_by_the_names_of_the_docs(retrieval: Any) -> None:
    scores, positive = (torch.from_numpy(column) for column in columns(FLAT))
    for name, theirs in {
        "mauprc": retrieval.retrieval_average_precision(scores, positive),
        "coverage@3": retrieval.retrieval_recall(scores, positive, top_k=3),
        "recall@1": retrieval.retrieval_hit_rate(scores, positive, top_k=1),
        "precision@3": retrieval.retrieval_precision(scores, positive, top_k=3),
        "mrr@3": retrieval.retrieval_reciprocal_rank(scores, positive, top_k=3),
        "ndcg@3": retrieval.retrieval_normalized_dcg(scores, positive, top_k=3),
        "r_precision": retrieval.retrieval_r_precision(scores, positive),
        "auroc": retrieval.retrieval_auroc(scores, positive),
    }.items():
        assert value(FLAT, name) == pytest.approx(float(theirs), abs=1e-6), name


def test_torchmetrics_drops_positives_whose_cosine_is_not_above_0(retrieval: Any) -> None:
    chance = np.random.default_rng(0)
    embeddings, labels = chance.normal(size=(60, 16)), np.arange(60) % 6
    report = aurank.evaluate(embeddings, labels, metrics=["mauprc"])
    unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    changes = []
    for row in range(60):
        others = np.arange(60) != row
        cosines = torch.from_numpy((unit @ unit[row])[others])
        positive = torch.from_numpy((labels == labels[row])[others].astype(np.int64))
        theirs = float(retrieval.retrieval_average_precision(cosines, positive))
        # What is dropped stands in the list as a negative, and R no longer counts it.
        kept = [(float(score), bool(wanted and score > 0)) for score, wanted in zip(cosines, positive, strict=True)]
        place = np.flatnonzero(relevance(kept)) + 1
        left = sum(np.arange(1, len(place) + 1) / place) / max(1, len(place))
        assert theirs == pytest.approx(left, abs=1e-6)
        assert float(retrieval.retrieval_average_precision(cosines + 2, positive)) == pytest.approx(
            report.per_query["ap"][row], abs=1e-6
        )
        changes.append(abs(theirs - report.per_query["ap"][row]))
    assert min(changes) > 1e-4  # every query's AP is another one
    assert max(changes) > 0.1
