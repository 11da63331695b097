"""EMC² and NeuCLIP in two processes, started once: one state in both, and the values of one with the whole batch."""

import os
from pathlib import Path
from typing import Any

import oracles
import pytest
import torch
from oracles import neuclip as oracles_neuclip
from oracles.chains import BATCHES, ENCODED, IMAGES, batch
from oracles.neuclip import LABELS, TEXT_LABELS, call, make
from oracles.neuclip import two_sides as sides
from testing.stateful import same_state
from torch import Tensor, distributed, multiprocessing
from torch.nn.functional import normalize

from aurank.losses import EMC2Loss
from aurank.losses.global_contrastive._kept_rows import TaggedTable

pytestmark = pytest.mark.slow


def run_emc2(rank: int, world: int) -> tuple[list[Tensor], dict[str, object]]:
    """Each process embeds its share of the states anew; and without gathering, all keep the states of all."""
    table = TaggedTable(2)  # of ids that float32 would round
    table.put(torch.tensor([rank]), torch.tensor([2**24 + 1 + 2 * rank]), torch.ones(1, 1), is_shared=False)
    loss = EMC2Loss(IMAGES, out_of_batch="reencode", distributed=True).double()
    loss.reencode = lambda ids: ENCODED[0, ids]
    single = EMC2Loss(IMAGES).double()
    values = []
    for number, images in enumerate(BATCHES):
        given = batch([*images, 9], seed=number)
        views = torch.arange(8).view(2, 4).T.flatten()  # side by side, so that each process has both
        rows, labels = (part.detach()[views].tensor_split(world)[rank] for part in given.values())
        values.append(loss(rows, labels).detach())
        labels = labels if number < 4 or rank == 0 else torch.zeros_like(labels)  # no negative there
        single(rows, labels, ids=torch.arange(len(rows)) + 6 * rank)
    return values, {"shared": loss.state_dict(), "single": single.state_dict(), "tags": table.tags}


def two_parts(rank: int, step: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    images, texts = sides(step)
    rows, columns = (slice(0, 4), slice(0, 6)) if rank == 0 else (slice(4, None), slice(6, None))
    mine = (images[rows], texts[columns])
    return *(each.detach().clone().requires_grad_() for each in mine), LABELS[rows], TEXT_LABELS[columns]


def run_neuclip(rank: int) -> tuple[list[Tensor], list[list[Tensor]], list[dict[str, Tensor]], Tensor]:
    """Return values and gradients gathered, the states of three losses, and the value of the last."""
    together, apart = make(restart_every=2, distributed=True), make(restart_every=2)
    values, gradients = [], []
    for step in range(3):
        images, texts, labels, other = two_parts(rank, step)
        values.append(call(together, images, texts, labels, other))
        leaves = [together.temperature.parameter, images, texts]
        gradients.append([each / 2 for each in torch.autograd.grad(values[-1], leaves)])
        call(apart, images, texts, labels, other)
    itself = make(two_way=False, inner_steps=0, learn_temperature=False, rho=6.5)
    images = sides(0)[0].detach()
    rows, labels = (images[:4], LABELS[[1, 1, 2, 4]]) if rank == 0 else (images[4:], LABELS[[2, 2, 4]])
    alone = itself(rows, labels)
    states = [each.state_dict() for each in (together, apart, itself)]
    return [value.detach() for value in values], gradients, states, alone


def work(rank: int, folder: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    torch.save({"emc2": run_emc2(rank, 2), "neuclip": run_neuclip(rank)}, Path(folder) / f"{rank}.pt")
    distributed.barrier()
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of the two processes found."""
    folder = tmp_path_factory.mktemp("processes")
    multiprocessing.spawn(work, args=(str(folder),), nprocs=2)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


def test_processes_keep_one_state_of_emc2_also_where_states_are_embedded_anew(found: list[dict[str, Any]]) -> None:
    ranks = [rank["emc2"] for rank in found]
    values, states = run_emc2(0, 1)
    assert all(same_state(rank[1], ranks[0][1]) for rank in ranks)
    assert ranks[0][1]["tags"].tolist() == [2**24 + 1, 2**24 + 3]
    for rank in ranks:
        torch.testing.assert_close(rank[0], values, rtol=0, atol=1e-12)
    torch.testing.assert_close(ranks[0][1]["shared"], states["shared"], rtol=0, atol=1e-12)


def test_processes_learn_one_network_from_all_batches_gathered_or_not(found: list[dict[str, Any]]) -> None:
    first, second = (rank["neuclip"] for rank in found)
    single = make(restart_every=2)
    for step in range(3):
        images, texts = sides(step)
        value = call(single, images, texts)
        expected = torch.autograd.grad(value, [single.temperature.parameter, images, texts])
        assert first[0][step] == second[0][step]
        torch.testing.assert_close(first[0][step], value.detach(), rtol=0, atol=1e-10)
        mine, theirs = first[1][step], second[1][step]
        torch.testing.assert_close(mine[0] * 2, expected[0], rtol=1e-8, atol=1e-10)
        for place in (1, 2):
            torch.testing.assert_close(torch.cat([mine[place], theirs[place]]), expected[place], rtol=1e-8, atol=1e-10)
    for one, other in zip(first[2], second[2], strict=True):
        assert same_state(one, other)
    torch.testing.assert_close(first[2][0], single.state_dict(), rtol=0, atol=1e-9)
    # each its own loss, but against the rows of both, itself left out
    images = sides(0)[0].detach()
    assert first[2][2]["networks.0.weight_0"][:7].equal(normalize(images))
    similarity = oracles.cosine(images)
    for value, rows, labels in ((first[3], range(4), [0, 0, 1, 2]), (second[3], range(4, 7), [1, 1, 2])):
        terms = []
        for row, label in zip(rows, labels, strict=True):
            positives = [other for other in rows if other != row and labels[other - rows[0]] == label]
            negatives = [other for other in rows if labels[other - rows[0]] != label]
            if not positives:
                continue
            pull = sum(similarity[row, each] for each in positives) / len(positives)
            prototypes = [each for each in range(7) if each != row]
            mean, g = (
                oracles_neuclip.normalizer(similarity[row], each, pull, temperature=0.125, epsilon=1e-8)
                for each in (prototypes, negatives)
            )
            terms.append(oracles_neuclip.term(g, mean.log(), temperature=0.125, rho=0.0))
        torch.testing.assert_close(value, torch.stack(terms).mean(), rtol=0, atol=1e-11)
