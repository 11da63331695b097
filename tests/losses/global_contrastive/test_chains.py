"""The chains of many queries at once are those of a loop over proposals, and rest at the softmax."""

import math

import pytest
import torch
from oracles import chains as oracles_chains
from torch import Tensor

from aurank.losses.global_contrastive import emc2
from aurank.losses.global_contrastive._kept_rows import TaggedTable
from aurank.losses.global_contrastive.emc2 import occupancy


def given(number: int, *, ties: bool, chains: int = 12) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(number)
    scores = torch.randn(chains, number, generator=random, dtype=torch.float64)
    start = torch.randn(chains, generator=random, dtype=torch.float64)
    exponentials = -torch.rand(chains, number, generator=random, dtype=torch.float64).log()
    wanted = torch.rand(chains, number, generator=random) < 0.7
    start[:3] = -torch.inf
    wanted[2:4] = False  # no proposal at all, without a start and with one
    wanted[4] = True
    if ties:  # the same values again and again, proposals as good as the state and no better
        scores, start = (scores * 2).round() / 2, (start * 2).round() / 2
        exponentials[:, ::2] = 0
    return scores, start, exponentials, wanted


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("temperature", [0.01, 0.5])
@pytest.mark.parametrize("number", [1, 2, 3, 15, 16, 17, 100])
def test_chains_equal_the_loop_over_proposals(number: int, temperature: float, ties: bool) -> None:
    scores, start, exponentials, wanted = given(number, ties=ties)
    burn_in = wanted.sum(dim=1) // 3
    stayed, ended = occupancy(scores, start, exponentials, wanted, burn_in, temperature=temperature)
    for chain in range(len(scores)):
        spent, last = oracles_chains.walk(
            scores[chain].tolist(),
            wanted[chain].tolist(),
            exponentials[chain].tolist(),
            temperature=temperature,
            burn_in=int(burn_in[chain]),
            start=float(start[chain]),
        )
        assert stayed[chain].tolist() == spent
        assert ended[chain] == last
        assert sum(spent) == wanted[chain].sum() - burn_in[chain]


@pytest.mark.parametrize("temperature", [0.1, 1.0])
def test_one_uniform_proposal_leaves_the_softmax_as_it_is(temperature: float) -> None:
    scores = torch.tensor([0.9, 0.3, -0.2, 0.5, 0.45], dtype=torch.float64)
    states = len(scores)
    levels = 50_000  # an acceptance is integrated over the uniform number that decides it
    exponentials = -((torch.arange(levels, dtype=torch.float64) + 0.5) / levels).log()[:, None]
    transition = torch.zeros(states, states, dtype=torch.float64)
    for here in range(states):
        for proposed in range(states):
            stayed, _ = occupancy(
                scores[proposed].expand(levels, 1),
                scores[here].expand(levels),
                exponentials,
                torch.ones(levels, 1, dtype=torch.bool),
                torch.zeros(levels, dtype=torch.int64),
                temperature=temperature,
            )
            accepted = float(stayed[:, 1].mean())
            transition[here, proposed] += accepted / states
            transition[here, here] += (1 - accepted) / states
    values, vectors = torch.linalg.eig(transition.T)
    rest = vectors[:, values.real.argmax()].real
    assert float(values.real.max()) == pytest.approx(1, abs=1e-12)
    torch.testing.assert_close(rest / rest.sum(), (scores / temperature).softmax(dim=0), rtol=0, atol=1e-4)
    balance = (scores / temperature).softmax(dim=0)[:, None] * transition
    torch.testing.assert_close(balance, balance.T, rtol=0, atol=4e-5)


def test_chunks_of_chains_are_bounded_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    spied = emc2.occupancy
    monkeypatch.setattr(
        emc2, "occupancy", lambda scores, *rest, **how: (sizes.append(len(scores)), spied(scores, *rest, **how))[1]
    )
    monkeypatch.setitem(emc2.TABLE_BYTES, "cpu", 3 * 4 * (20 + 1) * (20).bit_length())  # three chains of 20 proposals
    loss = emc2.EMC2Loss(20)
    loss(torch.randn(20, 4), torch.arange(10).repeat(2), ids=torch.arange(20))
    assert sizes == [3] * 6 + [2]


def put(table: TaggedTable, index: list[int], tags: list[int], values: list[float]) -> bool:
    return table.put(torch.tensor(index), torch.tensor(tags), torch.tensor(values)[:, None], is_shared=True)


def test_tags_that_float32_would_round_stay_as_they_are_without_other_processes_too() -> None:
    table, many = TaggedTable(2), torch.tensor([2**24 + 1, 2**53 + 1])
    assert table.put(torch.tensor([1, 0]), many, torch.tensor([[0.5], [2.0]]), is_shared=False)
    assert table.tags.tolist() == many.flip(0).tolist()
    assert table.rows.tolist() == [[2.0], [0.5]]


def test_a_row_holds_its_last_entry_and_ids_that_float32_would_round() -> None:
    table = TaggedTable(4)
    many = 2**24 + 1
    assert put(table, [1, 3, 1], [7, many, 9], [0.5, 2.0, 3.0])
    assert table.tags.tolist() == [-1, 9, -1, many]
    assert table.rows.tolist() == [[0], [3], [0], [2]]
    assert table.seen.tolist() == [False, True, False, True]
    put(table, [1, 3], [5, 6], [math.nan, math.inf])
    assert table.tags.tolist() == [-1, 9, -1, many]
    assert not table.put(
        torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64), torch.empty(0, 1), is_shared=True
    )
