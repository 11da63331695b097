"""Super-categories find their way from the data set to the loss and to the sampler."""

import dataclasses

import numpy as np
import pytest
import torch
from testing.tiny import tiny_config
from torch.nn.functional import cross_entropy, normalize

from aurank.data import HierarchicalSampler
from aurank.errors import AurankWarning
from aurank.losses import CrossBatchMemory, HierarchicalAPLoss
from aurank.training import read_config
from aurank.training.build import build_loss, build_sampler, build_splits

SAMPLER = {"name": "hierarchical", "params": {"per_class": 2, "categories": 2}}


def test_loss_and_sampler_get_those_of_the_training_classes() -> None:
    given = tiny_config("hierarchical_ap", sampler=SAMPLER)
    given["loss"]["params"] = {"clustering": 0.1}
    config = read_config(given)
    train = build_splits(config).train
    train = dataclasses.replace(train, super_labels=train.labels // 3)
    loss = build_loss(config, train)
    assert isinstance(loss, HierarchicalAPLoss)
    assert loss.super_labels is not None
    assert loss.super_labels[:, 0].tolist() == [label // 3 for label in range(len(train.classes))]
    assert loss.proxies is not None
    assert loss.proxies.shape == (len(train.classes), 8)
    sampler = build_sampler(config, train, rank=0, world_size=1, neighbours=lambda count: None)
    assert isinstance(sampler, HierarchicalSampler)
    assert all(len(np.unique(train.labels[rows] // 3)) <= 2 for rows in sampler.epoch(0))


def test_a_data_set_without_them_is_said_to_be_of_one_level() -> None:
    config = read_config(tiny_config("hierarchical_ap", memory={"size": 100}))
    with pytest.warns(AurankWarning, match="loss hierarchical_ap: digits has no super-categories, so classes alone"):
        loss = build_loss(config, build_splits(config).train)
    assert isinstance(loss, CrossBatchMemory)


def test_the_clustering_term_needs_none() -> None:
    given = tiny_config("hierarchical_ap")
    given["loss"]["params"] = {"clustering": 0.1}
    config = read_config(given)
    train = build_splits(config).train
    with pytest.warns(AurankWarning, match="digits has no super-categories"):
        loss = build_loss(config, train)
    assert isinstance(loss, HierarchicalAPLoss)
    assert loss.proxies is not None
    assert loss.proxies.shape == (len(train.classes), 8)
    rows, labels = torch.randn(8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(8) // 2
    cosines = normalize(rows, dim=1) @ normalize(loss.proxies, dim=1).T
    clustering = cross_entropy(cosines / 0.05, labels)
    torch.testing.assert_close(loss(rows, labels), 0.9 * HierarchicalAPLoss()(rows, labels) + 0.1 * clustering)
