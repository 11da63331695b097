"""Two modalities in two processes: value, gradients, parameters' gradients and tables of one with the whole batch."""

import os
from pathlib import Path

import torch
import two_way
from states import same_state
from torch import Tensor, distributed, multiprocessing, nn

from aurank.losses import CLIPLoss, CyCLIPLoss, FastCLIPLoss, ISogCLRLoss, SigLIPLoss

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
    }
    return {name: loss.double() for name, loss in found.items()}


def run(loss: nn.Module, rank: int, world: int) -> list[Tensor]:
    """Values and gradients; the rows' as data-parallel training averages them. The shares differ in size."""
    results = []
    for step in range(STEPS):
        given = two_way.batch(step)
        for name, value in given.items():
            first = 2 if name in ("embeddings", "labels", "ids") else 5
            own = slice(None) if world == 1 else slice(first) if rank == 0 else slice(first, None)
            given[name] = value.detach()[own].clone().requires_grad_(value.is_floating_point())
        value = loss(**given)
        leaves = [given["embeddings"], given["ref_emb"], *loss.parameters()]
        # a share without a valid row has no use for a parameter
        rows, texts, *others = torch.autograd.grad(value, leaves, allow_unused=True)
        results += [rows / world, texts / world, value.detach(), *others]
    return results


def work(rank: int, folder: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    found = {name: (run(loss, rank, 2), loss.state_dict()) for name, loss in losses(distributed="auto").items()}
    for name, loss in losses().items():  # not gathered: each its own loss, but one state of all
        run(loss, rank, 2)
        found[f"{name} alone"] = ([], loss.state_dict())
    torch.save(found, Path(folder) / f"{rank}.pt")
    distributed.barrier()
    distributed.destroy_process_group()


def test_two_processes_get_value_gradients_and_state_of_one(tmp_path: Path) -> None:
    multiprocessing.spawn(work, args=(str(tmp_path),), nprocs=2)
    ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    for name, loss in losses().items():
        expected = run(loss, 0, 1)
        each = 3 + len(list(loss.parameters()))
        for place, wanted in enumerate(expected):
            one, other = (rank[name][0][place] for rank in ranks)
            if place % each >= 2:
                assert one.equal(other), name
            found = one if place % each >= 2 else torch.cat([one, other])
            torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-10, msg=lambda text, name=name: name + text)
        torch.testing.assert_close(
            ranks[0][name][1], loss.state_dict(), rtol=1e-8, atol=1e-10, msg=lambda text, name=name: name + text
        )
        for kind in (name, f"{name} alone"):
            assert same_state(ranks[0][kind][1], ranks[1][kind][1]), kind
