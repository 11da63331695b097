"""Two processes over gloo: the state is the same on both, and that of all entries together."""

import os
from pathlib import Path

import torch
from pytorch_metric_learning.utils.distributed import DistributedLossWrapper
from torch import distributed, multiprocessing

from aurank.losses import RowTable, SOPRCLoss


def entries(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Different numbers of entries on the ranks, some rows on both."""
    random = torch.Generator().manual_seed(rank)
    number = 5 + 4 * rank
    return torch.randint(6, (number,), generator=random), torch.randn(number, 3, generator=random)


def batch(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(10 + rank)
    embeddings = torch.randn(8, 4, generator=random, dtype=torch.float64)
    return embeddings, torch.tensor([[0, 0, 1, 1, 1, 2, 2, 0], [1, 1, 2, 2, 3, 3, 1, 4]][rank])


def work(rank: int, folder: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    table = RowTable(6, 3)
    for _ in range(2):
        table.update(*entries(rank), rate=0.3)
    nothing = torch.empty(0, dtype=torch.int64), torch.empty(0, 3)
    table.update(*(nothing if rank else entries(0)), rate=0.3)
    table.update(*nothing, rate=0.3)

    loss = SOPRCLoss([4, 6, 4, 2, 1]).double()
    loss(*batch(rank))
    loss(
        batch(rank)[0], torch.arange(5).repeat(2)[:8] if rank else torch.zeros(8, dtype=torch.int64)
    )  # none valid on 0
    wrapped = SOPRCLoss([4, 6, 4, 2, 1]).double()
    value = DistributedLossWrapper(wrapped)(*batch(rank)) / 2
    torch.save((table.state_dict(), loss.state_dict(), wrapped.state_dict(), value), Path(folder) / f"{rank}.pt")
    distributed.barrier()
    distributed.destroy_process_group()


def test_two_processes_keep_the_same_state_which_is_that_of_all_entries(tmp_path: Path) -> None:
    multiprocessing.spawn(work, args=(str(tmp_path),), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    for one, other in zip(first[:3], second[:3], strict=True):
        assert all(value.equal(other[name]) for name, value in one.items())

    alone = RowTable(6, 3)
    both = [torch.cat(parts) for parts in zip(entries(0), entries(1), strict=True)]
    for index, values in (both, both, entries(0)):
        alone.update(index, values, rate=0.3)
    assert all(value.equal(first[0][name]) for name, value in alone.state_dict().items())

    single = SOPRCLoss([4, 6, 4, 2, 1]).double()
    together = single(*(torch.cat(parts) for parts in zip(batch(0), batch(1), strict=True)))
    torch.testing.assert_close(first[3], together, rtol=0, atol=1e-12)
    torch.testing.assert_close(first[2]["table.rows"], single.v, rtol=0, atol=1e-12)
