import oracles
import pytest
import torch
from oracles import chains as oracles_chains
from oracles.chains import BATCHES, DIM, ENCODED, IMAGES, batch
from pytorch_metric_learning.distances import LpDistance
from testing.equal import check_equal
from torch import Tensor

from aurank.losses import EMC2Loss


def by_the_loop(
    loss: EMC2Loss, embeddings: Tensor, labels: list[int], *, number: int, other: Tensor | None = None
) -> tuple[Tensor, dict[int, int], dict[int, Tensor], int]:
    """The loss of a batch by a loop from the states that the loss has, and the states after it, by id.

    other: what each sample's state is embedded as, outside of the batch. Last come the kept steps spent there.
    """
    similarity = oracles.cosine(embeddings)
    order, exponentials = oracles_chains.draws(0, *similarity.shape, batch=number)
    values, states, kept, stayed = [], {}, {}, 0
    for query, label in enumerate(labels):
        negatives = [column for column in range(len(labels)) if labels[column] != label]
        positive = next(column for column in range(len(labels)) if labels[column] == label and column != query)
        state, start, outside = int(loss.states[label]), -torch.inf, similarity.new_zeros(())
        inside = next((column for column in negatives if labels[column] == state), None)
        if inside is not None:
            start = float(similarity[query, inside].detach())
        elif state >= 0 and other is not None:
            outside = torch.cosine_similarity(embeddings[query], other[label], dim=0)
            start = float(outside.detach())
        proposed = oracles_chains.once_each(order, negatives, labels)
        skipped = int(0.5 * len(proposed))
        spent, last = oracles_chains.walk(
            similarity[query, order].tolist(),
            [column in proposed for column in order],
            exponentials[query].tolist(),
            temperature=0.02,
            burn_in=skipped,
            start=start,
        )
        columns = [inside, *order]
        stayed += spent[0] if inside is None else 0
        total = spent[0] * (outside if inside is None else similarity[query, inside])
        total = total + sum(spent[place] * similarity[query, column] for place, column in enumerate(order, start=1))
        values.append(total / (len(proposed) - skipped) - similarity[query, positive])
        if columns[last] is None:
            states[label] = state
            kept.pop(label, None)
        else:
            states[label], kept[label] = labels[columns[last]], embeddings[columns[last]].detach()
    return torch.stack(values).mean(), states, kept, stayed


@pytest.mark.parametrize("out_of_batch", ["stored", "restart", "reencode"])
def test_value_gradient_and_states_equal_the_loop_over_several_batches(out_of_batch: str) -> None:
    loss = EMC2Loss(IMAGES, temperature=0.02, out_of_batch=out_of_batch).double()
    asked: list[int] = []

    def reencode(ids: Tensor) -> Tensor:
        asked.extend(ids.tolist())
        return ENCODED[0, ids]

    loss.reencode = reencode
    stored, total = torch.zeros(IMAGES, DIM, dtype=torch.float64), 0
    for number, images in enumerate(BATCHES):
        given = batch(images, seed=number)
        other = {"stored": stored, "restart": None, "reencode": ENCODED[0, loss.states.clamp(min=0)]}[out_of_batch]
        expected, states, kept, stayed = by_the_loop(
            loss, given["embeddings"], given["labels"].tolist(), number=number, other=other
        )
        total += stayed
        value = loss(**given)
        check_equal(value, expected, given["embeddings"], value=1e-12, rtol=0, atol=1e-12)
        for image in images:
            assert loss.states[image] == states[image]
            if image in kept and out_of_batch == "stored":
                stored[image] = kept[image]
                torch.testing.assert_close(loss.chains.table.rows[image], kept[image], rtol=0, atol=0)
    assert (total > 0) == (out_of_batch != "restart")  # else states outside of a batch were never tried
    assert bool(asked) == (out_of_batch == "reencode")


def test_states_are_rows_of_the_data_set_that_ids_name() -> None:
    loss = EMC2Loss(100)
    labels, ids = torch.tensor([0, 0, 1, 1, 2, 2]), torch.tensor([90, 41, 12, 73, 64, 55])
    loss(torch.randn(6, DIM, generator=torch.Generator().manual_seed(0)), labels, ids=ids)
    for row, label in zip(ids.tolist(), labels.tolist(), strict=True):
        assert int(loss.states[row]) in ids[labels != label].tolist()
    assert (loss.states >= 0).sum() == 6


def test_references_without_ids_leave_states_without_a_name_that_are_scored_by_their_embedding() -> None:
    loss = EMC2Loss(4, temperature=0.005, burn_in=0).double()
    query = torch.eye(2, DIM, dtype=torch.float64)
    references = torch.stack([query[0], query[1], query[0] * 0.9 + query[1] * 0.1, query[1]])
    given = {"ref_emb": references, "ref_labels": torch.tensor([0, 1, 1, 2])}
    loss(query, torch.tensor([0, 1]), **given)
    assert loss.states.tolist() == [-1] * 4
    assert loss.chains.table.seen.tolist() == [True, True, False, False]
    easy = {"ref_emb": torch.stack([query[0], -query[0]]), "ref_labels": torch.tensor([0, 1])}
    value = loss(query[:1], torch.tensor([0]), **easy)  # nothing better is proposed, so it stays
    torch.testing.assert_close(value, query[0] @ references[2] / references[2].norm() - 1)


