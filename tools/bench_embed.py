"""aurank's embedding beside the best bare loop over the same photos, in turns, in one process.

    python tools/bench_embed.py [--models tf_efficientnet_lite0 …] [--sizes 128 224] [--images 256] [--engines]

The bare loop is Pillow, timm's transform and network, and one thread that makes the next batch: nothing is checked,
named or kept. Its batch size and memory format are the best of all that `--batches` names, found on tensors in memory.
aurank's are those that its own trial finds; its seconds are told apart, as a share of what 2,943 photos take. Weights
are random. Ratios are medians over the turns, by the clock and by this process's CPU time; below 1, aurank is faster.
`--engines` times ONNX Runtime and torch.compile on tensors in memory, at the bare loop's batch, beside eager torch.
"""

import argparse
import io
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from aurank.allocator import keep_memory

KEPT = keep_memory()  # as the commands do, before torch

import numpy as np  # noqa: E402
import torch  # noqa: E402
from PIL import Image  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from aurank.data import READERS, Manifest  # noqa: E402
from aurank.embedding.embed import embed  # noqa: E402
from aurank.embedding.pace import TRIED, Pace, find_pace, kept_to  # noqa: E402
from aurank.models.adapters.by_name import load_model  # noqa: E402
from aurank.models.image_model import ImageModel  # noqa: E402

Clock = tuple[float, float]  # seconds by the clock, and of this process's processor time
PHOTOS = 2943  # of the test split


def told(pace: Pace) -> str:
    return f"{pace.batch}{'L' if pace.channels_last else 'N'}"  # channels last or not


def timed(step: Callable[..., Any], *given: Any, **options: Any) -> tuple[Clock, Any]:
    wall, cpu = time.perf_counter(), time.process_time()
    result = step(*given, **options)
    return (time.perf_counter() - wall, time.process_time() - cpu), result


def per_image(run: Callable[[Tensor], object], inputs: Tensor, turns: int = 3) -> float:
    """Milliseconds of an image, the first call left out, by the clock."""
    run(inputs)
    return min(timed(run, inputs)[0][0] for _ in range(turns)) / len(inputs) * 1e3


def search(module: nn.Module, images: Tensor, batches: list[int]) -> dict[Pace, float]:
    """Milliseconds of an image by batch and format, larger batches as long as they are not 1.3 times as slow."""
    costs: dict[Pace, float] = {}
    for channels_last in (False, True):
        for batch in batches:
            with kept_to(pace := Pace(batch, channels_last), module) as laid_out:
                costs[pace] = per_image(module, laid_out(images[torch.arange(batch) % len(images)]), 2)
            if costs[pace] > 1.3 * min(costs.values()) and batch > 16:
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

    wanted = torch.channels_last if pace.channels_last else torch.contiguous_format
    with kept_to(pace, model.module):
        return np.concatenate([model.module(batch.contiguous(memory_format=wanted)).numpy() for batch in batches()])


def engines(module: nn.Module, images: Tensor, pace: Pace) -> str:
    """What other engines take, and the largest difference of an embedding of length 1."""
    import onnxruntime

    given = images[torch.arange(pace.batch) % len(images)].contiguous()
    with torch.inference_mode():
        usual, found = nn.functional.normalize(module(given), dim=1), []
    with tempfile.TemporaryDirectory() as folder:
        path, options = Path(folder, "model.onnx"), onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        torch.onnx.export(module, (given,), str(path), input_names=["images"], dynamo=True, verbose=False)
        session = onnxruntime.InferenceSession(path.read_bytes() if path.stat().st_size > 2**20 else str(path), options)

        def by_onnx(inputs: Tensor) -> Tensor:
            return torch.from_numpy(session.run(None, {"images": inputs.numpy()})[0])

        with kept_to(pace, module) as laid_out, torch.inference_mode():
            runs = {"onnxruntime": (by_onnx, given), "torch.compile": (torch.compile(module), laid_out(given))}
            for name, (run, inputs) in runs.items():
                (first, _), rows = timed(run, inputs)
                apart = (nn.functional.normalize(rows, dim=1) - usual).abs().max().item()
                found.append(f"{name} {per_image(run, inputs):.2f} ms (first call {first:.0f} s, differs {apart:.0e})")
    return "; ".join(found)


def compared(name: str, size: int, manifest: Manifest, given: argparse.Namespace) -> None:
    model = load_model(f"timm:{name},pretrained=false,input_size={size}")
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
    clock, cpu, spent = zip(*turns, strict=True)
    apart = np.abs(rows.embeddings - bare_rows).max() / np.abs(bare_rows).max()
    share = trial / (statistics.median(spent) * PHOTOS / 1e3)
    print(f"{name} at {size}: network alone {', '.join(f'{told(pace)} {cost:.2f}' for pace, cost in costs.items())} ms")
    print(
        f"   bare {told(best)}, aurank {told(pace)} {statistics.median(spent):.2f} ms with reading, the trial {share:.1%};"
        f" ratio {statistics.median(clock):.3f} ({min(clock):.3f} to {max(clock):.3f}), by processor time "
        f"{statistics.median(cpu):.3f}; they differ by {apart:.0e} of the largest value",
        flush=True,
    )
    if given.engines:
        print(f"   eager {costs[best]:.2f} ms; {engines(module, some, best)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    networks = ["tf_efficientnet_lite0", "resnet50", "vit_small_patch16_224"]
    parser.add_argument("--models", nargs="+", default=networks)
    parser.add_argument("--sizes", type=int, nargs="+", default=[128, 224])
    parser.add_argument("--batches", type=int, nargs="+", default=[8, 16, 32, 64, 128, 256])
    for option, value in {"images": 256, "turns": 3, "threads": os.cpu_count() or 1}.items():
        parser.add_argument(f"--{option}", type=int, default=value)
    parser.add_argument("--engines", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    folder = Path(os.environ.get("AURANK_DATA", "data"))
    test = READERS["grocery"](folder).split("test")
    print(f"{given.images} photos, {given.turns} turns, {given.threads} threads, glibc keeps memory: {KEPT}")
    for name, size in itertools.product(given.models, given.sizes):
        compared(name, size, test.select(np.arange(given.images)), given)


if __name__ == "__main__":
    main()
