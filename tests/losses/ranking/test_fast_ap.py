import itertools

import pytest
import torch
from pytorch_metric_learning import distances, losses, reducers
from testing.equal import batch, check_equal
from torch import Tensor

from aurank.losses import FastAPLoss, ListwiseAPLoss, MultipleLosses


def gradient_of(loss: torch.nn.Module, embeddings: Tensor, labels: Tensor) -> Tensor:
    return torch.autograd.grad(loss(embeddings, labels), embeddings)[0]


@pytest.mark.parametrize("num_bins", [1, 10, 25])
def test_value_and_gradient_are_those_of_pml_s_loss_by_either_distance(num_bins: int) -> None:
    embeddings, labels = batch()
    theirs = losses.FastAPLoss(num_bins)(embeddings, labels)
    check_equal(FastAPLoss(num_bins)(embeddings, labels), theirs, embeddings)
    theirs = losses.FastAPLoss(num_bins)(embeddings, labels)
    check_equal(FastAPLoss(num_bins, distance=distances.LpDistance(power=2))(embeddings, labels), theirs, embeddings)


def test_bins_of_squared_distance_are_dir_s_bins_of_similarity() -> None:
    embeddings, labels = batch()
    check_equal(FastAPLoss(10)(embeddings, labels), ListwiseAPLoss(11)(embeddings, labels), embeddings)


def test_scores_at_the_centres_one_to_a_bin_give_the_exact_average_precision() -> None:
    angles = torch.acos(torch.tensor([0.8, 0.4, 0.0, -0.4, -0.8], dtype=torch.float64))
    rows = torch.stack([angles.cos(), angles.sin()], dim=1)
    query = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    for relevant in itertools.product([0, 1], repeat=5):
        if 0 < sum(relevant) < 5:
            loss = FastAPLoss()(query, torch.tensor([1]), ref_emb=rows, ref_labels=torch.tensor(relevant))
            hits = [rank for rank, hit in enumerate(relevant, start=1) if hit]
            exact = sum((found + 1) / rank for found, rank in enumerate(hits)) / len(hits)
            assert loss.item() == pytest.approx(1 - exact, abs=1e-12)


def test_official_keeps_the_value_and_makes_the_gradient_that_of_half_the_sum() -> None:
    embeddings, labels = batch()
    official, plain = FastAPLoss(official=True), FastAPLoss()
    assert official(embeddings, labels).equal(plain(embeddings, labels))
    gradient = gradient_of(plain, embeddings, labels)
    queries = 17  # two have no positive
    torch.testing.assert_close(gradient_of(official, embeddings, labels), gradient * queries / 2)
    summed = FastAPLoss(reducer=reducers.SumReducer())
    torch.testing.assert_close(gradient_of(official, embeddings, labels), gradient_of(summed, embeddings, labels) / 2)
    weighted = MultipleLosses([official], weights=[7])  # the authors' backward would ignore the 7
    torch.testing.assert_close(gradient_of(weighted, embeddings, labels), gradient * 7 * queries / 2)
