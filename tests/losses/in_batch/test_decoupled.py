import math

import pytest
import torch
from testing.equal import batch, check_equal

from aurank.losses import DCLLoss, FlatNCELoss, InfoNCELoss, SiMoLoss, SogCLRLoss
from aurank.losses.core.pairs import Inputs, make_pairs
from aurank.losses.in_batch.contrastive import hardness_weights

PAIRS = [0, 1, 2, 3, 0, 1, 2, 3]  # two views


def test_dcl_is_sogclr_of_one_batch_over_the_temperature_but_for_the_number_of_negatives() -> None:
    embeddings, labels = batch(PAIRS)
    alone = SogCLRLoss(4, 0.3, gamma=1.0).double()(embeddings, labels) / 0.3
    check_equal(DCLLoss(0.3)(embeddings, labels), alone + math.log(6), embeddings)


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


def test_flat_nce_has_the_gradient_of_dcl_and_the_value_of_info_nce() -> None:
    embeddings, labels = batch()
    (wanted,) = torch.autograd.grad(DCLLoss(0.1)(embeddings, labels), embeddings)
    loss = FlatNCELoss(0.1)(embeddings, labels)
    assert loss.item() == pytest.approx(InfoNCELoss(0.1)(embeddings, labels).item(), abs=1e-12)
    torch.testing.assert_close(torch.autograd.grad(loss, embeddings)[0], wanted, rtol=0, atol=1e-12)


def test_simo_of_as_many_negatives_as_it_stands_for_is_info_nce() -> None:
    embeddings, labels = batch(PAIRS)
    check_equal(SiMoLoss(0.2, alpha=6)(embeddings, labels), InfoNCELoss(0.2)(embeddings, labels), embeddings)
