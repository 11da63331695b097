from dataclasses import replace

import oracles
import pytest
import torch
from pytorch_metric_learning.distances import CosineSimilarity, DotProductSimilarity, LpDistance

from aurank.losses import Pairs
from aurank.losses import make_pairs as pairs_of_inputs
from aurank.losses.core.pairs import read_inputs

LABELS = torch.tensor([3, -7, 3, 2**40, -7, 3, 5, -7, 3, 11])  # unequal classes, two singletons, odd numbers, shuffled


def make_pairs(embeddings: torch.Tensor, labels: torch.Tensor | None, *, distance: object, **given: object) -> Pairs:
    return pairs_of_inputs(read_inputs(embeddings, labels, **given), distance=distance)


def embed(rows: int, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(rows, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def check_masks(pairs: Pairs, positive: oracles.Mask, negative: oracles.Mask) -> None:
    assert pairs.positive.tolist() == positive
    assert pairs.negative.tolist() == negative
    assert pairs.valid_rows.tolist() == list(oracles.sides(positive, negative))


def test_masks_are_same_label_and_other_label_without_self() -> None:
    pairs = make_pairs(embed(10), LABELS, distance=CosineSimilarity())
    check_masks(pairs, *oracles.masks(LABELS.tolist()))
    assert pairs.itself.equal(torch.eye(10, dtype=torch.bool))
    assert pairs.valid.nonzero().squeeze(1).equal(pairs.valid_rows)


@pytest.mark.parametrize("with_ids", [False, True])
def test_masks_against_references_leave_out_equal_ids_only(with_ids: bool) -> None:
    ref_labels = torch.tensor([3, 3, 5, 11, -7, 3, 99, 5, 11])
    ids, ref_ids = torch.arange(10), torch.tensor([0, 70, 6, 9, 1, 0, 80, 6, 90])  # two ids twice
    given = {"ids": ids, "ref_ids": ref_ids} if with_ids else {}
    pairs = make_pairs(
        embed(10), LABELS, distance=CosineSimilarity(), ref_emb=embed(9, seed=1), ref_labels=ref_labels, **given
    )
    listed = {name: values.tolist() for name, values in given.items()}
    check_masks(pairs, *oracles.masks(LABELS.tolist(), ref_labels.tolist(), **listed))
    assert pairs.itself.sum() == (6 if with_ids else 0)


def test_valid_rows_do_not_count_a_reference_of_the_query_s_id_with_another_label() -> None:
    given = {"ref_emb": embed(2, seed=1), "ref_labels": torch.tensor([0, 1]), "ref_ids": torch.tensor([8, 5])}
    pairs = make_pairs(embed(2), torch.tensor([0, 0]), distance=CosineSimilarity(), ids=torch.tensor([5, 6]), **given)
    assert pairs.valid_rows.tolist() == [1]  # row 0 has lost its only negative, the reference of its own id


def test_gathered_positives_are_the_positive_references_in_order() -> None:
    pairs = make_pairs(embed(10), LABELS, distance=CosineSimilarity())
    for gathered, wanted in (
        (pairs.positives, pairs.positive),
        (pairs.positives_and_self, pairs.positive | pairs.itself),
    ):
        assert gathered.index.shape[1] == int(wanted.sum(dim=1).max())
        for row in range(10):
            rows = gathered.index[row][gathered.mask[row]]
            assert rows.tolist() == wanted[row].nonzero().squeeze(1).tolist()
            assert gathered.similarity[row][gathered.mask[row]].equal(pairs.similarity[row][rows])


@pytest.mark.parametrize("triplets", [False, True])
def test_a_miner_s_tuple_narrows_the_masks_and_never_widens_them(triplets: bool) -> None:
    anchor, positive = torch.tensor([0, 0, 2, 1, 0]), torch.tensor([2, 5, 5, 3, 2])  # (1, 3) is no positive pair
    negative = torch.tensor([1, 3, 1, 0, 8])  # (0, 8) is no negative pair
    mined = (anchor, positive, negative) if triplets else (anchor, positive, anchor, negative)
    pairs = make_pairs(embed(10), LABELS, distance=CosineSimilarity(), indices_tuple=mined)
    check_masks(pairs, *oracles.masks(LABELS.tolist(), mined=mined))
    assert pairs.valid_rows.tolist() == [0, 2]


def test_a_miner_s_tuple_may_reach_all_references_and_be_empty() -> None:
    given = {"ref_emb": embed(12, seed=1), "ref_labels": torch.arange(12)}
    last, none = torch.tensor([11]), torch.tensor([], dtype=torch.int64)
    row = torch.tensor([9])
    pairs = make_pairs(embed(10), LABELS, distance=CosineSimilarity(), indices_tuple=(row, last, none, none), **given)
    assert pairs.positive.nonzero().tolist() == [[9, 11]]


def test_larger_similarity_is_closer_for_any_distance() -> None:
    embeddings = embed(10)
    near = make_pairs(embeddings, LABELS, distance=LpDistance(normalize_embeddings=False))
    torch.testing.assert_close(near.similarity, -torch.cdist(embeddings, embeddings), rtol=1e-9, atol=1e-9)
    dot = make_pairs(embeddings, LABELS, distance=DotProductSimilarity(normalize_embeddings=False))
    torch.testing.assert_close(dot.similarity, embeddings @ embeddings.T)


def test_references_that_are_the_embeddings_themselves_are_the_batch() -> None:
    embeddings = embed(10)
    pairs = make_pairs(embeddings, LABELS, distance=CosineSimilarity(), ref_emb=embeddings, ref_labels=LABELS.clone())
    assert pairs.is_self_set


def test_what_is_first_read_without_gradients_still_has_them() -> None:
    embeddings = embed(10).requires_grad_()
    pairs = make_pairs(embeddings, LABELS, distance=CosineSimilarity())
    with torch.no_grad():
        kept = (pairs.positives.similarity, pairs.positives_and_self.similarity, pairs.negative_similarity)
    assert all(values.requires_grad for values in kept)
    with torch.no_grad():
        pairs = make_pairs(embeddings, LABELS, distance=CosineSimilarity())
        assert not pairs.positives.similarity.requires_grad


def test_two_way_pairs_keep_the_partner_and_turn_round_whole() -> None:
    random = torch.Generator().manual_seed(0)
    images, texts = (torch.randn(number, 4, generator=random) for number in (5, 3))
    labels, ref_labels = torch.tensor([2, 0, 1, 0, 9]), torch.tensor([0, 2, 7])
    given = read_inputs(
        images, labels, ref_emb=texts, ref_labels=ref_labels, ids=torch.arange(5), ref_ids=torch.tensor([1, 0, 6])
    )
    pairs = pairs_of_inputs(given, distance=CosineSimilarity(), two_way=True)
    other = pairs.other_way()
    assert pairs.positive.equal(labels[:, None] == ref_labels)  # those of the query's id too
    assert pairs.negative.equal(labels[:, None] != ref_labels)
    assert pairs.valid_rows.tolist() == [0, 1, 3]
    assert other.valid_rows.tolist() == [0, 1]
    assert (pairs.side, other.side, other.other_way().side) == (0, 1, 0)
    turned = pairs_of_inputs(
        read_inputs(texts, ref_labels, ref_emb=images, ref_labels=labels), distance=CosineSimilarity(), two_way=True
    )
    for name in ("query", "reference", "similarity", "positive", "negative", "query_labels", "valid_rows"):
        torch.testing.assert_close(getattr(other, name), getattr(turned, name))
    assert other.query_ids.tolist() == [1, 0, 6]
    mined = (torch.tensor([0, 1]), torch.tensor([1, 0]), torch.tensor([0, 1]), torch.tensor([0, 2]))
    narrowed = pairs_of_inputs(replace(given, indices_tuple=mined), distance=CosineSimilarity(), two_way=True)
    assert narrowed.valid_rows.tolist() == [0, 1]
    assert narrowed.other_way().valid_rows.tolist() == [0]
