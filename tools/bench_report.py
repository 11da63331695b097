"""What a report costs beside the evaluation that it shows: time, memory and bytes.

    python tools/bench_report.py [--rows 60502] [--dim 512] [--per-class 5] [--neighbours 10]

Synthetic embeddings, each its own query, with small random pictures. Each line is a process of its own: the evaluation
alone, with lists of neighbours, and with lists, report.json, per_query.parquet, per_class.csv and report.html written,
in which the doctor's findings are. Growth: of its resident memory above what it held with the embeddings made.
"""

import argparse
import io
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from measuring import alone, forget_peak, parser_of, resident_megabytes

import aurank
from aurank.commands.report import Measurement, evaluation_page
from aurank.data import ImageSource, build_manifest
from aurank.embedding.embedded import described
from aurank.reporting.results import write_results

STEPS = ("evaluation", "with neighbours", "with all files")


class Drawn(ImageSource):
    where = "memory"

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def content(self, path: str) -> bytes:
        file = io.BytesIO()
        np.save(file, np.random.default_rng(int(path.split(".")[0])).integers(0, 256, (64, 64, 3), dtype=np.uint8))
        return file.getvalue()

    def exists(self, path: str) -> bool:
        return int(path.split(".")[0]) < self.rows

    def names(self) -> list[str]:
        return [f"{row}.png" for row in range(self.rows)]


def measure(step: str, rows: int, dim: int, per_class: int, neighbours: int) -> dict[str, float]:
    rng = np.random.default_rng(0)
    labels = np.arange(rows) // per_class
    embeddings = rng.standard_normal((int(labels[-1]) + 1, dim), dtype=np.float32)[labels]
    embeddings += 1.5 * rng.standard_normal((rows, dim), dtype=np.float32)
    source = Drawn(rows)
    splits, classes = ["test"] * rows, [f"class {label}" for label in labels]
    images = build_manifest("drawn", source, paths=source.names(), labels=classes, splits=splits)
    embedded = described(images, np.arange(rows), embeddings)
    aurank.evaluate(embeddings[:500], labels[:500], neighbours=3)  # compiles
    forget_peak()
    before, start, worked = resident_megabytes("VmRSS"), time.perf_counter(), time.process_time()
    report = embedded.evaluate(neighbours=0 if step == STEPS[0] else neighbours)
    size = 0
    if step == STEPS[2]:
        with tempfile.TemporaryDirectory() as folder:
            page = evaluation_page(report, Measurement("drawn", embedded, images))
            write_results(report, Path(folder), page=page)
            size = (Path(folder) / "report.html").stat().st_size
    seconds = {"s": time.perf_counter() - start, "cpu": time.process_time() - worked}
    return {**seconds, "MB": resident_megabytes("VmHWM") - before, "html": size / 2**20}


def main() -> None:
    parser = parser_of(__doc__, rows=60_502, dim=512, per_class=5, neighbours=10)
    parser.add_argument("--one", choices=STEPS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    sizes = [given.rows, given.dim, given.per_class, given.neighbours]
    if given.one:
        print(json.dumps(measure(given.one, *sizes)))
        return
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {given.rows:,} rows of {given.dim}")
    first = 0.0
    for step in STEPS:
        found = alone(step, given)
        first = first or found["s"]
        page = f"  page {found['html']:.1f} MiB" if found["html"] else ""
        ratio = found["s"] / first
        times = f"{found['s']:7.1f} s  {ratio:5.2f} x evaluation  CPU {found['cpu']:6.1f} s"
        print(f"{step:<16} {times}  growth {found['MB']:6.0f} MB{page}")


if __name__ == "__main__":
    main()
