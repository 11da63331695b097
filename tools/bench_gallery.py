"""A gallery of millions of rows on disk: exact evaluation, faiss indexes beside it, and what each takes.

    python tools/bench_gallery.py [--rows 10000000] [--dim 64] [--queries 10000] [--folder DIR]
        [--indexes "IVF4096,Flat" "OPQ32,IVF4096,PQ32"] [--nprobe 1 8 32 128]

Data: unit vectors float32 in one .npy, five a class, around class centres that lie around 4,096 super-centres (so that
lists of an IVF have something to hold); queries are further rows of random classes. Every step runs in a process of its
own, on the memory-mapped file. Printed: seconds, rates, growth of resident memory (what of the file the kernel keeps
mapped is counted too: "file"), and for each index the part of the true nearest one and ten that it finds. `mapped` is
the same index read from disk as it is searched.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import alone, forget_peak, parser_of, resident_megabytes, seconds

PER_CLASS, SUPER_CENTRES, BLOCK = 5, 4096, 100_000


def write_rows(folder: Path, rows: int, queries: int, dim: int) -> None:
    chance = np.random.default_rng(0)
    classes = max(1, rows // PER_CLASS)
    coarse = chance.normal(size=(SUPER_CENTRES, dim)).astype(np.float32)
    centres = coarse[np.arange(classes) % SUPER_CENTRES] + 0.6 * chance.normal(size=(classes, dim)).astype(np.float32)
    written = np.lib.format.open_memmap(folder / "gallery.npy", "w+", np.float32, (rows, dim))
    for start in range(0, rows, BLOCK):
        here = np.arange(start, min(start + BLOCK, rows))
        written[here] = around(centres[here % classes], chance)
    written.flush()
    np.save(folder / "labels.npy", np.arange(rows) % classes)
    asked = chance.integers(0, classes, queries)
    np.save(folder / "queries.npy", around(centres[asked], chance))
    np.save(folder / "query_labels.npy", asked)


def around(centres: np.ndarray, chance: np.random.Generator) -> np.ndarray:
    drawn = centres + 0.5 * chance.standard_normal(centres.shape, dtype=np.float32)
    return np.asarray(drawn / np.linalg.norm(drawn, axis=1, keepdims=True), dtype=np.float32)


def read(folder: Path, name: str) -> np.ndarray:
    return np.load(folder / f"{name}.npy", mmap_mode="r")  # type: ignore[no-any-return]


def exact(folder: Path, max_memory: str) -> dict[str, Any]:
    import aurank

    sides = [read(folder, name) for name in ("queries", "query_labels", "gallery", "labels")]
    few, alike = sides[0][:100], np.arange(100) // 2
    aurank.evaluate(few, alike, few, alike, neighbours=1)  # imports, compiled code
    found: dict[str, Any] = {}
    before = start_memory()
    taken = seconds(
        lambda: found.update(report=aurank.evaluate(*sides, neighbours=10, recall_at=(1, 10), max_memory=max_memory))
    )
    report = found["report"]
    np.save(folder / "truth.npy", report.neighbours.row)
    pairs = len(sides[0]) * len(sides[2])
    return {"seconds": taken, **memory(before), "pairs": pairs, "mauprc": report.mauprc, "recall": report.recall[1]}


def indexed(folder: Path, factory: str, probes: list[int]) -> dict[str, Any]:
    from aurank.evaluation import Index

    gallery, queries, truth = read(folder, "gallery"), read(folder, "queries"), np.load(folder / "truth.npy")
    Index.build(gallery[:200], "Flat").search(queries[:10], 1)  # imports
    file = folder / "index.faiss"
    result = fill(gallery, factory, file)
    before = start_memory()
    result["memory"] = search(Index.load(file), queries, truth, probes)
    result |= {f"loaded {name}": value for name, value in memory(before).items()}
    before = start_memory()
    loaded: list[Index] = []
    result["load"] = seconds(lambda: loaded.append(Index.load(file, memory_map=True)))
    result["mapped"] = search(loaded[0], queries, truth, probes)
    return result | {f"mapped {name}": value for name, value in memory(before).items()}


def fill(gallery: np.ndarray, factory: str, file: Path) -> dict[str, Any]:
    from aurank.evaluation import Index

    before, index = start_memory(), Index(gallery.shape[1], factory)
    times = {"train": seconds(lambda: index.train(gallery)), "add": seconds(lambda: index.add(gallery))}
    return {**times, **memory(before), "save": seconds(lambda: index.save(file)), "bytes": file.stat().st_size}


def search(index: Any, queries: np.ndarray, truth: np.ndarray, probes: list[int]) -> list[dict[str, float]]:
    import faiss

    lines = []
    for probe in probes:
        faiss.ParameterSpace().set_index_parameters(index.host, f"nprobe={probe}")
        found: dict[str, np.ndarray] = {}
        taken = seconds(lambda found=found: found.update(row=index.search(queries, 10).row))
        near = [(found["row"][:, :k, None] == truth[:, None, :k]).any(2).mean() for k in (1, 10)]
        lines.append({"nprobe": probe, "seconds": taken, "nearest": near[0], "ten": near[1]})
    return lines


def start_memory() -> tuple[float, float]:
    forget_peak()
    return resident_megabytes("VmRSS"), resident_megabytes("RssFile")


def memory(before: tuple[float, float]) -> dict[str, float]:
    return {"growth": resident_megabytes("VmHWM") - before[0], "file": resident_megabytes("RssFile") - before[1]}


def measure(given: argparse.Namespace) -> None:
    folder: Path = given.folder
    print(f"{given.rows:,} rows of {given.dim}, {given.queries:,} queries; {given.threads} thread(s)", flush=True)
    if not (folder / "query_labels.npy").exists():
        print(f"  written in {seconds(lambda: write_rows(folder, given.rows, given.queries, given.dim)):.0f} s")
    found = alone("exact", given)
    rate = found["pairs"] / found["seconds"] / 1e6
    print(f"  exact: {found['seconds']:.0f} s, {rate:,.0f} million pairs a second, growth {found['growth']:.0f} MB")
    print(f"    (of it mapped file {found['file']:.0f}); mAUPRC {found['mauprc']:.4f}, R@1 {found['recall']:.4f}")
    for factory in given.indexes:
        found = alone(factory, given)
        print(f"  {factory}: trained {found['train']:.0f} s, filled {found['add']:.0f} s, saved {found['save']:.0f} s")
        print(f"    {found['bytes'] / given.rows:.1f} bytes a row, growth {found['growth']:.0f} MB", flush=True)
        print(f"    in memory: growth {found['loaded growth']:.0f} MB")
        print(f"    mapped: loaded {found['load']:.1f} s, growth {found['mapped growth']:.0f} MB")
        print("    | nprobe | finds the nearest | of ten | queries/s | mapped |\n    |---|---|---|---|---|")
        for line, mapped in zip(found["memory"], found["mapped"], strict=True):
            rates = [given.queries / one["seconds"] for one in (line, mapped)]
            said = f"{line['nprobe']} | {line['nearest']:.4f} | {line['ten']:.4f} | {rates[0]:,.0f} | {rates[1]:,.0f}"
            print(f"    | {said} |", flush=True)


def main() -> None:
    sizes: dict[str, Any] = {"rows": 10_000_000, "dim": 64, "queries": 10_000, "threads": torch.get_num_threads()}
    indexes = ["IVF4096,Flat", "OPQ32,IVF4096,PQ32"]
    parser = parser_of(__doc__, **sizes, indexes=indexes, nprobe=[1, 8, 32, 128], max_memory="1GiB")
    parser.add_argument("--folder", type=Path, help="where rows and indexes are kept; default: a temporary folder")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.one:
        step = exact(given.folder, given.max_memory) if given.one == "exact" else None
        print(json.dumps(step or indexed(given.folder, given.one, given.nprobe), default=float))
        return
    with tempfile.TemporaryDirectory() as made:
        given.folder = given.folder or Path(made)
        given.folder.mkdir(parents=True, exist_ok=True)
        measure(given)


if __name__ == "__main__":
    main()
