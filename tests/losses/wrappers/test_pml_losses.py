"""PML's losses by name: their reductions, and what the wrapper adds to them."""

import copy

import pytest
import torch
from pytorch_metric_learning import losses as pml
from pytorch_metric_learning import reducers
from pytorch_metric_learning.distances import CosineSimilarity, LpDistance
from testing.equal import check_equal
from testing.equal import rows_of_four as batch
from torch import Tensor

from aurank.losses import LOSSES, MINERS, MultipleLosses, PMLLoss, contrastive, multi_similarity, triplet

NAMES = ["circle", "contrastive", "triplet", "multi_similarity"]
PLAIN = {
    "circle": pml.CircleLoss,
    "contrastive": lambda: pml.ContrastiveLoss(1, 0.5, distance=CosineSimilarity(), reducer=reducers.SumReducer()),
    "triplet": lambda: pml.TripletMarginLoss(0.1, distance=CosineSimilarity(), reducer=reducers.SumReducer()),
    "multi_similarity": lambda: pml.MultiSimilarityLoss(2, 40, 0.5),
}
EACH = pytest.mark.parametrize("name", NAMES)


def plain(name: str, *given: object) -> Tensor:
    return PLAIN[name]()(*given) / (len(given[0]) if name == "triplet" else 1)


def margins(embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The contrastive and the triplet sums by the definition, pair by pair."""
    rows = embeddings / embeddings.norm(dim=1, keepdim=True)
    pairs, triplets = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for a in range(len(rows)):
        for b in range(len(rows)):
            if a == b:
                continue
            score = rows[a] @ rows[b]
            pairs = pairs + ((1 - score).relu() if labels[a] == labels[b] else (score - 0.5).relu())
            for c in range(len(rows)):
                if labels[a] == labels[b] and labels[a] != labels[c]:
                    triplets = triplets + (rows[a] @ rows[c] - score + 0.1).relu()
    return pairs, triplets


def test_contrastive_and_triplet_are_sums_by_their_definition() -> None:
    embeddings, labels = batch()
    pairs, triplets = margins(embeddings, labels)
    for loss, wanted in (
        (contrastive(), pairs),
        (contrastive(reduction="batch"), pairs / 12),
        (triplet(), triplets / 12),
        (triplet(reduction="sum"), triplets),
    ):
        check_equal(loss(embeddings, labels), wanted, embeddings, rtol=0, atol=1e-8)


def test_multi_similarity_is_its_definition() -> None:
    embeddings, labels = batch()
    rows = embeddings / embeddings.norm(dim=1, keepdim=True)
    values, one = [], torch.ones((), dtype=torch.float64)
    for a in range(12):
        plus = [rows[a] @ rows[b] for b in range(12) if a != b and labels[a] == labels[b]]
        minus = [rows[a] @ rows[b] for b in range(12) if labels[a] != labels[b]]
        values.append(
            torch.log(sum((torch.exp(-2 * (score - 0.5)) for score in plus), one)) / 2
            + torch.log(sum((torch.exp(40 * (score - 0.5)) for score in minus), one)) / 40
        )
    check_equal(multi_similarity()(embeddings, labels), torch.stack(values).mean(), embeddings, rtol=0, atol=1e-8)


def test_pml_reduction_is_pml_s_own() -> None:
    embeddings, labels = batch()
    own = pml.ContrastiveLoss(1, 0.5, distance=CosineSimilarity())(embeddings, labels)
    assert contrastive(reduction="pml")(embeddings, labels) == own
    assert own < contrastive()(embeddings, labels)


def test_a_reducer_overrides_the_reduction_and_a_distance_the_cosine() -> None:
    embeddings, labels = batch()
    given = {"reducer": reducers.MeanReducer(), "distance": LpDistance()}
    loss = contrastive(0.2, 0.9, **given)
    assert loss(embeddings, labels) == pml.ContrastiveLoss(0.2, 0.9, **given)(embeddings, labels)


@EACH
@pytest.mark.parametrize("miner", MINERS)
def test_a_miner_or_its_tuple_gives_pml_s_loss_of_what_was_mined(name: str, miner: str) -> None:
    embeddings, labels = batch()
    for references in ((), batch(1)):
        torch.manual_seed(0)
        mined = MINERS[miner]()(embeddings, labels, *references)
        expected = plain(name, embeddings, labels, mined, *references)
        assert LOSSES[name]()(embeddings, labels, mined, *references) == expected
        torch.manual_seed(0)
        assert LOSSES[name]()(embeddings, labels, MINERS[miner](), *references) == expected


@EACH
def test_one_tensor_of_labels_for_batch_and_references_loses_no_positive(name: str) -> None:
    (embeddings, labels), (references, _) = batch(), batch(1)
    expected = plain(name, embeddings, labels, None, references, labels.clone())
    assert LOSSES[name]()(embeddings, labels, None, references, labels) == expected


@EACH
def test_ids_leave_a_query_out_of_references_that_hold_it(name: str) -> None:
    (embeddings, labels), (memory, memory_labels) = batch(), batch(1)
    everything, all_labels = torch.cat([embeddings, memory]), torch.cat([labels, memory_labels])
    same = labels[:, None] == all_labels
    positive = same & ~torch.eye(12, 24, dtype=torch.bool)
    pairs = (*positive.nonzero().T, *(~same).nonzero().T)
    ids, all_ids = torch.arange(12), torch.arange(24)
    loss = LOSSES[name]()
    expected = plain(name, embeddings, labels, pairs, everything, all_labels)
    given = {"ids": ids, "ref_ids": all_ids}
    assert loss(embeddings, labels, None, everything, all_labels, **given) == expected
    with_self = (*same.nonzero().T, *(~same).nonzero().T)
    assert loss(embeddings, labels, with_self, everything, all_labels, **given) == expected
    triplets = [(a, b, c) for a in range(12) for b in range(24) for c in range(24) if same[a, b] and not same[a, c]]
    mined = tuple(torch.tensor(column) for column in zip(*triplets, strict=True))
    without = tuple(part[mined[0] != mined[1]] for part in mined)
    assert len(without[0]) < len(mined[0])
    expected = plain(name, embeddings, labels, without, everything, all_labels)
    assert loss(embeddings, labels, mined, everything, all_labels, **given) == expected


@EACH
def test_autocast_leaves_numbers_in_float32(name: str) -> None:
    embeddings, labels = batch()
    rows = embeddings.detach().bfloat16().requires_grad_()
    expected = LOSSES[name]()(rows, labels)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = LOSSES[name]()(rows, labels)
    assert value.dtype == torch.float32
    assert value == expected
    value.backward()
    assert rows.grad.dtype == torch.bfloat16


@pytest.mark.parametrize("name", [*NAMES, "smooth_ap"])
def test_autocast_leaves_miners_in_float32(name: str) -> None:
    embeddings, labels = batch()
    rows = embeddings.detach().float()
    expected = LOSSES[name]()(rows, labels, MINERS["multi_similarity"](epsilon=0.01))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert LOSSES[name]()(rows, labels, MINERS["multi_similarity"](epsilon=0.01)) == expected


@EACH
def test_any_pml_loss_can_be_wrapped_copied_and_summed(name: str) -> None:
    embeddings, labels = batch()
    other = PMLLoss(pml.NTXentLoss())
    assert other(embeddings, labels) == pml.NTXentLoss()(embeddings, labels)
    loss = copy.deepcopy(LOSSES[name]())
    expected = 2 * loss(embeddings, labels) + 3 * other(embeddings, labels)
    torch.testing.assert_close(MultipleLosses([loss, other], weights=[2, 3])(embeddings, labels), expected)
