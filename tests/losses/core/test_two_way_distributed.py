"""Two modalities in several processes: value, gradients, parameters' gradients and tables of one with all rows."""

import os
from pathlib import Path

import pytest
import torch
from testing import two_way_batches as two_way
from testing.states import same_state
from torch import Tensor, distributed, multiprocessing, nn

from aurank.losses import (
    CLIPLoss,
    CyCLIPLoss,
    FastCLIPLoss,
    InfoNCELoss,
    ISogCLRLoss,
    NeuCLIPLoss,
    SigLIPLoss,
    SogCLRLoss,
)

STEPS = 3


def losses(**given: object) -> dict[str, nn.Module]:
    quiet = {"gamma_schedule": "constant", **given}
    found = {
        "clip": CLIPLoss(**given),
        "siglip": SigLIPLoss(**given),
        "cyclip": CyCLIPLoss(**given),
        "isogclr": ISogCLRLoss(20, two_way=True, **given),
        "isogclr adam": ISogCLRLoss(20, two_way=True, temperature_update="adam", **given),
        "isogclr global": ISogCLRLoss(20, two_way=True, individual=False, **given),
        "fastclip v0": FastCLIPLoss(20, "v0", **quiet),
        "fastclip v2": FastCLIPLoss(20, "v2", rho=0.3, **quiet),
        "fastclip v3": FastCLIPLoss(20, rho=0.3, **quiet),
        "neuclip": NeuCLIPLoss(5, num_prototypes=8, inner_lr=0.1, restart_every=2, **given),
        "info_nce": InfoNCELoss(two_way=True, **given),
        "sogclr": SogCLRLoss(20, two_way=True, **given),
        "sogclr on the host": SogCLRLoss(20, two_way=True, state_on="host", **given),
        "isogclr on the host": ISogCLRLoss(20, two_way=True, state_on="host", **given),
    }
    return {name: loss.double() for name, loss in found.items()}


def run(loss: nn.Module, rank: int, world: int) -> list[Tensor]:
    """Values and gradients; the rows' as data-parallel training averages them. The shares differ in size and sides."""
    results = []
    for step in range(STEPS):
        given = two_way.batch(step)
        for name, value in given.items():
            least = 1 if name in ("embeddings", "labels", "ids") else 2  # rows of all processes but the last
            own = slice(rank * least, None if rank == world - 1 else (rank + 1) * least)
            given[name] = value.detach()[own].clone().requires_grad_(value.is_floating_point())
        value = loss(**given)
        leaves = [given["embeddings"], given["ref_emb"], *loss.parameters()]
        # a share without a valid row has no use for a parameter
        rows, texts, *others = torch.autograd.grad(value, leaves, allow_unused=True)
        results += [rows / world, texts / world, value.detach(), *others]
    return results


def work(rank: int, world: int, folder: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    found = {name: (run(loss, rank, world), loss.state_dict()) for name, loss in losses(distributed="auto").items()}
    for name, loss in losses().items():  # not gathered: each its own loss, but one state of all
        run(loss, rank, world)
        found[f"{name} alone"] = ([], loss.state_dict())
    torch.save(found, Path(folder) / f"{rank}.pt")
    distributed.barrier()
    distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore:no query of the batch")
@pytest.mark.parametrize("world", [2, 4])
def test_processes_get_value_gradients_and_state_of_one(world: int, tmp_path: Path) -> None:
    multiprocessing.spawn(work, args=(world, str(tmp_path)), nprocs=world)
    ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(world)]
    for name, loss in losses().items():
        expected = run(loss, 0, 1)
        each = 3 + len(list(loss.parameters()))
        for place, wanted in enumerate(expected):
            parts = [rank[name][0][place] for rank in ranks]
            if place % each >= 2:
                assert all(part.equal(parts[0]) for part in parts), name
            found = parts[0] if place % each >= 2 else torch.cat(parts)
            torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-10, msg=lambda text, name=name: name + text)
        torch.testing.assert_close(
            ranks[0][name][1], loss.state_dict(), rtol=1e-8, atol=1e-10, msg=lambda text, name=name: name + text
        )
        for kind in (name, f"{name} alone"):
            assert all(same_state(ranks[0][kind][1], rank[kind][1]) for rank in ranks), kind