def official_by_the_loop(embeddings: Tensor, labels: list[int], *, number: int, scores: dict[int, float]) -> Tensor:
    """The authors' estimator of one batch; `scores`, of the states, are carried on."""
    similarity = oracles.cosine(embeddings)
    _, exponentials = oracles_chains.draws(0, *similarity.shape, batch=number)
    values, after = [], {}
    for query, label in enumerate(labels):
        row, negatives = similarity[query], [column for column, other in enumerate(labels) if other != label]
        positive = next(column for column, other in enumerate(labels) if other == label and column != query)
        burn_in = int(0.5 * len(negatives))
        current, state, total = scores.get(label, -torch.inf), None, row.new_zeros(())
        for column in range(len(labels)):
            if column not in negatives:
                continue
            if float(row[column].detach()) + 0.07 * float(exponentials[query, column]) > current:
                current, state = float(row[column].detach()), column
            if column > burn_in and state is not None:
                total = total + row[state]
        values.append((total / (len(negatives) - burn_in) - row[positive]) / 0.07)
        after[label] = current
    scores.update(after)
    return torch.stack(values).mean()


def test_official_is_the_authors_estimator() -> None:
    loss, scores = EMC2Loss(IMAGES, official=True).double(), {}
    for number, images in enumerate(BATCHES):
        given = batch(images, seed=number)
        expected = official_by_the_loop(given["embeddings"], given["labels"].tolist(), number=number, scores=scores)
        check_equal(loss(**given), expected, given["embeddings"], value=1e-11, rtol=0, atol=1e-11)


@pytest.mark.parametrize("out_of_batch", ["stored", "restart"])
def test_a_state_that_a_miner_took_away_is_outside_of_the_batch(out_of_batch: str) -> None:
    loss = EMC2Loss(4, temperature=1e-3, burn_in=0, out_of_batch=out_of_batch).double()
    axes = torch.eye(3, dtype=torch.float64)
    loss(axes[[0, 1, 0, 1]], torch.tensor([0, 1, 0, 1]))
    assert loss.states[0] == 1
    # image 1 is now where image 0 is, but image 0 may only meet image 2, which is opposite
    rows, labels = torch.stack([axes[0], axes[0], -axes[0]]).repeat(2, 1), torch.tensor([0, 1, 2, 0, 1, 2])
    mined = tuple(torch.tensor(part) for part in ([0, 3], [3, 0], [0, 3], [2, 5]))
    value = loss(rows, labels, mined)
    stays = out_of_batch == "stored"  # as image 1 was, at a right angle, which is better
    torch.testing.assert_close(value, torch.tensor(0.0 if stays else -1.0, dtype=torch.float64) - 1)
    assert loss.states[0] == (1 if stays else 2)


def test_a_distance_scores_the_stored_state_too() -> None:
    loss = EMC2Loss(4, distance=LpDistance(power=2), temperature=0.01, burn_in=0).double()
    rows = torch.tensor([[1.0, 0], [0.8, 0.6], [1.0, 0], [0.8, 0.6]], dtype=torch.float64)
    loss(rows, torch.tensor([0, 1, 0, 1]))
    far = torch.tensor([[1.0, 0], [-1, 0], [1.0, 0], [-1, 0]], dtype=torch.float64)
    value = loss(far, torch.tensor([0, 2, 0, 2]), ids=torch.tensor([0, 2, 0, 2]))
    # image 0 stays at the stored (0.8, 0.6), 0.4 away by squares; image 2 can only go to image 0, 4 away
    torch.testing.assert_close(value, torch.tensor((-0.4 - 4.0) / 2, dtype=torch.float64))


def test_a_state_embedded_anew_with_a_graph_gets_its_gradient() -> None:
    weights = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    loss = EMC2Loss(8, temperature=0.01, burn_in=0.0, out_of_batch="reencode").double()
    loss.reencode = lambda ids: weights[ids]
    labels = torch.tensor([0, 1, 0, 1])
    loss(weights, labels, ids=torch.arange(4))
    state = int(loss.states[0])
    query = weights[0].detach()
    opposite = torch.stack([query, -query, -query, -query])  # so far away that no chain moves
    value = loss(opposite, torch.tensor([0, 2, 0, 2]), ids=torch.tensor([0, 5, 6, 7]))
    (gradient,) = torch.autograd.grad(value, weights)
    assert gradient[state].any()
    assert not gradient[0].any()
