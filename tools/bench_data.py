"""Images a second of torchvision's own pipeline, of aurank from the originals, and from prepared images, in turns.

    python tools/bench_data.py [--images 512] [--side 480] [--workers 2] [--rounds 7] [--normalise]

The photos are parts of two real ones (scikit-learn's), 640 × 480 pixels at --side 480, with the detail of such, saved
as JPEGs of quality 90 in a temporary folder. torchvision's pipeline is that of its ImageFolder, RandomResizedCrop(224),
a flip, ToTensor, Normalize, with torch's own DataLoader. aurank's is `crop_flip` at 224 pixels, as its loader gives
batches to training: uint8, which the device normalises, or with --normalise this process. Each round is a pass of every
contestant over all photos with the same workers, in turns, so that another load on the machine hits all of them; the
files are in the page cache. Figures are medians over the rounds, and ratios those of each round. Beside it, how far
pixels are from those of photos decoded whole: the mean over the crops of some photos, in levels of 255.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import parser_of
from PIL import Image
from sklearn.datasets import load_sample_images
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

from aurank.commands import prepare_data
from aurank.config import Config
from aurank.data import BatchLoader, ImageDataset, Manifest, view_keys
from aurank.embedding.build import build_dataset, with_preprocessing
from aurank.embedding.image_selection import read_whole
from aurank.training import read_config

CLASSES = 16
COMPARED = 64  # photos whose pixels are compared
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def write_photos(root: Path, count: int, side: int) -> None:
    draws, width = np.random.default_rng(0), round(side * 4 / 3)
    for number in range(count):
        photo = Image.fromarray(load_sample_images().images[number % 2])
        scale = max(width / photo.width, side / photo.height) * draws.uniform(1, 1.3)
        size = round(photo.width * scale), round(photo.height * scale)
        left, top = (int(draws.integers(0, whole - part + 1)) for whole, part in zip(size, (width, side), strict=True))
        part = photo.resize(size, Image.Resampling.LANCZOS).crop((left, top, left + width, top + side))
        folder = root / "train" / f"class{number % CLASSES:02}"
        folder.mkdir(parents=True, exist_ok=True)
        part.save(folder / f"{number:05}.jpg", quality=90)


def config_of(root: Path, **data: Any) -> Config:
    given = {"name": "folder", "root": str(root), "validation_fraction": 0.0, "cache": "0", "image_size": 224, **data}
    look = {"normalise": {"mean": list(MEAN), "std": list(STD)}, "interpolation": "area"}
    rest: dict[str, Any] = {"model": {"backbone": "resnet18", "pretrained": False}, "loss": {"name": "soprc"}}
    rest |= {"optim": {"lr": 1e-3}, "train": {"steps": 1}}
    return with_preprocessing(read_config({"data": {**given, **look}, **rest}))


def torchvisions(root: Path, workers: int, batch: int) -> Callable[[], Iterable[Any]]:
    steps = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip()]
    data = ImageFolder(
        str(root / "train"), transforms.Compose([*steps, transforms.ToTensor(), transforms.Normalize(MEAN, STD)])
    )
    return lambda: DataLoader(data, batch_size=batch, shuffle=True, num_workers=workers)


def auranks(data: ImageDataset, workers: int, batch: int) -> Callable[[], Iterable[Any]]:
    draws = np.random.default_rng(0)

    def batches() -> Iterable[Any]:
        rows, epoch = draws.permutation(len(data)), int(draws.integers(10**6))
        return BatchLoader(
            data, [view_keys(part, epoch) for part in np.split(rows, range(batch, len(rows), batch))], workers=workers
        )

    return batches


def images_per_second(batches: Iterable[Any], workers: int, data: ImageDataset | None) -> float:
    """Return the rate from the first batch of each worker on: starting them is not what is compared.

    data: aurank's, whose batches are normalised here.
    """
    count, started = 0, time.perf_counter()
    for number, batch in enumerate(batches):
        if number < max(1, workers):
            count, started = 0, time.perf_counter()
            continue
        if data is not None:
            data.to_input(batch.image)
        count += len(batch[1])
    if not count:
        raise SystemExit("no batch is left to be timed: give more --images, or fewer --workers")
    return count / (time.perf_counter() - started)


def difference(found: ImageDataset, whole: ImageDataset) -> float:
    rows = np.linspace(0, len(whole) - 1, COMPARED, dtype=np.int64)
    first, second = (data.__getitems__(view_keys(rows, epoch=1)).image for data in (found, whole))
    return float((first.float() - second.float()).abs().mean())


def main() -> None:
    parser = parser_of(__doc__, images=512, side=480, workers=2, rounds=7, batch=64, normalise=False)
    parser.add_argument("--out", type=Path, help="folder to work in, kept; default: a temporary one")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as made:
        compare(given, given.out or Path(made))


def compare(given: argparse.Namespace, folder: Path) -> None:
    root = folder / "photos"
    if not root.exists():
        write_photos(root, given.images, given.side)
    prepared_bytes = prepare_data(config_of(root), folder / "prepared").num_bytes
    manifest: Manifest = read_whole(config_of(root).data).split("train")
    data = {
        "whole": build_dataset(config_of(root, decoding="whole").data, manifest, train=True),
        "originals": build_dataset(config_of(root).data, manifest, train=True),
        "prepared": build_dataset(config_of(root, prepared=folder / "prepared").data, manifest, train=True),
    }
    runs = {"torchvision": torchvisions(root, given.workers, given.batch)}
    runs |= {name: auranks(one, given.workers, given.batch) for name, one in data.items()}
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(given.rounds):
        for name, run in runs.items():
            normalised = data.get(name) if given.normalise else None
            rates[name].append(images_per_second(run(), given.workers, normalised))
    originals = sum(path.stat().st_size for path in root.rglob("*.jpg"))
    print(f"{len(manifest)} photos, shorter side {given.side}; {given.workers} workers, {given.rounds} rounds")
    print(f"{'':<16}{'images/s':>10}{'× torchvision':>16}{'difference':>12}{'KB an image':>13}")
    for name, found in rates.items():
        ratio = statistics.median(one / other for one, other in zip(found, rates["torchvision"], strict=True))
        apart = f"{difference(data[name], data['whole']):.2f}" if name in data else ""
        size = (prepared_bytes if name == "prepared" else originals) / len(manifest) / 1000
        print(f"{name:<16}{statistics.median(found):>10.0f}{ratio:>16.2f}{apart:>12}{size:>13.1f}")


if __name__ == "__main__":
    main()
