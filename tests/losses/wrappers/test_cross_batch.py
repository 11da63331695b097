"""CrossBatchMemory: any loss against the batch and what earlier batches left."""

import oracles
import pytest
import torch
from pytorch_metric_learning import losses as pml
from pytorch_metric_learning import miners
from pytorch_metric_learning.distances import CosineSimilarity
from testing.equal import check_equal
from testing.equal import rows_of_four as batch
from torch import Tensor

from aurank.losses import (
    CrossBatchMemory,
    MultipleLosses,
    Pairs,
    SmoothAPLoss,
    SogCLRLoss,
    SOPRCLoss,
    contrastive,
    cosface,
    triplet,
)

MAKERS = {
    "smooth_ap": SmoothAPLoss,
    "soprc": lambda: SOPRCLoss([9, 9, 9, 9]),
    "contrastive": contrastive,
    "triplet": triplet,
    "pml": lambda: pml.ContrastiveLoss(1, 0.5, distance=CosineSimilarity()),
    "several": lambda: MultipleLosses([SmoothAPLoss(), contrastive()], weights=[1, 0.1]),
}
EACH = pytest.mark.parametrize("name", MAKERS)
SIZE = 12


def memory_of(name: str, size: int = 40, **given: object) -> CrossBatchMemory:
    return CrossBatchMemory(MAKERS[name](), embedding_size=5, memory_size=size, **given).double()


def stored(memory: CrossBatchMemory) -> Tensor:
    """The rows of the memory, oldest first."""
    position, filled, _ = memory.counters.tolist()
    return memory.embedding_memory.roll(-position, dims=0)[memory.memory_size - filled :]


@EACH
def test_a_memory_of_the_batch_gives_the_loss_and_gradient_within_the_batch(name: str) -> None:
    embeddings, labels = batch()
    memory = memory_of(name, size=SIZE)
    memory(*batch(5))
    plain = MAKERS[name]().double()
    if name == "soprc":
        plain(*batch(5))
    value, expected = memory(embeddings, labels), plain(embeddings, labels)
    check_equal(value, expected, embeddings, value=1e-12, rtol=0, atol=1e-10)


@pytest.mark.filterwarnings("ignore:no query of the batch")
def test_the_memory_holds_the_newest_rows_in_order_whatever_the_batches() -> None:
    memory = memory_of("smooth_ap", size=13)
    rows: list[Tensor] = []
    for seed, number in enumerate([12, 3, 12, 1, 20]):
        embeddings, labels = batch(seed, number)
        memory(embeddings, labels)
        rows += embeddings.detach()
        assert stored(memory).equal(torch.stack(rows[-13:]))


def test_the_memory_is_used_from_start_at_on_and_is_full_by_then() -> None:
    memory, plain = memory_of("contrastive", start_at=2), contrastive()
    for seed in range(2):
        assert memory(*batch(seed)) == plain(*batch(seed))
    assert memory(*batch(2)) > plain(*batch(2))
    assert len(stored(memory)) == 36


def test_ids_leave_out_older_embeddings_of_the_same_image_but_not_another_view_in_the_batch() -> None:
    embeddings, labels = batch()
    ids = torch.arange(SIZE) // 2  # two views of each image
    labels = labels[ids]
    memory = memory_of("contrastive")
    memory(embeddings.flip(1), labels, ids=ids)
    value = memory(embeddings, labels, ids=ids)
    references = torch.cat([embeddings, embeddings.flip(1)])
    same = labels[:, None] == labels.repeat(2)
    kept = torch.cat([~torch.eye(SIZE, dtype=torch.bool), ids[:, None] != ids], dim=1)
    pairs = (*(same & kept).nonzero().T, *(~same & kept).nonzero().T)
    expected = contrastive()(embeddings, labels, pairs, references, labels.repeat(2))
    torch.testing.assert_close(value, expected, rtol=0, atol=1e-12)

    # a list-wise loss sees the same, whose queries without a positive are told without looking at the accelerator
    memory = memory_of("smooth_ap")
    memory(embeddings.flip(1), labels, ids=ids)
    expected = SmoothAPLoss().double()(embeddings, labels, pairs, references, labels.repeat(2))
    torch.testing.assert_close(memory(embeddings, labels, ids=ids), expected, rtol=0, atol=1e-12)


