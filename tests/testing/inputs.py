"""One data set of 8 pixels in every form that aurank reads."""

import importlib
import io
import json
import shutil
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torchvision.datasets import ImageFolder

from aurank.data import Manifest, from_dataset, from_table
from aurank.data.sources import PartsSource

Input = str | Manifest
SPLITS = ("train", "test")


def pixels(label: int, number: int) -> np.ndarray:
    image = np.full((8, 8, 3), (label * 25, 255 - label * 20, number * 60), np.uint8)
    image[label % 8, number] = 255
    return image


def held_bytes(content: bytes) -> PartsSource:
    """A file in memory, whose path is "x"."""
    return PartsSource([content], {"x": (0, 0, len(content))}, where="here")


def write_photos(root: Path) -> Path:
    """Write 4 images of each of 10 classes, half of them in train, the others in test."""
    for label in range(10):
        for number in range(4):
            file = root / ("train" if label < 5 else "test") / f"c{label}" / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels(label, number)).save(file)
    return root


def items(split: str) -> list[tuple[np.ndarray, str]]:
    labels = range(5) if split == "train" else range(5, 10)
    return [(pixels(label, number), f"c{label}") for label in labels for number in range(4)]


def add_to_tar(file: Path, content: Mapping[str, bytes]) -> None:
    with tarfile.open(file, "a") as archive:
        for name, data in content.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def tars(photos: Path, out: Path) -> str:
    out.mkdir(exist_ok=True)
    for file in sorted(photos.rglob("*.png")):
        split, label, _ = file.relative_to(photos).parts
        content = {"png": file.read_bytes(), "cls": label.encode(), "json": json.dumps({"name": label}).encode()}
        named = {f"{label}/{file.stem}.{suffix}": data for suffix, data in content.items()}
        add_to_tar(out / f"{split}-00{label[1]}.tar", named)
    return f"{out}/{{train-00{{0..4}},test-00{{5..9}}}}.tar"


def of_hugging_face() -> Any:
    import datasets

    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=[f"c{label}" for label in range(10)])}
    )

    def part(split: str) -> Any:
        rows = [{"image": Image.fromarray(image), "label": int(label[1])} for image, label in items(split)]
        return datasets.Dataset.from_list(rows, features=features)

    datasets.disable_progress_bars()
    return datasets.DatasetDict(train=part("train"), test=part("test"))


def saved(out: Path, kind: str) -> str:
    parts = of_hugging_face()
    if kind == "arrow":
        parts.save_to_disk(str(out), num_shards={"train": 2, "test": 1})
    else:
        out.mkdir(parents=True)
        for split, part in parts.items():
            part.to_parquet(str(out / f"{split}-00000-of-00001.parquet"))
    return f"hf:{out}"


class Vision(torch.utils.data.Dataset[Any]):
    """As torchvision has them: images of Pillow, numbers for labels, `targets` and `classes`."""

    classes = tuple(f"c{label}" for label in range(10))

    def __init__(self, split: str, change: Callable[[Any], Any] = Image.fromarray) -> None:
        self.items, self.change = items(split), change
        self.targets = [int(label[1]) for _, label in self.items]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, row: int) -> tuple[Any, int]:
        return self.change(self.items[row][0]), self.targets[row]


def as_tensor(image: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(image).permute(2, 0, 1).float() / 255  # as ToTensor of torchvision


def columns(photos: Path) -> dict[str, list[str]]:
    paths = [file.relative_to(photos).as_posix() for file in sorted(photos.rglob("*.png"))]
    parts = [path.split("/") for path in paths]
    return {"path": paths, "label": [part[1] for part in parts], "split": [part[0] for part in parts]}


def _frame(library: str, photos: Path, **where: Any) -> Manifest:
    return from_table(importlib.import_module(library).DataFrame(columns(photos)), **where)


INPUTS: Mapping[str, Callable[[Path, Path], Input]] = {
    "torchvision": lambda photos, out: from_dataset({split: Vision(split) for split in SPLITS}),
    "ImageFolder": lambda photos, out: from_dataset({split: ImageFolder(photos / split) for split in SPLITS}),
    "tensors": lambda photos, out: from_dataset({split: Vision(split, as_tensor) for split in SPLITS}),
    "lists": lambda photos, out: from_dataset({split: items(split) for split in SPLITS}),
    "datasets": lambda photos, out: from_dataset(of_hugging_face()),
    "arrow": lambda photos, out: saved(out / "saved", "arrow"),
    "parquet": lambda photos, out: saved(out / "saved", "parquet"),
    "webdataset": lambda photos, out: f"webdataset:{tars(photos, out)}",
    "zip": lambda photos, out: f"folder:{shutil.make_archive(str(photos.parent / 'photos'), 'zip', photos)}",
    "pandas": lambda photos, out: _frame("pandas", photos, root=photos),
    "polars": lambda photos, out: _frame("polars", photos, root=photos),
}
