"""Miniatures of the experiments of Wen et al. (NeurIPS 2022): what it claims, measured again; results in DIR.

    python tools/experiments/miniature_soprc.py bias      # Figures 1, 4, 5: DIR/bias.json, a minute
    python tools/experiments/miniature_soprc.py claims    # propositions, P2, the start of v: DIR/claims.json
    python tools/experiments/miniature_soprc.py train [--methods soprc smooth_ap] [--seeds 0 1 2] [--limit-minutes 60]
                                              # Tables 1 and 2 on Omniglot below $AURANK_DATA: DIR/results.jsonl
    python tools/experiments/miniature_soprc.py plots     # DIR/*.png of what is there
    python tools/experiments/miniature_soprc.py tables    # blocks of docs/miniatures/tables.txt and docs/results.md

`train` carries out what results.jsonl has no line of, one run after the other, and may be stopped and started again at
any time, elsewhere too; only not twice at once on one DIR. DIR is docs/miniatures unless --out names another.
"""

import argparse
import json
import math
import time
from pathlib import Path

from miniatures import bias, claims
from miniatures.methods import METHODS, SEEDS, STEPS
from miniatures.results import Results
from miniatures.surroundings import surroundings

from aurank.files import write_text

ROOT = Path(__file__).resolve().parents[2]


def measure(given: argparse.Namespace) -> None:
    """Measures, and writes DIR/bias.json or DIR/claims.json."""
    started = time.perf_counter()
    found = {"bias": bias, "claims": claims}[given.command].measure()
    found["surroundings"] = {"seconds": round(time.perf_counter() - started), **surroundings()}
    write_text(given.out / f"{given.command}.json", json.dumps(found, indent=1) + "\n")
    print(f"{given.out / given.command}.json after {found['surroundings']['seconds']} s")


def train(given: argparse.Namespace) -> None:
    """Carries out the runs that results.jsonl has no line of."""
    from miniatures.train import train_all

    results = Results(given.out / "results.jsonl")
    seeds = [SEEDS[0], *(seed for seed in given.seeds if seed != SEEDS[0])]
    train_all(results, given.methods, seeds=seeds, steps=given.steps, limit_minutes=given.limit_minutes)


def tables(given: argparse.Namespace) -> None:
    """Writes the marked blocks."""
    from miniatures.tables import write_tables

    seeds = Results(given.out / "results.jsonl").seeds
    write_tables(given.out, page=given.page, results_page=given.results, seeds=seeds, steps=given.steps)


def plots(given: argparse.Namespace) -> None:
    """Draws what there are results of."""
    from miniatures.plots import draw_all

    for path in draw_all(given.out, seeds=Results(given.out / "results.jsonl").seeds, steps=given.steps):
        print(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    runs = {"bias": measure, "claims": measure, "train": train, "tables": tables, "plots": plots}
    for name, run in runs.items():
        command = commands.add_parser(name)
        command.set_defaults(run=run)
        command.add_argument("--out", type=Path, default=ROOT / "docs" / "miniatures")
        if name in ("train", "tables", "plots"):
            command.add_argument("--steps", type=int, default=STEPS)
        if name == "train":
            command.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS), metavar="METHOD")
            command.add_argument(
                "--seeds", type=int, nargs="+", default=list(SEEDS), help="beside 0, which chooses the learning rates"
            )
            command.add_argument("--limit-minutes", type=float, default=math.inf)
        if name == "tables":
            command.add_argument("--page", type=Path, default=ROOT / "docs" / "miniatures" / "tables.txt")
            command.add_argument("--results", type=Path, default=ROOT / "docs" / "results.md")
    given = parser.parse_args()
    given.run(given)


if __name__ == "__main__":
    main()
