import math

import oracles
import pytest
import torch
from pytorch_metric_learning.miners import BatchHardMiner
from testing.equal import batch, check_equal

from aurank.errors import UserError
from aurank.losses import RecallAtKLoss

SMALL = [0, 0, 0, 1, 1, 2, 2, 3]


@pytest.mark.parametrize("k", [1, 3, 6])
def test_small_temperatures_give_recall_with_rank_k_itself_counted_half(k: int) -> None:
    embeddings, labels = batch()
    similarity = oracles.cosine(embeddings.detach())
    recalls = []
    for row, (positives, negatives) in oracles.sides(*oracles.masks(labels.tolist())).items():
        ranks = [sum(bool(similarity[row, j] >= similarity[row, i]) for j in positives + negatives) for i in positives]
        recalls.append(sum(1.0 if rank < k else 0.5 * (rank == k) for rank in ranks) / len(positives))
    loss = RecallAtKLoss((k,), temperature=1e-6, rank_temperature=1e-3)(embeddings, labels)
    assert loss.item() == pytest.approx(1 - sum(recalls) / len(recalls), abs=1e-9)


def test_official_ranks_the_query_itself_ahead_and_divides_by_at_most_k() -> None:
    labels = torch.tensor([0, 0, 0, 1, 1, 1])
    plain = RecallAtKLoss((1,), 1e-4, rank_temperature=1e-2)
    code = RecallAtKLoss((1,), 1e-4, rank_temperature=1e-2, official=True)
    rows = torch.eye(2, dtype=torch.float64)[labels]
    rows[[2, 5]] = torch.tensor([[1.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
    # queries 0 and 1 rank each other first, with 2 behind; query 2 ranks both alike, at 1½: all before the others
    assert plain(rows, labels).item() == pytest.approx(1 - (0.25 + 0.25 + 0) / 3, abs=1e-6)
    # the query is the first, so no positive is at rank 1
    assert code(rows, labels).item() == pytest.approx(1, abs=1e-6)


def test_a_repository_cuts_k_to_the_batch_and_has_one_rank_temperature_or_one_for_each_k() -> None:
    labels = torch.tensor([0, 0, 1, 1])
    rows = torch.eye(2, dtype=torch.float64)[labels]
    one, each = (RecallAtKLoss((2, 8), 1e-6, official=form) for form in ("one_temperature", True))
    # a query and its one positive rank alike, before the others: rank 1 + ½; k = 8 is cut to 4
    near, far = 1 / (1 + math.exp(-0.5)), 1 / (1 + math.exp(-2.5))
    assert one(rows, labels).item() == pytest.approx(1 - (near + far) / 2, abs=1e-9)
    near, far = 1 / (1 + math.exp(-0.5 / 2)), 1 / (1 + math.exp(-2.5 / 8))
    assert each(rows, labels).item() == pytest.approx(1 - (near + far) / 2, abs=1e-9)


def mixed_oracle(
    embeddings: torch.Tensor, labels: torch.Tensor, shares: list[float], official: bool | str
) -> torch.Tensor:
    rows, all_labels = oracles.mixed_up(embeddings, labels.tolist(), shares)
    similarity = torch.stack([torch.stack([row @ other for other in rows]) for row in rows])
    given = {"cuts": (1, 10), "temperature": 0.05, "rank_temperature": 1.0, "official": official}
    return oracles.mean(oracles.recall_at_k(similarity, *oracles.masks(all_labels), batch=len(labels), **given))


@pytest.mark.parametrize("official", [False, True, "one_temperature"])
def test_mixup_of_similarities_is_that_of_embeddings_averaged_over_true_and_virtual_queries(
    official: bool | str,
) -> None:
    embeddings, labels = batch(SMALL)
    shares = torch.rand(5, generator=torch.Generator().manual_seed(3)).double()  # 3 + 1 + 1 pairs within classes
    loss = RecallAtKLoss((1, 10), 0.05, similarity_mixup=True, seed=3, official=official)
    value, expected = loss(embeddings, labels), mixed_oracle(embeddings, labels, shares.tolist(), official)
    check_equal(value, expected, embeddings)


@pytest.mark.filterwarnings("ignore:no query of the batch")
def test_mixup_draws_anew_at_each_step_and_rests_in_evaluation_mode() -> None:
    embeddings, labels = batch()
    loss, plain = RecallAtKLoss(similarity_mixup=True), RecallAtKLoss()
    assert len({loss(embeddings, labels).item() for _ in range(4)}) == 4
    before = loss.state_dict()["shares._extra_state"].clone()
    assert loss.eval()(embeddings, labels) == plain(embeddings, labels)
    loss.train()(embeddings[:3].detach(), torch.tensor([0, 1, 2]))  # no valid query
    assert loss.state_dict()["shares._extra_state"].equal(before)


def test_mixup_needs_no_value_of_the_device() -> None:
    embeddings, labels = batch()
    rows = embeddings.detach().to("meta").requires_grad_()
    RecallAtKLoss(similarity_mixup=True).to("meta")(rows, labels).backward()
    assert rows.grad is not None


def test_mixup_refuses_references_and_miners_in_training_mode_only() -> None:
    (embeddings, labels), (references, ref_labels) = batch(), batch(seed=1)
    mined = BatchHardMiner()(embeddings, labels)
    loss = RecallAtKLoss(similarity_mixup=True)
    with pytest.raises(UserError, match="so ref_emb cannot be given with it"):
        loss(embeddings, labels, ref_emb=references, ref_labels=ref_labels)
    with pytest.raises(UserError, match="so indices_tuple cannot be given with it"):
        loss(embeddings, labels, mined)
    given = {"ref_emb": references, "ref_labels": ref_labels}
    assert loss.eval()(embeddings, labels, mined) == RecallAtKLoss()(embeddings, labels, mined)
    assert loss(embeddings, labels, **given) == RecallAtKLoss()(embeddings, labels, **given)
