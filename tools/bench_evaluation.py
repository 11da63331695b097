"""Time and memory of exact evaluation beside the product that it rests on and what others offer.

    python tools/bench_evaluation.py [--rows 12000 20000] [--gallery] [--peers] [--scale 15000 30000 60502]
    python tools/bench_evaluation.py --rows 20000 --set clusters trained random collapsed:4000 FILE.npz
    python tools/bench_evaluation.py --rows --scale 60000 --classes 10 --dim 64 --report

Data: unit vectors float32 [row, 512] around random centres, 5 per class, shuffled; everything on the same rows.
`--dim` and `--per-class` say otherwise; `--classes N` makes N classes, with `--tail S` of lognormal sizes.

- sets (`--set`): `clusters` is the above; `trained` has classes in 12 categories, close by and with a spectrum that
  decays, as trained embeddings do; `random` has no classes at all; `collapsed` is one point and noise of 1e-7; of a
  file of `aurank embed` the first rows are taken. `NAME:4000` takes so many rows.
- side by side (`--rows`): aurank's ranks of every positive (checks, lengths, thresholds, sorting and rechecks
  included), the same without the accelerator, the plain product in blocks of 1,024 rows, with `--argsort` as the
  SOPRC authors evaluate, in turns; medians of `--repeats` turns, and their ratio to the product. With `--gallery` also
  half of the rows against the other half.
- peers: PML's AccuracyCalculator with k=None, torchmetrics, open-metric-learning, each alone under `--limit` gigabytes.
- scale: aurank on memory-mapped rows with `--max-memory`, in a process of its own: time, peak of resident memory beyond
  what the process held with its inputs read once, and the ratio to the product. With `--device cuda` on a GPU. With
  `--report` the whole report, with metrics, values per query, curve and intervals, in place of the ranks.
"""

import argparse
import importlib.util
import json
import resource
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from measuring import alone, forget_peak, parser_of, resident_megabytes, seconds
from torch import Tensor


def data(rows: int, given: argparse.Namespace, *, spread: float = 2.0) -> tuple[Tensor, Tensor]:
    chance = torch.Generator().manual_seed(0)
    labels = torch.arange(rows) // given.per_class
    if given.classes:
        weight = torch.exp(given.tail * torch.randn(given.classes, generator=chance))
        ends = torch.cumsum(weight / weight.sum() * (rows - given.classes), 0).round() + torch.arange(
            1, given.classes + 1
        )
        labels = torch.searchsorted(ends, torch.arange(rows).float(), right=True).clamp(max=given.classes - 1)
    centres = torch.randn(int(labels[-1]) + 1, given.dim, generator=chance)
    order = torch.randperm(rows, generator=chance)
    noise = torch.randn(rows, given.dim, generator=chance)
    return torch.nn.functional.normalize(centres[labels[order]] + spread * noise), labels[order]


def trained(rows: int, given: argparse.Namespace) -> tuple[Tensor, Tensor]:
    chance = torch.Generator().manual_seed(1)
    labels, spectrum = torch.arange(rows) // given.per_class, torch.arange(1, given.dim + 1) ** -0.5
    basis = torch.linalg.qr(torch.randn(given.dim, given.dim, generator=chance))[0]
    count = int(labels[-1]) + 1

    def drawn(size: int) -> Tensor:
        return torch.randn(size, given.dim, generator=chance) * spectrum

    centres = 0.6 * drawn(12)[torch.randint(12, (count,), generator=chance)] + 0.8 * drawn(count)
    order = torch.randperm(rows, generator=chance)
    noise = drawn(rows) * (0.35 + 0.5 * torch.rand(rows, 1, generator=chance))
    return torch.nn.functional.normalize((centres[labels[order]] + noise) @ basis), labels[order]


def named(text: str, rows: int, given: argparse.Namespace) -> tuple[Tensor, Tensor]:
    name, _, count = text.partition(":")
    rows = int(count or rows)
    if name.endswith(".npz"):
        with np.load(name) as file:
            vectors, labels = torch.from_numpy(file["embeddings"][:rows]).float(), file["labels"][:rows]
        return vectors, torch.from_numpy(np.unique(labels, return_inverse=True)[1])
    if name == "trained":
        return trained(rows, given)
    if name == "random":
        return data(rows, given, spread=1e6)
    vectors, labels = data(rows, given)
    if name == "collapsed":
        vectors = torch.nn.functional.normalize(vectors[:1] + 1e-7 * vectors)
    return vectors, labels


