import oracles
import pytest
import torch
from pytorch_metric_learning.miners import BatchHardMiner
from testing.equal import batch, check_equal

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


def mixed_oracle(embeddings: torch.Tensor, labels: torch.Tensor, shares: list[float]) -> torch.Tensor:
    rows, all_labels = oracles.mixed_up(embeddings, labels.tolist(), shares)
    similarity = torch.stack([torch.stack([row @ other for other in rows]) for row in rows])
    given = {"k": (1, 10), "temperature": 0.05, "rank_temperature": 1.0}
    return oracles.mean(oracles.recall_at_k(similarity, *oracles.masks(all_labels), **given))


def test_mixup_of_similarities_is_that_of_embeddings_averaged_over_true_and_virtual_queries() -> None:
    embeddings, labels = batch(SMALL)
    shares = torch.rand(5, generator=torch.Generator().manual_seed(3)).double()  # 3 + 1 + 1 pairs within classes
    loss = RecallAtKLoss((1, 10), 0.05, similarity_mixup=True, seed=3)
    value, expected = loss(embeddings, labels), mixed_oracle(embeddings, labels, shares.tolist())
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


def test_mixup_takes_references_and_miners_in_evaluation_mode() -> None:
    (embeddings, labels), (references, ref_labels) = batch(), batch(seed=1)
    mined = BatchHardMiner()(embeddings, labels)
    loss = RecallAtKLoss(similarity_mixup=True).eval()
    given = {"ref_emb": references, "ref_labels": ref_labels}
    assert loss(embeddings, labels, mined) == RecallAtKLoss()(embeddings, labels, mined)
    assert loss(embeddings, labels, **given) == RecallAtKLoss()(embeddings, labels, **given)
