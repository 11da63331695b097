"""CrossBatchMemory is called, and answers, as the one of pytorch-metric-learning."""

import pytest
import torch
from pytorch_metric_learning import losses as pml
from pytorch_metric_learning import miners
from testing.equal import rows_of_four as batch

from aurank.losses import CrossBatchMemory, SmoothAPLoss, SogCLRLoss

SIZE, DIM = 12, 5


def both(*given: object, **named: object) -> tuple[CrossBatchMemory, pml.CrossBatchMemory]:
    ours = CrossBatchMemory(pml.ContrastiveLoss(), *given, **named).double()
    return ours, pml.CrossBatchMemory(pml.ContrastiveLoss(), *given, **named)


@pytest.mark.parametrize(
    "miner", [None, miners.MultiSimilarityMiner(0.3), miners.TripletMarginMiner(0.3)], ids=["none", "pairs", "triplets"]
)
@pytest.mark.parametrize("keys", [0, 5])
def test_values_gradients_and_queue_are_pml_s(miner: torch.nn.Module | None, keys: int) -> None:
    ours, theirs = both(DIM, 30, miner)
    for seed in range(6):
        embeddings, labels = batch(seed)
        mask = None if keys == 0 else torch.arange(SIZE) % 7 < 3  # MoCo's keys among the queries
        values = [memory(embeddings, labels, None, mask) for memory in (ours, theirs)]
        torch.testing.assert_close(*values, rtol=0, atol=1e-12)
        if keys:  # without them the batch's rows have a gradient as references too, which PML's have not
            slopes = (torch.autograd.grad(each, embeddings)[0] for each in values)
            torch.testing.assert_close(*slopes, rtol=0, atol=1e-12)
        assert ours.embedding_memory.equal(theirs.embedding_memory)
        assert ours.label_memory.equal(theirs.label_memory)
        assert (ours.queue_idx, ours.has_been_filled) == (theirs.queue_idx, theirs.has_been_filled)
    assert ours.has_been_filled
    ours.reset_queue()
    theirs.reset_queue()
    values = [memory(*batch(9)) for memory in (ours, theirs)]
    torch.testing.assert_close(*values, rtol=0, atol=1e-12)
    assert ours.embedding_memory.equal(theirs.embedding_memory)
    assert (ours.queue_idx, ours.has_been_filled) == (SIZE, False)


@pytest.mark.parametrize("outer", [miners.MultiSimilarityMiner(0.2), miners.TripletMarginMiner(0.2)])
@pytest.mark.parametrize("inner", [miners.MultiSimilarityMiner(0.3), miners.TripletMarginMiner(0.3)])
def test_a_tuple_of_the_batch_is_added_to_what_the_miner_finds(inner: torch.nn.Module, outer: torch.nn.Module) -> None:
    ours, theirs = both(DIM, 60, inner)
    embeddings, labels = batch(0)
    mined = outer(embeddings, labels)
    # PML takes the batch's rows for the first of its memory, which they are in the first call only
    first = [memory(embeddings, labels, mined) for memory in (ours, theirs)]
    torch.testing.assert_close(*first, rtol=0, atol=1e-12)
    assert not torch.isclose(first[0], both(DIM, 60, inner)[0](embeddings, labels))


def test_keys_have_no_gradient_and_stay_positives_of_their_queries() -> None:
    embeddings, labels, ids = *batch(0), torch.arange(SIZE // 2).repeat(2)
    is_key = torch.arange(SIZE) >= SIZE // 2
    memory = CrossBatchMemory(SogCLRLoss(SIZE), DIM, 40).double()
    for _ in range(2):
        value = memory(embeddings, ids, enqueue_mask=is_key, ids=ids)
    (gradient,) = torch.autograd.grad(value, embeddings)
    assert gradient[~is_key].abs().sum() > 0
    assert gradient[is_key].equal(torch.zeros_like(gradient[is_key]))
    assert memory.id_memory[:SIZE].tolist() == ids[is_key].tolist() * 2
    # in the second step the keys of the first, of the same images, are left out: nothing but the batch is seen
    ours = CrossBatchMemory(SmoothAPLoss(), DIM, 40).double()
    values = [ours(embeddings, labels, enqueue_mask=is_key, ids=ids) for _ in range(2)]
    alone = SmoothAPLoss().double()(
        embeddings[~is_key], labels[~is_key], ref_emb=embeddings[is_key], ref_labels=labels[is_key]
    )
    assert values[0] == alone
    assert ours(embeddings, labels, enqueue_mask=is_key) != alone