def product(queries: Tensor, gallery: Tensor, block: int = 1024) -> None:
    out = torch.empty(block, len(gallery), device=queries.device)
    for start in range(0, len(queries), block):
        here = queries[start : start + block]
        torch.mm(here, gallery.T, out=out[: len(here)])
    if queries.is_cuda:
        torch.cuda.synchronize()


def argsort_map(queries: Tensor, labels: Tensor, block: int = 1000) -> float:
    total = 0.0
    for start in range(0, len(queries), block):
        order = (queries[start : start + block] @ queries.T).argsort(dim=1, descending=True)[:, 1:]
        hit = (labels[order] == labels[start : start + block, None]).double()
        precision = hit.cumsum(1) / torch.arange(1, hit.shape[1] + 1)
        total += float(((precision * hit).sum(1) / hit.sum(1)).sum())
    return total / len(queries)


def show_turns(title: str, steps: dict[str, Callable[[], object]], repeats: int) -> None:
    times = [[seconds(step) for step in steps.values()] for _ in range(repeats + 1)][1:]
    result = dict(zip(steps, map(statistics.median, zip(*times, strict=True)), strict=True))
    print(title)
    for name, value in result.items():
        print(f"  {name:24}{value:9.3f} s{value / result['product']:9.2f} x product", flush=True)


def side_by_side(text: str, rows: int, given: argparse.Namespace) -> None:
    from aurank.evaluation import positive_ranks
    from aurank.evaluation.engine import ranks
    from aurank.evaluation.metrics import average_precision, mean

    vectors, labels = (part.to(given.device) for part in named(text, rows, given))
    rows = len(vectors)
    found: dict[str, Any] = {}

    def aurank() -> None:
        found["aurank"] = positive_ranks(vectors, labels, max_memory=given.max_memory)

    def core() -> None:
        with mock.patch.object(ranks, "accelerator_of", return_value=None):
            found["core"] = positive_ranks(vectors, labels, max_memory=given.max_memory)

    steps: dict[str, Callable[[], object]] = {"product": lambda: product(vectors, vectors), "aurank": aurank}
    if given.device == "cpu":
        steps["aurank, the core alone"] = core
    if given.argsort:
        steps["argsort"] = lambda: found.update(argsort=argsort_map(vectors, labels))
    show_turns(f"{text}: {rows:,} rows of {vectors.shape[1]}, the set its own gallery", steps, given.repeats)
    exact = found["aurank"]
    if "core" in found:
        alike = all(
            np.array_equal(getattr(exact, name), getattr(found["core"], name))
            for name in ("higher", "tied", "positive")
        )
        print(f"  the same digits: {'yes' if alike else 'NO'}")
    said = f"  mAUPRC {mean(average_precision(exact)):.6f}"
    print(said + (f"; by argsort {found['argsort']:.6f}" if given.argsort else ""), flush=True)
    if given.gallery:
        half = rows // 2
        split: dict[str, Callable[[], object]] = {
            "product": lambda: product(vectors[:half], vectors[half:]),
            "aurank": lambda: positive_ranks(
                vectors[:half], labels[:half], vectors[half:], labels[half:], max_memory=given.max_memory
            ),
        }
        show_turns(f"{half:,} queries, a gallery of {rows - half:,} others", split, given.repeats)


def pml(vectors: Tensor, labels: Tensor) -> float:
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    calculator = AccuracyCalculator(include=("mean_average_precision",), k=None, device=torch.device("cpu"))
    return float(calculator.get_accuracy(vectors, labels)["mean_average_precision"])


def torchmetrics(vectors: Tensor, labels: Tensor) -> float:
    from torchmetrics.retrieval import RetrievalMAP

    metric = RetrievalMAP()
    for start in range(0, len(vectors), 1000):
        rows = torch.arange(start, min(start + 1000, len(vectors)))
        scores = vectors[rows] @ vectors.T + 2
        keep = torch.ones_like(scores, dtype=torch.bool)
        keep[torch.arange(len(rows)), rows] = False
        same = labels[rows, None] == labels
        metric.update(scores[keep], same[keep], indexes=rows[:, None].expand_as(scores)[keep])
    return float(metric.compute())


