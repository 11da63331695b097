"""What the oracles of test_contract.py do not show of InfoNCE, SupCon, DCL, SiMo and SimCo."""

import math
from functools import partial

import pytest
import torch
from oracles import contrastive as oracles_contrastive
from pytorch_metric_learning import losses as pml
from testing import cases as two_way
from testing.equal import batch, check_equal
from torch.nn.functional import normalize

from aurank.losses import DCLLoss, InfoNCELoss, PairLoss, SimCoLoss, SiMoLoss, SupConLoss
from aurank.losses.core.pairs import Inputs, make_pairs
from aurank.losses.in_batch.contrastive import hardness_weights

PAIRS = [0, 1, 2, 3, 0, 1, 2, 3]  # two views


def test_info_nce_is_pml_s_nt_xent_where_all_queries_have_as_many_positives() -> None:
    embeddings, labels = batch([0, 0, 0, 1, 1, 1, 2, 2, 2])
    check_equal(InfoNCELoss(0.07)(embeddings, labels), pml.NTXentLoss(0.07)(embeddings, labels), embeddings)


def test_sup_con_is_pml_s() -> None:
    embeddings, labels = batch()
    check_equal(SupConLoss(0.07)(embeddings, labels), pml.SupConLoss(0.07)(embeddings, labels), embeddings)


def test_in_float32_at_a_small_temperature_wrong_pairs_keep_their_gradient() -> None:
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


def test_two_way_is_the_sum_of_both_directions() -> None:
    given = two_way.batch()
    expected = two_way.both_directions(given, partial(oracles_contrastive.info_nce, temperature=0.1))
    check_equal(InfoNCELoss(0.1, two_way=True)(**given), expected, given["embeddings"], given["ref_emb"])


def test_dcl_is_info_nce_less_the_positive_in_the_denominator() -> None:
    embeddings, labels = batch(PAIRS)
    differences = [
        (InfoNCELoss(temperature)(embeddings, labels) - DCLLoss(temperature)(embeddings, labels)).item()
        for temperature in (0.05, 1.0, 1e6)
    ]
    assert min(differences) > 0
    assert differences[-1] == pytest.approx(math.log(7 / 6), abs=1e-5)


def test_dclw_s_weights_are_1_in_the_mean_and_all_1_at_a_large_sigma() -> None:
    embeddings, labels = batch()
    pairs = make_pairs(Inputs(embeddings, labels), distance=DCLLoss().distance)
    for sigma in (1e-3, 0.5, 1e6):
        weights = hardness_weights(pairs, sigma).detach()
        assert pairs.positives.mean(weights)[pairs.valid_rows].mean() == pytest.approx(1)
    assert weights.sub(1).abs()[pairs.positives.mask].max() < 1e-5
    check_equal(DCLLoss(0.1, 1e12)(embeddings, labels), DCLLoss(0.1)(embeddings, labels), embeddings)


@pytest.mark.parametrize("loss", [SiMoLoss(0.2, alpha=6), SimCoLoss(0.2, 0.2)], ids=["simo", "simco"])
def test_of_as_many_negatives_as_it_stands_for_or_of_one_temperature_a_loss_is_info_nce(loss: PairLoss) -> None:
    embeddings, labels = batch(PAIRS)
    expected = InfoNCELoss(0.2)(embeddings, labels)
    check_equal(loss(embeddings, labels), expected, embeddings, value=1e-12)


@pytest.mark.parametrize("autocast", [False, True])
def test_simco_in_float32_at_a_small_temperature_leaves_easy_queries_their_weight(autocast: bool) -> None:
    # the share of the negatives is exp(-200), which float32 cannot hold: a quotient of shares would be 0 / 0
    labels = torch.tensor([0, 0, 1, 1])
    rows = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]], requires_grad=True)
    with torch.autocast("cpu", enabled=autocast):
        loss = SimCoLoss(0.005, 0.05)(rows, labels)
    assert loss.item() > 0
    (gradient,) = torch.autograd.grad(loss, rows)
    wide = rows.detach().double().requires_grad_()
    logits = normalize(wide) @ normalize(wide).T
    total = torch.zeros((), dtype=torch.float64)
    for query, (positive, negatives) in enumerate([(1, [2, 3]), (0, [2, 3]), (3, [0, 1]), (2, [0, 1])]):
        x, other = (
            torch.logsumexp(logits[query, negatives] / tau, 0) - logits[query, positive] / tau for tau in (0.005, 0.05)
        )
        total = total + other.detach().sigmoid() * x / 4  # the closed form of the gradient
    torch.testing.assert_close(gradient.double(), torch.autograd.grad(total, wide)[0], rtol=1e-3, atol=1e-8)
    assert gradient.any()
