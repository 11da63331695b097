import copy

import oracles
import pytest
import torch
from sklearn.metrics import average_precision_score
from testing.equal import batch, check_equal, exact_loss

from aurank.losses import BlackBoxAPLoss


@pytest.mark.parametrize(("lambda_", "flat_weight"), [(5.0, 0.9), (5.0, 0.0), (0.5, 0.5), (200.0, 0.2)])
def test_value_and_gradient_equal_the_loop(lambda_: float, flat_weight: float) -> None:
    embeddings, labels = batch()
    loss = BlackBoxAPLoss(lambda_, margin=0, flat_weight=flat_weight)
    value = loss(embeddings, labels)
    sides = oracles.masks(labels.tolist())
    given = {"lambda_": lambda_, "flat_weight": flat_weight or 1e-300}
    expected = oracles.total(oracles.blackbox_ap(oracles.cosine(embeddings), *sides, **given))
    check_equal(value, expected, embeddings, value=1e-12, atol=1e-12)


def test_without_a_margin_it_is_one_minus_average_precision_of_each_list_and_of_all_in_one() -> None:
    embeddings, labels = batch()
    similarity, hits, scores = oracles.cosine(embeddings.detach()), [], []
    for row, (positives, negatives) in oracles.sides(*oracles.masks(labels.tolist())).items():
        hits += [1] * len(positives) + [0] * len(negatives)
        scores += similarity[row, [*positives, *negatives]].tolist()
    per_query, flat = exact_loss(embeddings, labels), 1 - average_precision_score(hits, scores)
    for weight in (0, 0.3):
        loss = BlackBoxAPLoss(margin=0, flat_weight=weight)(embeddings, labels)
        assert loss.item() == pytest.approx((1 - weight) * per_query + weight * flat, abs=1e-12)


def test_equal_scores_count_as_one_threshold_so_a_collapsed_model_scores_the_prevalence() -> None:
    labels = torch.tensor([0, 0, 0, 1, 1, 1])
    assert BlackBoxAPLoss(margin=0)(torch.ones(6, 4), labels) == pytest.approx(1 - 2 / 5)


@pytest.mark.parametrize("scale", [65536.0, 1 / 65536, -3.0])
def test_scaling_the_loss_scales_the_gradient_and_nothing_else(scale: float) -> None:
    embeddings, labels = batch()
    rows = embeddings.detach().float().requires_grad_()
    plain, scaled = (torch.autograd.grad(factor * BlackBoxAPLoss()(rows, labels), rows)[0] for factor in (1.0, scale))
    assert plain.any()
    torch.testing.assert_close(scaled, scale * plain, rtol=1e-5, atol=1e-8 * abs(scale))


def test_the_margin_lowers_positives_and_raises_negatives_by_half_a_normal_number() -> None:
    embeddings, labels = batch()
    random = torch.Generator().manual_seed(3)
    similarity = oracles.cosine(embeddings.detach())
    same = labels[:, None] == labels
    terms = []
    for _ in ("loss", "flat"):  # drawn anew for each
        noise = torch.randn(similarity.shape, generator=random).double().abs()
        terms.append(similarity - 0.2 * noise * (same.double() - 0.5))
    sides = oracles.masks(labels.tolist())
    own, flat = (oracles.blackbox_ap(scores, *sides) for scores in terms)
    expected = oracles.mean(own["loss"]) + flat["flat"]
    torch.testing.assert_close(BlackBoxAPLoss(margin=0.2, seed=3)(embeddings, labels), expected, rtol=0, atol=1e-12)
    generator = torch.Generator().manual_seed(3)
    given = BlackBoxAPLoss(margin=0.2, generator=generator)(embeddings, labels)
    torch.testing.assert_close(given, expected, rtol=0, atol=1e-12)
    assert not generator.get_state().equal(torch.Generator().manual_seed(3).get_state())


def test_margins_are_new_at_each_step_and_absent_in_evaluation_mode() -> None:
    embeddings, labels = batch()
    loss, exact = BlackBoxAPLoss(), BlackBoxAPLoss(margin=0)
    assert len({loss(embeddings, labels).item() for _ in range(5)}) == 5
    before = copy.deepcopy(loss.state_dict())
    assert loss.eval()(embeddings, labels) == exact(embeddings, labels)
    assert loss.state_dict()["noise._extra_state"].equal(before["noise._extra_state"])
