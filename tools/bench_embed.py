"""aurank's embedding beside the best bare loop over the same photos, in turns, in one process.

    python tools/bench_embed.py [--models tf_efficientnet_lite0 …] [--sizes 128 224] [--images 256]

The bare loop is Pillow, timm's transform and network, and one thread that makes the next batch: nothing is checked,
named or kept. Its batch size and memory format are the best of all that `--batches` names, found on tensors in memory.
aurank's are those that its own trial finds, whose time is told as a share of what 2,943 photos take. Weights are
random. Ratios are medians over the turns; below 1, aurank is faster. ONNX Runtime and
torch.compile on tensors in memory, at the bare loop's batch, beside eager torch.
"""

import argparse
import io
import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from measuring import parser_of, timed
from PIL import Image
from torch import Tensor, nn

from aurank.data import READERS, Manifest
from aurank.embedding.cache import Pace
from aurank.embedding.embed import TRIED, embed, find_pace, kept_to
from aurank.models.adapters.by_name import load_model
from aurank.models.image_model import ImageModel
from aurank.sizes import keep_memory

PHOTOS = 2943  # of the test split
told = "{0.batch} {0.channels_last}".format


def per_image(run: Callable[[Tensor], object], inputs: Tensor, turns: int = 3) -> float:
    run(inputs)
    return min(timed(run, inputs)[0][0] for _ in range(turns)) / len(inputs) * 1e3


def search(module: nn.Module, images: Tensor, batches: list[int]) -> dict[Pace, float]:
    costs: dict[Pace, float] = {}
    for channels_last in (False, True):
        for batch in batches:
            with kept_to(pace := Pace(batch, channels_last), module) as laid_out:
                costs[pace] = per_image(module, laid_out(images[torch.arange(batch) % len(images)]), 2)
            if costs[pace] > 1.2 * min(costs.values()) and batch > 16:
                break
    return costs


@torch.inference_mode()
def bare(model: ImageModel, files: list[bytes], pace: Pace) -> np.ndarray:
    def made(part: list[bytes]) -> Tensor:
        pictures = (Image.open(io.BytesIO(content)).convert("RGB") for content in part)
        return torch.stack([model.transform(picture) for picture in pictures] or [torch.empty(0)])

    def batches() -> Iterator[Tensor]:
        with ThreadPoolExecutor(1) as thread:
            coming = thread.submit(made, files[: pace.batch])
            for start in range(pace.batch, len(files) + pace.batch, pace.batch):
                ready, coming = coming.result(), thread.submit(made, files[start : start + pace.batch])
                yield ready

    with kept_to(pace, model.module) as laid_out:
        return np.concatenate([model.module(laid_out(batch)).numpy() for batch in batches()])


def compared(name: str, size: int, manifest: Manifest, given: argparse.Namespace) -> None:
    drawn = f",img_size={size}" * name.startswith("vit")  # positions are learnt for one size
    model = load_model(f"timm:{name},pretrained=false,input_size={size}{drawn}")
    module, dataset = model.module.eval(), model.dataset(manifest)
    files = [manifest.source.read_bytes(path) for path in manifest.paths]
    some = torch.stack([dataset[row][0] for row in range(TRIED)])  # as timm's transform gives them
    with torch.inference_mode():
        costs = search(module, some, given.batches)
        best, start = min(costs, key=costs.__getitem__), time.perf_counter()
        pace = find_pace(module, some, PHOTOS)
        trial = time.perf_counter() - start
    turns = []
    for _ in range(given.turns):
        (theirs, bare_rows), (own, rows) = timed(bare, model, files, best), timed(embed, module, dataset, batch=pace)
        turns.append((own[0] / theirs[0], own[1] / theirs[1], own[0] / len(files) * 1e3))
    clock, cpu, spent = (statistics.median(column) for column in zip(*turns, strict=True))
    apart = np.abs(rows.embeddings - bare_rows).max() / np.abs(bare_rows).max()
    alone = ", ".join(f"{told(pace)} {cost:.2f}" for pace, cost in costs.items())
    print(f"{name} at {size}: images, channels-last, ms of one, network alone: {alone}")
    print(
        f"   bare {told(best)}, aurank {told(pace)}: {spent:.2f} ms with reading, ratio {clock:.3f}, by processor time "
        f"{cpu:.3f}; trial {trial / (spent * PHOTOS / 1e3):.1%}; differ by {apart:.0e} of the largest value",
        flush=True,
    )


def main() -> None:
    models = ["tf_efficientnet_lite0", "resnet50", "vit_small_patch16_224"]
    sizes, batches = [128, 224], [8, 16, 32, 64, 128, 256]
    counts = {"images": 256, "turns": 3, "threads": os.cpu_count() or 1}
    given = parser_of(__doc__, models=models, sizes=sizes, batches=batches, **counts).parse_args()
    torch.set_num_threads(given.threads)
    test = READERS["grocery"](Path(os.environ.get("AURANK_DATA", "data"))).split("test")
    print(f"{given.images} photos, {given.turns} turns, {given.threads} threads, glibc keeps memory: {keep_memory()}")
    for name, size in itertools.product(given.models, given.sizes):
        compared(name, size, test.select(np.arange(given.images)), given)


if __name__ == "__main__":
    main()
