"""What the processes of a run share of measuring, seen from one of them: no other is there."""

from typing import Any

import numpy as np
import pytest
import torch
from testing.tiny import tiny_config
from torch import nn

from aurank.data import READERS, ImageDataset, Manifest
from aurank.distributed import ProcessGroup
from aurank.embedding.embed import Embedded
from aurank.embedding.from_config import build_dataset, with_preprocessing
from aurank.embedding.image_text_pairs import EmbeddedPairs
from aurank.errors import AurankError
from aurank.evaluation.two_way import TwoWayReport
from aurank.training import read_config, tasks
from aurank.training.run import _read_once
from aurank.training.tasks import PairTask, SplitReports, Task

LABELS, ROWS = np.arange(12) // 3, np.random.default_rng(0).standard_normal((12, 8)).astype(np.float32)
DATA, TRAIN = object.__new__(ImageDataset), object.__new__(Manifest)  # nothing is read of them


def one_of_two(rank: int) -> ProcessGroup:
    """Return the group as that process has it; what it sends would need torch.distributed, which is not there."""
    group = ProcessGroup(False)
    group.rank, group.size = rank, 2
    return group


def task_of(rank: int, **sections: Any) -> Task:
    task = object.__new__(Task)
    task.config, task.model = read_config(tiny_config("smooth_ap") | sections), nn.Identity()
    task.group = one_of_two(rank)
    return task


def embedded(rows: np.ndarray) -> Embedded:
    every = np.ones(len(rows), dtype=np.bool_)
    return Embedded(rows, LABELS, np.arange(12), np.arange(12).astype(str), every, every, groups=np.full(12, -1))


@pytest.mark.parametrize("rank", [0, 1])
def test_nobody_waits_for_a_test_that_the_first_measures_alone(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "embed", lambda *_, **__: embedded(ROWS))
    matryoshka = task_of(rank, loss={"name": "smooth_ap", "matryoshka": [2, 8]})
    found = matryoshka.test(DATA, TRAIN)
    assert (found.report is not None) == (rank == 0)
    pairs = object.__new__(PairTask)
    pairs.group, pairs.model = one_of_two(rank), nn.Identity()
    monkeypatch.setattr(PairTask, "_embed", lambda *_: object.__new__(EmbeddedPairs))
    monkeypatch.setattr(PairTask, "_test", lambda *_: SplitReports(two_way={"all": object.__new__(TwoWayReport)}))
    assert bool(pairs.test(DATA, TRAIN).two_way) == (rank == 0)


def test_a_collapse_is_told_by_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def gather(found: list[Any], value: Any) -> None:
        found[:] = [value] * len(found)  # it is the same everywhere

    monkeypatch.setattr(torch.distributed, "all_gather_object", gather)
    monkeypatch.setattr(tasks, "embed", lambda *_, **__: embedded(ROWS * 0))
    with pytest.raises(AurankError, match="the network has collapsed: of 12 embeddings 12 are all zeros") as error:
        task_of(1).measure(nn.Identity(), DATA)
    assert error.value.told_by == 0


def test_no_process_decodes_the_whole_test_split_ahead() -> None:
    config = with_preprocessing(read_config(tiny_config("smooth_ap"))).data
    images = READERS["digits"](None).split("test").select(np.arange(8))
    alone, shared = (_read_once(config, group) for group in (ProcessGroup(False), one_of_two(1)))
    assert build_dataset(alone, images, train=False).cached_bytes > 0
    assert build_dataset(shared, images, train=False).cached_bytes == 0
