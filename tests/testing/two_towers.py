"""Photos of colours with sentences about them, and the configuration of a run that learns from both."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from testing.tiny import tiny_config

from aurank.training import read_config
from aurank.training.build import build_splits
from aurank.training.trainer import Trainer

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
    config = tiny_config(loss, **given, **sections)
    return {**config, "sampler": {"name": "shuffled", "batch": 16}}


def trainer_of(config: dict[str, Any]) -> Trainer:
    settings = read_config(config)
    return Trainer(settings, build_splits(settings))
