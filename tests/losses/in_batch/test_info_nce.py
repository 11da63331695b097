from functools import partial

import oracles
import pytest
import torch
from oracles import contrastive as oracles_contrastive
from pytorch_metric_learning import losses as pml
from testing import cases as two_way
from testing.equal import batch, check_equal

from aurank.losses import InfoNCELoss, SupConLoss


def test_info_nce_is_pml_s_nt_xent_where_all_queries_have_as_many_positives() -> None:
    embeddings, labels = batch([0, 0, 0, 1, 1, 1, 2, 2, 2])
    check_equal(InfoNCELoss(0.07)(embeddings, labels), pml.NTXentLoss(0.07)(embeddings, labels), embeddings)


def test_pml_s_nt_xent_is_the_mean_over_pairs_where_they_have_not() -> None:
    embeddings, labels = batch()
    own = oracles_contrastive.info_nce(oracles.cosine(embeddings), *oracles.masks(labels.tolist()), temperature=0.1)
    counts = {query: int((labels == labels[query]).sum()) - 1 for query in own}
    by_pair = sum(counts[query] * own[query] for query in own) / sum(counts.values())
    torch.testing.assert_close(pml.NTXentLoss(0.1)(embeddings, labels), by_pair, rtol=0, atol=1e-10)
    assert abs(InfoNCELoss(0.1)(embeddings, labels) - by_pair) > 0.01


def test_sup_con_is_pml_s() -> None:
    embeddings, labels = batch()
    check_equal(SupConLoss(0.07)(embeddings, labels), pml.SupConLoss(0.07)(embeddings, labels), embeddings)


def test_in_float32_at_a_small_temperature_wrong_pairs_keep_their_gradient_which_pml_s_loses() -> None:
    labels = torch.tensor([0, 0, 1, 1])
    rows = torch.tensor([[1.0, 0.1], [-1.0, 0.1], [1.0, 0.0], [-1.0, -0.2]], requires_grad=True)
    for make in (InfoNCELoss, SupConLoss):
        for enabled in (False, True):
            with torch.autocast("cpu", enabled=enabled):
                loss = make(0.005)(rows, labels)
            assert loss.item() == pytest.approx(make(0.005)(rows.double(), labels).item(), rel=1e-5)
            assert loss > 300
            (gradient,) = torch.autograd.grad(loss, rows)
            assert gradient.isfinite().all()
            assert gradient.abs().sum(dim=1).min() > 1
    theirs = pml.NTXentLoss(0.005)(rows, labels)
    assert theirs < 88
    assert not torch.autograd.grad(theirs, rows)[0].any()


def test_two_way_is_the_sum_of_both_directions() -> None:
    given = two_way.batch()
    expected = two_way.both_directions(given, partial(oracles_contrastive.info_nce, temperature=0.1))
    check_equal(InfoNCELoss(0.1, two_way=True)(**given), expected, given["embeddings"], given["ref_emb"])