def oml(vectors: Tensor, labels: Tensor) -> float:
    from oml.functional.metrics import calc_retrieval_metrics
    from oml.retrieval.retrieval_results import RetrievalResults

    results = RetrievalResults.from_embeddings(vectors, labels, n_items=len(vectors) - 1)
    same = [(labels == label).nonzero().flatten() for label in labels]
    found = calc_retrieval_metrics(results.retrieved_ids, same, map_top_k=(len(vectors) - 1,))
    return float(next(iter(found["map"].values())).mean())


PEERS = {"pytorch_metric_learning": pml, "torchmetrics": torchmetrics, "oml": oml}


def one_peer(name: str, rows: int, given: argparse.Namespace) -> dict[str, float]:
    vectors, labels = data(rows, given)
    PEERS[name](*data(200, given))  # imports, threads
    resource.setrlimit(resource.RLIMIT_DATA, (int(given.limit * 2**30), int(given.limit * 2**30)))
    value: dict[str, float] = {}
    value["seconds"] = seconds(lambda: value.update(result=PEERS[name](vectors, labels)))
    return value


def one_scale(rows: int, given: argparse.Namespace) -> dict[str, float]:
    import aurank
    from aurank.evaluation import Resampling, positive_ranks

    options: dict[str, Any] = {"device": given.device, "max_memory": given.max_memory}

    def measured(rows: np.ndarray, labels: np.ndarray) -> object:
        if given.report:
            return aurank.evaluate(rows, labels, resampling=Resampling(), **options)
        return positive_ranks(rows, labels, **options)

    with tempfile.TemporaryDirectory() as folder:
        vectors, labels = data(rows, given)
        np.save(Path(folder) / "rows.npy", vectors.numpy())
        del vectors
        mapped = np.load(Path(folder) / "rows.npy", mmap_mode="r")
        measured(mapped[:200], np.arange(200) // 5)  # imports, compiled code
        float(mapped.sum())  # the file's own pages
        forget_peak()
        before = resident_megabytes("VmRSS")
        taken = seconds(lambda: measured(mapped, labels.numpy()))
        growth = resident_megabytes("VmHWM") - before
        whole = torch.from_numpy(np.array(mapped)).to(given.device)
        product(whole[:2048], whole)
        return {"seconds": taken, "growth": growth, "product": seconds(lambda: product(whole, whole))}


def main() -> None:
    sizes: dict[str, Any] = {"rows": [12_000, 20_000], "dim": 512, "per_class": 5, "classes": 0, "tail": 0.0}
    limits: dict[str, Any] = {"max_memory": "1GiB", "limit": 20.0, "threads": torch.get_num_threads()}
    asked: dict[str, Any] = {"set": ["clusters"], "gallery": False, "argsort": False, "report": False, "repeats": 5}
    parser = parser_of(__doc__, **sizes, **limits, **asked, device="cpu")
    parser.add_argument("--peers", type=int, nargs="?", const=12_000, help="other libraries, at so many rows")
    parser.add_argument("--scale", type=int, nargs="*", default=[])
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.one:
        kind, rows = given.one.split(":")
        peer = kind in PEERS
        print(json.dumps(one_peer(kind, int(rows), given) if peer else one_scale(int(rows), given)))
        return
    classes = f"{given.classes:,} classes, tail {given.tail:g}" if given.classes else f"{given.per_class} per class"
    print(f"torch {torch.__version__}, {given.device}, {given.threads} threads, {given.dim} wide, {classes}")
    for rows in given.rows:
        for text in given.set:
            side_by_side(text, rows, given)
    if given.peers:
        print(f"others at {given.peers:,} rows, at most {given.limit:g} GB each")
        for name in PEERS:
            if importlib.util.find_spec(name) is None:
                print(f"  {name:24} not installed", flush=True)
                continue
            found = alone(f"{name}:{given.peers}", given)
            said = found.get("failure", "")[-150:] or f"{found['seconds']:9.3f} s   mAP {found['result']:.6f}"
            print(f"  {name:24}{said}", flush=True)
    if given.scale:
        print(f"memory-mapped rows, max_memory {given.max_memory}")
        for rows in given.scale:
            found = alone(f"scale:{rows}", given)
            if "failure" in found:
                print(f"  {rows:8,} rows {found['failure'][-150:]}", flush=True)
                continue
            ratio = found["seconds"] / found["product"]
            line = f"{found['seconds']:9.2f} s{ratio:8.2f} x product{found['growth']:8.0f} MB beyond the inputs"
            print(f"  {rows:8,} rows{line}", flush=True)


if __name__ == "__main__":
    main()
