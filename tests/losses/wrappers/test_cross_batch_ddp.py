"""Inside of DistributedDataParallel, which hands out the first process's buffers, a memory's rows stay together."""

from pathlib import Path

import pytest
import torch
from testing.processes import run_group
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from aurank.losses import CrossBatchMemory, Pairs, SmoothAPLoss


class Watching(SmoothAPLoss):
    """Keeps what it saw: references, their labels, the same on the host, and their ids."""

    def per_query(self, pairs: Pairs) -> Tensor:
        columns = (pairs.reference_labels, pairs.host_reference_labels, pairs.reference_ids)
        self.seen = [pairs.reference.detach(), *columns]
        return super().per_query(pairs)


class Whole(nn.Module):
    """An encoder that passes a row's label and id on, and a memory."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(3, 3, bias=False)
        nn.init.eye_(self.encoder.weight)
        self.loss = CrossBatchMemory(Watching(), 3, 40)

    def forward(self, rows: Tensor, labels: Tensor, ids: Tensor) -> Tensor:
        value: Tensor = self.loss(self.encoder(rows), labels, ids=ids)
        return value


def work(rank: int) -> list[list[Tensor]]:
    model = DistributedDataParallel(Whole())
    random = torch.Generator().manual_seed(rank)
    found = []
    for step in range(6):
        number = 8 + rank * step  # they stand at different places by themselves
        labels = torch.randint(4, (number,), generator=random)
        ids = torch.randperm(1000, generator=random)[:number]
        rows = torch.stack([labels.float(), ids.float(), torch.ones(number)], dim=1)
        model(rows, labels, ids).backward()
        memory = model.module.loss
        filled = int(memory.counters[1])
        own = (memory.embedding_memory, memory.label_memory, memory.label_memory, memory.id_memory)
        found += [memory.loss.seen, [value[:filled].clone() for value in own]]
    return found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:no query of the batch")
def test_every_row_keeps_its_label_and_id_under_ddp(tmp_path: Path) -> None:
    first, second = run_group(work, 2, tmp_path)
    for place, (rows, labels, host_labels, ids) in enumerate([*first, *second]):
        assert rows[:, 0].long().equal(labels), place
        assert rows[:, 0].long().equal(host_labels), place
        assert rows[:, 1].long().equal(ids), place
    # both saw the first process's newest rows beside their own batch
    assert first[-2][0][8:][-27:].equal(second[-2][0][13:])
