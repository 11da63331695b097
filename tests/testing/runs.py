"""Configurations of a few steps, and what tests train with them."""

import csv
import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

import aurank
from aurank.data import Manifest
from aurank.data.readers.folders import read_digits
from aurank.embedding.stored.checkpoint import load_checkpoint
from aurank.losses import PairLoss, Pairs
from aurank.training import read_config
from aurank.training.build import build_splits
from aurank.training.trainer import Trainer

STEPS = 8


SUM: list[dict[str, Any]] = [
    {"name": "soprc", "matryoshka": [4, 8]},
    {"name": "proxy_anchor", "weight": 0.1, "lr_multiplier": 100.0, "weight_decay": 0.01},
    {"name": "multi_similarity", "weight": 0.3, "miner": {"name": "multi_similarity"}},
]


def tiny_config(loss: Any = "soprc", **sections: dict[str, Any]) -> dict[str, Any]:
    """A plain configuration; `sections` override single keys, and `loss` is a name or a list of terms such as `SUM`."""
    config: dict[str, Any] = {
        "seed": 3,
        "data": {
            "name": "digits",
            "image_size": 16,
            "channels": 1,
            "validation_fraction": 0.2,
            "train_transform": {"name": "affine", "params": {"fill": 0}},
            "test_transform": {"name": "resize"},
        },
        "sampler": {"name": "pk", "batch": 16, "params": {"per_class": 4}},
        "model": {"backbone": "test_resnet", "pretrained": False, "dim": 8, "params": {"drop_rate": 0.1}},
        "loss": {"name": loss} if isinstance(loss, str) else loss,
        "optim": {"name": "adamw", "lr": 1e-3, "schedule": {"name": "cosine"}, "warmup_steps": 2},
        "train": {"steps": STEPS, "validate_every": 4, "checkpoint_every": 3, "log_every": 1},
        "evaluate": {"recall_at": [1, 10]},
    }
    for name, values in sections.items():
        config[name] = {**config.get(name, {}), **values}
    return config


@cache
def few_digits(root: Path | None = None) -> Manifest:
    """Return 179 images in the split "train" and 181 in "test", of the ten classes."""
    digits = read_digits(root)
    return digits.select(np.arange(0, len(digits), 5))


# A loss of a low temperature, or Adam, would make much of the last digits, in which sums of chunks differ.
EXACT: dict[str, Any] = {
    "model": {"params": {}, "freeze_batch_norm": True},
    "optim": {"name": "sgd", "lr": 0.05, "clip_norm": 0.5, "warmup_steps": 0},
}


def weights(out: Path) -> dict[str, torch.Tensor]:
    encoder: dict[str, torch.Tensor] = load_checkpoint(out / "last.safetensors")["encoder"]
    return encoder


