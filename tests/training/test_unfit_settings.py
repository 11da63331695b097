"""What does not go together is a mistake that is told by its key, before any training; what has no effect is said."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from testing.galleries import head_config
from testing.runs import pairs_config, tiny_config, write_table

import aurank
from aurank.config import ConfigError
from aurank.errors import UserError
from aurank.training import read_config, rehearse
from aurank.training.build import build_sampler, build_splits
from aurank.training.trainer import Trainer

LOSSES: list[tuple[Any, str]] = [
    ([{"name": "soprc"}, {"name": "sprc"}], r"loss\[1\].name: got 'sprc'"),
    ([{"name": "soprc"}, {"name": "soprc"}], r"loss\[1\].name: got 'soprc'"),
    ([{"name": "soprc", "weight": 0}], r"loss\[0\].weight: got 0"),
    ([{"name": "soprc", "wieght": 1}], r"loss\[0\].wieght"),
    ([{"name": "soprc", "params": {"tau": 1.0}}], r"loss\[0\].params.tau"),
    ([{"name": "cosface", "params": {"num_classes": 3}}], r"loss\[0\].params.num_classes"),
    ([{"name": "soprc", "miner": {"name": "hardest"}}], r"loss\[0\].miner.name: got 'hardest'"),
    (["soprc"], r"loss\[0\]: got 'soprc'"),
    ("soprc", "loss: got 'soprc'"),
    ([{"name": "soprc", "matryoshka": [8, 4]}], r"loss\[0\].matryoshka"),
    ([{"name": "soprc", "matryoshka": [4, 64]}], r"loss\[0\].matryoshka: got 64"),
]
HEADS: list[tuple[dict[str, Any], str]] = [
    ({"model": {"backbone": "resnet18"}}, "model.backbone: got 'resnet18'"),
    ({"data": {"views": 2}}, "data.views: got 2"),
    ({"data": {"train_transform": {"name": "simclr"}}}, "data.train_transform"),
    ({"data": {"image_size": 64}}, "data.image_size: got 64"),
    ({"data": {"train_labels": "image"}}, "data.train_labels: got 'image'"),
    ({"model": {"pooling": "gem"}}, "model.pooling: got 'gem'"),
    ({"model": {"discard_head": True}}, "model.discard_head"),
    ({"data": {"name": "digits", "params": {}}, "model": {"backbone": "none"}}, "got 'none'"),
]
TEXTS: list[tuple[dict[str, Any], str]] = [
    ({"data": {"views": 2}}, "data.views: got 2"),
    ({"data": {"train_labels": "image", "views": 2}}, "data.train_labels: got 'image'"),
    ({"memory": {"size": 100}}, "memory"),
    ({"model": {"discard_head": True}}, "model.discard_head"),
    ({"loss": {"params": {"two_way": False}}}, "loss.params.two_way"),
    ({"loss": {"params": {"two_way": True}}, "model": {"text": None}}, "loss.params.two_way"),
    ({"loss": {"name": "soprc"}}, "loss.name: got 'soprc'"),
]


@pytest.mark.parametrize(
    ("config", "key"),
    [
        *(({**tiny_config(), "loss": loss}, key) for loss, key in LOSSES),
        *((head_config(Path("rows.npz"), **sections), key) for sections, key in HEADS),
        *(
            ({**pairs_config(Path(), **sections), "loss": {"name": "clip", **sections.get("loss", {})}}, key)
            for sections, key in TEXTS
        ),
    ],
)
def test_a_mistake_in_a_configuration_is_told_by_its_key(config, key):
    with pytest.raises(ConfigError, match=key):
        read_config(config)


@pytest.mark.parametrize(
    ("sections", "name"),
    [
        ({"data": {"validation_fraction": 0}, "train": {"early_stopping": 1}}, "early_stopping=1 needs a validation"),
        ({"model": {"text": {}}, "sampler": {"name": "shuffled", "params": {}}}, "digits has no texts"),
        ({"optim": {"name": "sgd", "params": {"momentum": 0.0}}}, "optim.params"),
    ],
)
def test_a_run_that_cannot_begin_is_told_by_the_setting(tmp_path, sections, name):
    with pytest.raises(UserError, match=name):
        aurank.train(tiny_config("clip", **sections), tmp_path / "out")


@pytest.mark.parametrize(
    ("sections", "name"),
    [
        ({"model": {"text": {}}, "train": {"micro_batch": 4}}, "train.micro_batch=4 with model.text"),
        ({"train": {"trackers": ["wandb"]}}, "train.trackers: pip install wandb"),
    ],
)
def test_what_a_run_cannot_be_combined_with_is_named(monkeypatch, sections, name):
    for variable, value in {"RANK": "0", "MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr("aurank.training.trainer.get_available_trackers", list)
    config = read_config(tiny_config("sogclr", sampler={"name": "shuffled", "params": {}}, **sections))
    with pytest.raises(UserError, match=name):
        Trainer(config, build_splits(read_config(tiny_config())))


@pytest.mark.slow
def test_the_cut_texts_of_pairs_are_counted(tmp_path):
    write_table(tmp_path)
    text = {"layers": 1, "width": 16, "heads": 2, "length": 6, "vocabulary": 259}
    config = pairs_config(tmp_path, model={"text": text}, train={"micro_batch": 4}, optim={"temperature_lr": 0.1})
    rehearsal = rehearse(read_config(config))
    assert "40 pairs" in str(rehearsal)
    said = "40 of 40 training texts have more than model.text.length=6 tokens and lose their ends"
    assert rehearsal.notices[0] == said
    assert rehearsal.memory["activations"] > 0


def test_an_epoch_without_batches_is_told_before_training():
    config = read_config(tiny_config(sampler={"name": "pk", "batch": 58, "params": {"per_class": 2}}))
    train = build_splits(config).train
    labels = np.arange(len(train)).clip(20) - 20  # one class of 21 images, and others of one
    rows = np.flatnonzero(labels < 4)
    few = train.select(rows)
    huge = dataclasses.replace(few, labels=labels[rows], classes=tuple("abcd"), class_ids=None, texts=None)
    build_sampler(config, huge, rank=0, world_size=1, neighbours=lambda count: None)
    remedy = "start fewer processes, or raise sampler.params.per_class or sampler.batch"
    with pytest.raises(UserError, match=f"no batch of epoch 1 has 2 rows for each of 2 processes, .*; {remedy}"):
        build_sampler(config, huge, rank=0, world_size=2, neighbours=lambda count: None)