def test_losses_get_the_ids_that_were_given_and_no_others() -> None:
    seen = []

    class Watching(SmoothAPLoss):
        def per_query(self, pairs: Pairs) -> Tensor:
            seen.append((pairs.query_ids, pairs.reference_ids))
            return super().per_query(pairs)

    memory = CrossBatchMemory(Watching(), embedding_size=5, memory_size=40).double()
    memory(*batch(0))
    memory(*batch(1))
    memory(*batch(2), ids=torch.arange(SIZE))
    assert seen[0] == seen[1] == (None, None)
    assert seen[2][1].tolist() == [*range(SIZE), *[-1] * (2 * SIZE)]


def test_an_easy_miner_is_taken_where_it_cannot_choose_the_query_itself() -> None:
    memory = memory_of("smooth_ap", miner=miners.BatchEasyHardMiner(pos_strategy="hard"))
    memory(*batch(0))
    assert memory(*batch(1)) > 0
    losses = [SmoothAPLoss(), cosface(4, 5).double()]
    proxies = MultipleLosses(losses, [None, miners.BatchEasyHardMiner()])  # which no reference is shown
    assert CrossBatchMemory(proxies, embedding_size=5).double()(*batch()).isfinite()


def test_a_miner_is_asked_about_batch_and_memory() -> None:
    miner, first, second = miners.MultiSimilarityMiner(), batch(1), batch(2)
    memory = memory_of("contrastive", miner=miner)
    memory(*first)
    value = memory(*second)
    everything = torch.cat([second[0], first[0].detach()])
    labels = torch.cat([second[1], first[1]])
    mined = miner(*second, everything, labels)
    ids = torch.arange(24)
    assert value == contrastive()(*second, mined, everything, labels, ids=ids[:12], ref_ids=ids)
    other = memory_of("contrastive")
    other(*first, miner)
    assert other(*second, miner) == value


@pytest.mark.parametrize("triplets", [False, True])
def test_mined_indices_narrow_the_batch_and_take_all_pairs_with_the_memory(triplets: bool) -> None:
    embeddings, labels = batch(2)
    same = labels[:, None] == labels
    row = int((same.sum(dim=1) > 1).nonzero()[0])
    friend = int((same[row] & (torch.arange(SIZE) != row)).nonzero()[0])
    stranger = int((~same[row]).nonzero()[0])
    parts = (row, friend, stranger) if triplets else (row, friend, row, stranger)
    memory = memory_of("contrastive")
    memory(*batch(1))
    value = memory(embeddings, labels, tuple(torch.tensor([part]) for part in parts))
    score = oracles.cosine(embeddings)[row]
    within = (1 - score[friend]) + (score[stranger] - 0.5).relu()
    expected = within + contrastive()(embeddings, labels, None, *(each.detach() for each in batch(1)))
    torch.testing.assert_close(value, expected)


def test_labels_that_stand_for_ids_leave_earlier_views_of_an_image_out_too() -> None:
    rows, values = torch.arange(6).repeat(2), []
    for given in ({}, {"ids": rows}):
        memory = CrossBatchMemory(SogCLRLoss(6), embedding_size=5, memory_size=40).double()
        values.append([memory(batch(seed)[0], rows, **given) for seed in range(3)])
    assert values[0] == values[1]


def test_a_warning_of_pairs_that_ids_leave_out_says_so() -> None:
    (images, _), (texts, _), rows = batch(0), batch(1), torch.arange(SIZE)
    with pytest.warns(UserWarning, match="references of a query's own id do not count: leave out ref_ids"):
        assert SogCLRLoss(SIZE)(images, rows, ref_emb=texts, ref_labels=rows, ids=rows, ref_ids=rows) == 0


@EACH
@pytest.mark.filterwarnings("ignore:no query of the batch")
def test_rows_that_are_not_finite_are_never_stored(name: str) -> None:
    memory, clean = memory_of(name, size=30), memory_of(name, size=30)
    for seed in range(4):
        embeddings, labels = batch(seed)
        ids = torch.arange(SIZE) + SIZE * seed
        kept = torch.ones(SIZE, dtype=torch.bool)
        kept[[0, 5, 11][: seed % 4]] = False
        rows = embeddings.detach().clone()
        rows[~kept, 2] = torch.tensor([torch.nan, torch.inf, -torch.inf], dtype=torch.float64)[: int((~kept).sum())]
        memory(rows, labels, ids=ids)
        clean(embeddings.detach()[kept], labels[kept], ids=ids[kept])
        assert stored(memory).equal(stored(clean))
    for buffer in ("embedding_memory", "label_memory", "id_memory", "counters"):
        assert memory.get_buffer(buffer).equal(clean.get_buffer(buffer)), buffer
    assert memory(*batch(5)).isfinite()