def records(out: Path, split: str) -> list[dict[str, Any]]:
    lines = (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [record for record in map(json.loads, lines) if record["split"] == split]


def write_config(folder: Path, config: dict[str, Any]) -> Path:
    (folder / "config.yaml").write_text(json.dumps(config), encoding="utf-8")
    return folder / "config.yaml"


def train_and_listen(
    config: Any, out: Path, **options: Any
) -> tuple[aurank.TrainResult, dict[str, list[dict[str, Any]]]]:
    """Train; return the result and what the listener heard, by the kind of event."""
    told: dict[str, list[dict[str, Any]]] = {}
    listener = lambda kind, values: told.setdefault(kind, []).append(values)  # noqa: E731
    return aurank.train(config, out, listener=listener, **options), told


def notices_of(config: Any, out: Path, **options: Any) -> list[str]:
    return [values["text"] for values in train_and_listen(config, out, **options)[1].get("notice", [])]


def assert_same_run(
    out: Path, other: Path, *, ignore: tuple[str, ...] = ("workers",), log_every: int = 1, steps: int = STEPS
) -> None:
    log = (out / "metrics.jsonl").read_bytes()
    assert log == (other / "metrics.jsonl").read_bytes()
    logged = [record["step"] for record in map(json.loads, log.splitlines()) if record["split"] == "train"]
    assert logged == list(range(log_every, steps + 1, log_every))
    for name in ("last.safetensors", "best.safetensors"):
        assert_equal(load_checkpoint(out / name), load_checkpoint(other / name), ignore)
    assert (out / "report.json").read_bytes() == (other / "report.json").read_bytes()


def assert_equal(left: object, right: object, ignore: tuple[str, ...], path: str = "") -> None:
    assert type(left) is type(right), path
    if isinstance(left, torch.Tensor):
        assert torch.equal(left, right), path
    elif isinstance(left, dict):
        assert list(left) == list(right), path
        for key in left:
            if key not in ignore:
                assert_equal(left[key], right[key], ignore, f"{path}.{key}")
    elif isinstance(left, list | tuple):
        assert len(left) == len(right), path
        for place, (one, other) in enumerate(zip(left, right, strict=True)):
            assert_equal(one, other, ignore, f"{path}[{place}]")
    else:
        assert left == right, path


class Learnt(PairLoss):
    """Decoupled contrastive loss; it remembers where training stood at each step."""

    def __init__(self, *, temperature: float = 0.5, distributed: bool = False) -> None:
        super().__init__(distributed=distributed)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(temperature)))
        self.progress: list[dict[str, float]] = []

    def set_progress(self, *, step: int, steps: int, epoch: int, epochs: float) -> None:
        self.progress.append({"step": step, "steps": steps, "epoch": epoch, "epochs": epochs})

    def per_query(self, pairs: Pairs) -> torch.Tensor:
        scores = pairs.similarity / self.log_temperature.exp()
        positive = (scores * pairs.positive).sum(1) / pairs.positive.sum(1).clamp(min=1)
        return scores.masked_fill(~pairs.negative, -50.0).logsumexp(1) - positive


COLOURS = {
    "red": (220, 30, 30), "green": (30, 200, 30), "blue": (30, 30, 220), "white": (240, 240, 240),
    "black": (10, 10, 10), "yellow": (220, 220, 30), "pink": (230, 120, 180), "cyan": (30, 210, 210),
}  # fmt: skip
UNSEEN = ("pink", "cyan")
SENTENCES = ("a {} square", "something {}", "{} paint on paper")


def write_table(root: Path, *, labelled: bool = True, captions: int = 1) -> None:
    """16 photos of each colour and `pairs.csv`; two colours are only tested, and of the others one sentence is."""
    random = np.random.default_rng(0)
    rows: list[tuple[str, ...]] = []
    for colour, value in COLOURS.items():
        for number in range(16):
            pixels = np.clip(np.array(value) + random.normal(0, 12, (16, 16, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / f"{colour}{number}.png")
            test = colour in UNSEEN or number >= 10
            for caption in range(captions):
                sentence = SENTENCES[2 if test and number % 2 else (number + caption) % 2].format(colour)
                rows.append((f"{colour}{number}.png", sentence, colour, "test" if test else "train"))
    with (root / "pairs.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        header = ("path", "text", "label", "split")
        writer.writerows(row if labelled else (row[0], row[1], row[3]) for row in [header, *rows])


def pairs_config(root: Path, loss: str = "sogclr", **sections: dict[str, Any]) -> dict[str, Any]:
    data = {"name": "table", "params": {"file": "pairs.csv"}, "root": str(root), "channels": 3}
    data |= {"validation_fraction": 0.3, "train_transform": {"name": "resize"}}
    text = {"layers": 1, "width": 16, "heads": 2, "length": 12, "vocabulary": 300}
    given = {"data": {**data, **sections.pop("data", {})}, "model": {"text": text, **sections.pop("model", {})}}
    return {**tiny_config(loss, **given, **sections), "sampler": {"name": "shuffled", "batch": 16}}


def trainer_of(config: dict[str, Any]) -> Trainer:
    settings = read_config(config)
    return Trainer(settings, build_splits(settings))
