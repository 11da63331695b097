"""Hierarchical AP with super-categories: the definition, its limits, its clustering term, what it refuses."""

from typing import Any

import oracles
import pytest
import torch
from oracles import sup as oracles_sup
from testing.equal import batch, check_equal

from aurank.losses import HierarchicalAPLoss

ONE = [[0], [0], [1], [1], [0], [-1]]
TWO = [[0, 7], [0, 7], [1, 7], [1, 7], [2, 8], [-1, -1]]


@pytest.mark.parametrize("given", [{}, {"alpha": 2.0}, {"relevance": "mean_ap"}], ids=str)
@pytest.mark.parametrize("table", [ONE, TWO], ids=["one", "two"])
def test_value_and_gradient_equal_the_definition(table: list[list[int]], given: dict[str, Any]) -> None:
    embeddings, labels = batch()
    sides = oracles.masks(labels.tolist())
    expected = oracles_sup.hierarchical_ap(oracles.cosine(embeddings), *sides, labels.tolist(), table=table, **given)
    check_equal(HierarchicalAPLoss(table, **given)(embeddings, labels), oracles.mean(expected), embeddings)


def test_references_and_mined_pairs_equal_the_definition() -> None:
    (embeddings, labels), (references, ref_labels) = batch(), batch(seed=1)
    loss = HierarchicalAPLoss(ONE)
    sides = oracles.masks(labels.tolist(), ref_labels.tolist())
    given = {"table": ONE, "ref_labels": ref_labels.tolist()}
    expected = oracles_sup.hierarchical_ap(oracles.cosine(embeddings, references), *sides, labels.tolist(), **given)
    found = loss(embeddings, labels, ref_emb=references, ref_labels=ref_labels)
    check_equal(found, oracles.mean(expected), embeddings, references)

    positive, negative = (torch.tensor(side) for side in oracles.masks(labels.tolist()))
    mined = (*positive.nonzero()[::2].T, *negative.nonzero()[::3].T)
    sides = oracles.masks(labels.tolist(), mined=mined)
    expected = oracles_sup.hierarchical_ap(oracles.cosine(embeddings), *sides, labels.tolist(), table=ONE)
    check_equal(loss(embeddings, labels, mined), oracles.mean(expected), embeddings)


def test_with_the_relevance_of_mean_ap_it_tends_to_the_mean_of_the_average_precisions_of_all_levels() -> None:
    embeddings, labels = batch()
    thin = {"temperature": 1e-9, "delta": 4e-8, "slope": 1e-9, "jump": 0.0}
    loss = HierarchicalAPLoss([0, 0, 1, 1, 0, 1], relevance="mean_ap", **thin)(embeddings, labels)
    similarity, codes, losses = oracles.cosine(embeddings.detach()), torch.tensor([0, 0, 1, 1, 0, 1])[labels], []
    for row in range(len(labels)):
        order = [j for j in similarity[row].argsort(descending=True).tolist() if j != row]
        precisions = []
        for names in (labels, codes):
            hits = [place for place, j in enumerate(order, start=1) if names[j] == names[row]]
            precisions.append(sum(number / place for number, place in enumerate(hits, start=1)) / max(1, len(hits)))
        if (labels == labels[row]).sum() > 1:
            losses.append(1 - sum(precisions) / 2)
    assert loss.item() == pytest.approx(sum(losses) / len(losses), abs=1e-10)


def test_the_clustering_term_is_the_cross_entropy_of_cosines_with_proxies() -> None:
    embeddings, labels = batch()
    loss = HierarchicalAPLoss(ONE, clustering=0.1, embedding_size=6).double()
    assert loss.proxies is not None
    expected = 0.9 * HierarchicalAPLoss(ONE)(embeddings, labels)
    terms = []
    for row, label in zip(embeddings, labels.tolist(), strict=True):
        if (labels == label).sum() > 1:
            cosines = [(row @ proxy / row.norm() / proxy.norm()) / 0.05 for proxy in loss.proxies]
            terms.append(torch.stack(cosines).logsumexp(0) - cosines[label])
    check_equal(loss(embeddings, labels), expected + 0.1 * torch.stack(terms).mean(), embeddings, loss.proxies)
