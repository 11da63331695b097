"""What reading embeddings in parts costs: seconds and peak memory of an evaluation and of an index over them.

    python tools/bench_shards.py --folder parts [--rows 1000000] [--dim 64] [--parts 4] [--queries 10000]

Rows of random classes of ten are written with `ShardWriter`, as `aurank embed` does, unless the folder has them. Each
step runs in a process of its own: the queries against all other rows, then against a tenth of them, then a faiss index
of all rows. "own" is the peak of memory that is the process's alone (RssAnon), less what it had after its imports;
pages of the mapped files, which the system takes back when it needs them, are not in it, but in "resident" (VmHWM).
"""

import multiprocessing
import sys
import threading
from functools import partial
from pathlib import Path

import numpy as np
from measuring import parser_of, resident_megabytes, timed

from aurank.data.shards import ShardWriter


def write(folder: Path, rows: int, dim: int, parts: int, queries: int) -> None:
    writer, chance = ShardWriter(folder), np.random.default_rng(0)
    labels = np.arange(rows) % (rows // 10)
    for own in np.array_split(np.arange(rows), parts):
        centres = np.random.default_rng(1).standard_normal((rows // 10, dim), dtype=np.float32)
        noise = chance.standard_normal((len(own), dim), dtype=np.float32)
        writer.write(centres[labels[own]] + noise)
    is_query = np.zeros(rows, dtype=np.bool_)
    is_query[chance.permutation(rows)[:queries]] = True
    names = np.array([f"class{label}/{row}.jpg" for row, label in enumerate(labels.tolist())])
    columns = {"labels": labels, "ids": np.arange(rows), "paths": names, "is_query": is_query, "is_gallery": ~is_query}
    splits = np.where(is_query | (chance.random(rows) < 0.1), "test", "train")
    writer.finish({**columns, "splits": splits, "groups": np.full(rows, -1)})


def evaluate(folder: Path, split: str | None = None) -> str:
    from aurank.commands import RunOptions, evaluate_model
    from aurank.embedding import ImageSelection

    how = RunOptions(device="cpu")
    report = evaluate_model(f"embeddings:{folder}", ImageSelection(split=split), running=how, max_memory="256MiB")
    return f"{report.num_queries:,} × {report.num_gallery:,}, mAUPRC {report.mauprc:.6f}"


def index_all(folder: Path) -> str:
    from aurank.embedding.embedded import Embedded
    from aurank.embedding.index_folder import index_rows, write_index_folder

    saved = Embedded.load(folder)
    count = len(saved.labels)
    places, sums = np.zeros(count, np.int64), np.full(count, "0" * 64)
    table = {"path": saved.paths, "class": np.full(count, "a class"), "source": places, "sha256": sums}
    rows = index_rows(table, saved.embeddings, None, "IVF1024,PQ16", distance="cosine", seed=0)
    about = {"distance": "cosine", "sources": [], "seed": 0, "model": {"file": None}}
    write_index_folder(folder.with_name(f"{folder.name}_index"), about, rows)
    return f"{count:,} rows, IVF1024,PQ16"


def load(folder: Path) -> str:
    from aurank.embedding.embedded import Embedded

    return f"{len(Embedded.load(folder).labels):,} rows"


STEPS = {"load": load, "evaluate, all": partial(evaluate, split="all"), "evaluate, a split": evaluate}
STEPS["index"] = index_all


def measured(name: str, folder: Path) -> None:
    import aurank.commands
    import aurank.embedding.index_folder  # noqa: F401

    peak, before, ended = 0.0, resident_megabytes("RssAnon"), threading.Event()

    def watch() -> None:
        nonlocal peak
        while not ended.wait(0.01):
            peak = max(peak, resident_megabytes("RssAnon"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    (seconds, _), said = timed(STEPS[name], folder)
    ended.set()
    watcher.join()
    own, resident = max(0.0, peak - before), resident_megabytes("VmHWM")
    print(f"{name:<20} {seconds:8.1f} s   own {own:7.0f} MB   resident {resident:7.0f} MB   {said}", flush=True)


def main() -> None:
    parser = parser_of(__doc__, rows=1_000_000, dim=64, parts=4, queries=10_000)
    parser.add_argument("--folder", type=Path, required=True)
    given = parser.parse_args()
    if not (given.folder / "index.parquet").exists():
        write(given.folder, given.rows, given.dim, given.parts, given.queries)
    size = sum(path.stat().st_size for path in given.folder.iterdir()) / 2**20
    print(f"{given.folder}: {size:,.0f} MB on disk; imports take {resident_megabytes('VmRSS'):.0f} MB here")
    context = multiprocessing.get_context("spawn")
    for name in STEPS:
        process = context.Process(target=measured, args=(name, given.folder))
        process.start()
        process.join()
        if process.exitcode:
            sys.exit(process.exitcode)


if __name__ == "__main__":
    main()
