import oracles
import pytest
import torch
from oracles import chains as oracles_chains
from pytorch_metric_learning.distances import CosineSimilarity, LpDistance
from testing.equal import check_equal
from torch import Tensor

from aurank.losses import NegativeCacheLoss
from aurank.losses.global_contrastive import negative_cache
from aurank.losses.global_contrastive.negative_cache import gumbel_max

IMAGES, DIM = 12, 6
ENCODED = torch.nn.functional.normalize(
    torch.randn(IMAGES, DIM, generator=torch.Generator().manual_seed(3), dtype=torch.float64), dim=1
)


def seen(images: list[int], **given: object) -> NegativeCacheLoss:
    """A loss whose cache holds some images as they are in ENCODED."""
    loss = NegativeCacheLoss(IMAGES, **given).double()
    loss(ENCODED[images].repeat(2, 1), torch.tensor(images * 2))
    return loss


def test_a_query_without_candidate_in_a_piece_or_at_all_is_no_number_s_fault() -> None:
    scores = torch.full((2, 4), -torch.inf)
    scores[0, 2:] = torch.tensor([1.0, -200.0])
    drawn, log_sum = gumbel_max(scores.split(2, dim=1), torch.Generator())
    assert drawn.tolist() == [2, 0]
    assert log_sum.tolist() == [1.0, -torch.inf]


def test_noise_close_to_its_greatest_still_says_which_is_greater(monkeypatch: pytest.MonkeyPatch) -> None:
    # two of ten million uniform numbers are as close as this to 1, where float32 ends at 1 - 2**-24
    uniform = 1 - torch.tensor([[2.0**-26, 2.0**-25, 2.0**-27, 0.5]], dtype=torch.float64)
    monkeypatch.setattr(torch, "rand", lambda *shape, dtype, **_: uniform.to(dtype))
    assert gumbel_max([torch.zeros(1, 4)], None)[0] == 2


class Recorded(CosineSimilarity):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[int, int]] = []

    def forward(self, query: Tensor, references: Tensor | None = None) -> Tensor:
        self.asked.append((len(query), len(query if references is None else references)))
        return super().forward(query, references)


@pytest.mark.parametrize("scores", [1, 24, 60, 2**20])
@pytest.mark.parametrize("weighted", [False, True])
def test_value_gradient_and_draws_equal_the_loop_whatever_the_pieces(
    weighted: bool, scores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(negative_cache, "SCORES", scores)
    distance, cached, images = Recorded(), [1, 4, 5, 6, 11], [4, 0, 1]
    loss = seen(cached, temperature=0.2, positive_in_denominator=weighted, seed=3, distance=distance)
    distance.asked.clear()
    rows = torch.randn(6, DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_()
    value = loss(rows, torch.tensor(images * 2))
    # each row of the cache is asked for once, all queries together, as many as may be at a time
    assert sum(references for _, references in distance.asked[1:-1]) == IMAGES
    assert all(queries == 6 and references <= max(1, scores // 6) for queries, references in distance.asked[1:-1])

    similarity = oracles.cosine(rows, torch.cat([rows, ENCODED]))
    at_once = max(1, scores // 6)
    pieces = [min(at_once, number - first) for number in (6, IMAGES) for first in range(0, number, at_once)]
    noise = oracles_chains.gumbel_noise(3, 6, pieces, batch=1)
    terms = []
    for query in range(6):
        negatives = [column for column in range(6) if column % 3 != query % 3] + [6 + image for image in (5, 6, 11)]
        positives, settings = [(query + 3) % 6], {"temperature": 0.2, "weighted": weighted}
        terms.append(
            oracles_chains.pushed_and_pulled(similarity[query], positives, negatives, noise[query], **settings)
        )
    expected = torch.stack(terms).mean()
    check_equal(value, expected, rows, value=1e-12, rtol=0, atol=1e-12)


def test_samples_of_the_query_s_label_are_no_negatives() -> None:
    loss = NegativeCacheLoss(IMAGES, temperature=0.001, positive_in_denominator=False).double()
    rows = ENCODED[[0, 1, 2, 3]]
    loss(rows, torch.tensor([0, 0, 1, 1]), ids=torch.tensor([0, 1, 2, 3]))
    # like image 1, of the same class, and like image 2, of another
    query = torch.stack([rows[1], rows[1], rows[2], rows[2]])
    value = loss(query, torch.tensor([0, 0, 1, 1]), ids=torch.tensor([4, 5, 6, 7]))
    similarity = oracles.cosine(query, torch.cat([query, rows]))
    other = torch.tensor([[0, 0, 1, 1, 0, 0, 1, 1], [0, 0, 1, 1, 0, 0, 1, 1]]) == torch.tensor([[1], [0]])
    best = [similarity[2 * side][other[side]].max() for side in range(2)]
    torch.testing.assert_close(value, torch.stack(best).mean() - 1)


def embedded_anew(batches: list[list[int]]) -> tuple[NegativeCacheLoss, list[list[int]]]:
    """A loss after batches of opposite rows, its samples embedded anew at twice the length, and those asked for."""
    asked: list[list[int]] = []
    loss = NegativeCacheLoss(IMAGES, out_of_batch="reencode", refresh=0.25, temperature=0.3).double()

    def reencode(ids: Tensor) -> Tensor:
        asked.append(ids.tolist())
        return ENCODED[ids] * 2

    loss.reencode = reencode
    for images in batches:
        loss(-ENCODED[images].repeat(2, 1), torch.tensor(images * 2))
    return loss, asked


def test_samples_by_turns_are_embedded_anew_with_what_was_drawn() -> None:
    loss, asked = embedded_anew([[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11], [0, 1, 2]])
    # the batch is newer than what was embedded beside it, and three images a step have their turn
    torch.testing.assert_close(loss.cache.rows[:3], -ENCODED[:3])
    assert loss.turn == 15 % IMAGES
    assert [0, 1, 2] in asked
    torch.testing.assert_close(loss.cache.rows[3:6], ENCODED[3:6] * 2)


def test_a_turn_passes_over_samples_not_seen_yet() -> None:
    loss, asked = embedded_anew([[6, 7], [6, 7], [6, 7], [10, 11]])
    assert loss.turn == 0
    assert {6, 7} <= {image for images in asked for image in images} <= {6, 7, 10, 11}
    assert loss.cache.seen.nonzero().flatten().tolist() == [6, 7, 10, 11]


def test_a_distance_ranks_the_cache_too() -> None:
    loss = seen([0, 1, 2], distance=LpDistance(power=2), temperature=0.001, positive_in_denominator=False)
    query = ENCODED[[1, 1]]
    value = loss(torch.cat([query, query * -1]), torch.tensor([5, 5, 6, 6]))
    nearest = ((ENCODED[:3] + ENCODED[1]) ** 2).sum(dim=1).min()
    torch.testing.assert_close(value, -nearest / 2)  # image 5 has image 1, at distance 0
