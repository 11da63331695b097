"""What docs/metrics.md says of scikit-learn and torchmetrics by name, held against both."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, ndcg_score, roc_auc_score
from testing.listing import Item, ranks_of, read

from aurank.evaluation import metrics

TIED = read("- ++- ++ ---")  # the list of docs/metrics.md
FLAT = read("- + - + + - +")


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


def test_without_ties_torchmetrics_agrees_by_the_names_of_the_docs() -> None:
    retrieval: Any = pytest.importorskip("torchmetrics.functional.retrieval")
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
