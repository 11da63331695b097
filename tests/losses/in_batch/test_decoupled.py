import math

import pytest
from testing.equal import batch, check_equal

from aurank.losses import DCLLoss, InfoNCELoss, SiMoLoss
from aurank.losses.core.pairs import Inputs, make_pairs
from aurank.losses.in_batch.contrastive import hardness_weights

PAIRS = [0, 1, 2, 3, 0, 1, 2, 3]  # two views


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


def test_simo_of_as_many_negatives_as_it_stands_for_is_info_nce() -> None:
    embeddings, labels = batch(PAIRS)
    check_equal(SiMoLoss(0.2, alpha=6)(embeddings, labels), InfoNCELoss(0.2)(embeddings, labels), embeddings)
