"""A gallery of the unit rows of bench_gallery in faiss and in a file of milvus-lite: time, memory, disk, recall.

python tools/bench_collection.py --rows 1000000 --out /tmp/galleries
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from bench_gallery import read, write_rows
from measuring import parser_of, resident_megabytes

ENGINES = (
    "faiss Flat",
    "milvus Flat",
    "faiss IVF1024,Flat; nprobe=16",
    "milvus IVF_FLAT,nlist=1024; nprobe=16",
)


@contextmanager
def timed(result: dict[str, float], name: str) -> Iterator[None]:
    """Put the seconds by the clock and of the processor into the result."""
    wall, processor = time.perf_counter(), time.process_time()
    yield
    result[name] = round(time.perf_counter() - wall, 2)
    result[f"{name}, processor"] = round(time.process_time() - processor, 2)


def disk(folder: Path) -> float:
    return round(sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e9, 3)


def walk(engine: str, rows: np.ndarray, queries: np.ndarray, out: Path) -> dict[str, float]:
    """Fill, write, open and search one engine."""
    from aurank.embedding.collection import CollectionRows
    from aurank.embedding.index_folder import IndexedRows
    from aurank.evaluation.index.neighbours import Index
    from aurank.evaluation.postprocessing import by_products

    kind, _, factory = engine.partition(" ")
    result: dict[str, float] = {"GB before": round(resident_megabytes("VmHWM") / 1e3, 2)}
    count = len(rows)
    images = {"source": np.zeros(count, np.int64), "path": np.char.add(np.arange(count).astype(str), ".png")}
    images |= {"class": np.full(count, ""), "sha256": np.full(count, "0" * 64)}
    place = out / engine.partition(",")[0].replace(" ", "-")
    if kind == "faiss":
        with timed(result, "fill"):
            index = Index.build(rows, factory, device="cpu")
            place.mkdir(parents=True)
            index.save(place / "index.faiss")
        with timed(result, "open"):
            found = IndexedRows(images, rows, Index.load(place / "index.faiss", device="cpu"))
    else:
        collection = CollectionRows(f"milvus:{place}.db#rows")
        model = {"name": "none", "weights_sha256": "", "preprocessing": ""}
        about = {"model": model, "sources": [], "distance": "cosine", "dim": rows.shape[1], "factory": factory}
        with timed(result, "fill"):
            collection._describe_by({**about, "seed": 0})
            collection.fill(images, rows, progress=lambda done, total: print(engine, done, end="\r", file=sys.stderr))
            collection.close()
        with timed(result, "open"):
            found = CollectionRows.open(f"milvus:{place}.db#rows")
            assert len(found) == count
    result["GB more"] = round(resident_megabytes("VmHWM") / 1e3 - result["GB before"], 2)
    result["GB on disk"] = disk(place if kind == "faiss" else place.with_name(f"{place.name}.db"))
    one = queries[:1]
    found.nearest(one, 10)
    with timed(result, "a query, ms"):
        for number in range(20):
            found.nearest(queries[number : number + 1], 10)
    result["a query, ms"] = round(result["a query, ms"] * 1000 / 20, 1)
    with timed(result, "100 queries at once"):
        listed = found.nearest(queries[:100], 10)[0]
    true = by_products(queries[:100], rows, 10, np.full(100, -1), np.arange(count), distance="cosine")
    if kind == "milvus":
        paths = found.take(np.unique(listed))["path"].tolist()
        number = {row: int(path.removesuffix(".png")) for row, path in zip(np.unique(listed), paths, strict=True)}
        listed = np.vectorize(number.__getitem__)(listed)
        found.close()
    hits = [len(set(one) & set(other)) for one, other in zip(listed.tolist(), true.tolist(), strict=True)]
    result["recall@10"] = sum(hits) / 1000
    return result


def main() -> None:
    parser = parser_of(__doc__, rows=100_000, dim=128)
    parser.add_argument("--engine", choices=ENGINES)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    if not (given.out / "queries.npy").exists():
        write_rows(given.out, given.rows, 100, given.dim)
    if given.engine is None:
        for engine in ENGINES:  # each in a process of its own, whose memory is its own
            words = ["--rows", str(given.rows), "--dim", str(given.dim), "--out", str(given.out), "--engine", engine]
            subprocess.run([sys.executable, __file__, *words], check=True, env=os.environ)
        return
    sides = read(given.out, "gallery"), read(given.out, "queries")
    print(given.engine, json.dumps(walk(given.engine, *sides, given.out), indent=1), flush=True)


if __name__ == "__main__":
    main()
