import oracles
import pytest
import torch
from testing.equal import batch, check_equal

from aurank.losses import MultipleLosses, SemiVarianceLoss, SOPRCLoss


@pytest.mark.parametrize("official", [False, True])
@pytest.mark.parametrize("weights", [(1.0, 5.0), (2, 0)])
def test_value_and_gradient_equal_the_loop(weights: tuple[float, float], official: bool) -> None:
    embeddings, labels = batch()
    value = SemiVarianceLoss(weights, official)(embeddings, labels)
    given = (oracles.cosine(embeddings), *oracles.masks(labels.tolist()))
    if official:
        expected = oracles.pooled_semi_variance(*given, weights=weights)
    else:
        expected = oracles.mean(oracles.semi_variance(*given, weights=weights))
    check_equal(value, expected, embeddings)


@pytest.mark.parametrize("official", [False, True])
@pytest.mark.parametrize("weights", [(1.0, 0.0), (0.0, 1.0)])
def test_scores_that_are_not_a_number_count_in_either_term(weights: tuple[float, float], official: bool) -> None:
    embeddings, labels = batch()
    rows = embeddings.detach().clone()
    rows[labels == 2] = torch.nan
    assert SemiVarianceLoss(weights, official)(rows, labels).isnan()


@pytest.mark.parametrize("official", [False, True])
def test_added_to_soprc_without_its_own_it_is_soprc(official: bool) -> None:
    embeddings, labels = batch()
    counts = [5, 2, 7, 1, 3, 1]
    plain = SOPRCLoss(counts, semi_variance=None, official=official).double()
    whole = SOPRCLoss(counts, semi_variance=(1.0, 5.0), official=official).double()
    both = MultipleLosses([plain, SemiVarianceLoss(official=official)])
    torch.testing.assert_close(both(embeddings, labels), whole(embeddings, labels), rtol=0, atol=1e-12)
