"""Saved embeddings for tests: photos of two shapes, and rows of classes that can be told apart."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

CLASSES, PER_CLASS, WIDTH = 12, 6, 16


def write_photos(folder: Path, *, classes: int = 9, each: int = 4) -> Path:
    """Write train/CLASS/IMAGE and test/CLASS/IMAGE, of sides that are rounded, and return the folder."""
    chance = np.random.default_rng(0)
    for label in range(classes):
        split = "test" if label >= classes - 3 else "train"
        for place in range(each):
            shape = (41 + place, 57 - label, 3)
            pixels = chance.integers(0, 256, shape, dtype=np.uint8) // 4 + np.uint8(label * 20)
            path = folder / split / f"class{label}" / f"{place}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(path)
    return folder


def rows(**changes: Any) -> dict[str, np.ndarray]:
    """Arrays of a file of embeddings: twelve classes, of which the last four are for testing."""
    chance = np.random.default_rng(0)
    labels = np.repeat(np.arange(CLASSES), PER_CLASS)
    embeddings = chance.normal(size=(CLASSES, WIDTH))[labels] + 0.5 * chance.normal(size=(len(labels), WIDTH))
    content: dict[str, Any] = {
        "embeddings": embeddings.astype(np.float32),
        "labels": labels,
        "paths": np.array([f"{label}/{row}.png" for row, label in enumerate(labels.tolist())]),
        "splits": np.where(labels < 8, "train", "test"),
    }
    content |= changes
    return {name: values for name, values in content.items() if values is not None}


def write_rows(path: Path, **changes: Any) -> Path:
    """Write them, with other arrays, or without those that are None."""
    np.savez(path, **rows(**changes))
    return path


def head_config(file: Path, **sections: dict[str, Any]) -> dict[str, Any]:
    """A configuration of a head on them; ``sections`` override single keys."""
    config: dict[str, Any] = {
        "data": {"name": "embeddings", "root": str(file.parent), "params": {"file": file.name}},
        "sampler": {"batch": 8, "params": {"per_class": 2}},
        "model": {"dim": 4},
        "loss": {"name": "smooth_ap"},
        "optim": {"lr": 1e-2},
        "train": {"steps": 4, "validate_every": 2, "checkpoint_every": 2, "log_every": 1},
        "evaluate": {"recall_at": [1]},
    }
    config["data"] |= {"validation_fraction": 0.25}
    for name, values in sections.items():
        config[name] = {**config.get(name, {}), **values}
    return config
