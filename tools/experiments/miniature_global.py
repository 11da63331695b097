"""Miniatures of the experiments of SogCLR, iSogCLR, EMC² and NeuCLIP: what they claim, measured again.

    python tools/experiments/miniature_global.py run [EXPERIMENT …] [--names A,B] [--seeds 1] [--limit-minutes 60]
                                                     [--workers 1] [--out DIR]
    python tools/experiments/miniature_global.py plots      # DIR/*.png of what there are results of
    python tools/experiments/miniature_global.py tables     # the marked blocks of docs/miniatures_global/tables.txt

Experiments: convergence (EMC², Fig. 7), representations (SogCLR, Table 2 and its ablations), temperatures (iSogCLR,
Fig. 5), normalizers (NeuCLIP, Fig. 2c), supervised (global losses beside SOPRC), start (the first epochs of the
normaliser) and steady (its estimators at fixed weights). They read Omniglot and Grocery below $AURANK_DATA.

`run` carries out what DIR/runs.jsonl has no line of, one run or --workers runs at a time, and may be stopped and
started again at any time; only not twice at once on one DIR. DIR is docs/miniatures_global unless --out names another.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from global_miniatures import convergence, normalizers, start, steady, temperatures, training
from global_miniatures.queue import carry_out_all
from global_miniatures.store import Line, Run, Store

ROOT = Path(__file__).resolve().parents[2]
Experiment = tuple[Callable[[int], Iterator[Run]], Callable[[Run, Path], Line | None]]

EXPERIMENTS: dict[str, Experiment] = {
    "convergence": (convergence.runs, lambda run, work: convergence.carry_out(run)),
    "representations": (training.representations, training.carry_out),
    "temperatures": (temperatures.runs, temperatures.carry_out),
    "normalizers": (normalizers.runs, lambda run, work: normalizers.carry_out(run)),
    "supervised": (training.supervised, training.carry_out),
    "start": (start.runs, lambda run, work: start.carry_out(run)),
    "steady": (steady.runs, lambda run, work: steady.carry_out(run)),
}


def carry_out(run: Run, work: Path) -> Line | None:
    """What a run of any experiment came to."""
    return EXPERIMENTS[run.experiment][1](run, work)


def run_all(given: argparse.Namespace) -> None:
    """Nothing; carries out what has no line yet, and stops where the next run might end after the limit."""
    store, started = Store(given.out / "runs.jsonl"), time.monotonic()
    for name in given.experiments or EXPERIMENTS:
        limits = {"started": started, "limit_minutes": given.limit_minutes, "workers": given.workers}

        def wanted(name: str = name) -> Iterator[Run]:
            named = (run for run in EXPERIMENTS[name][0](given.seeds) if run.name in (given.names or [run.name]))
            return (run for run in named if name != "start" or start.is_wanted(run, store))

        if not carry_out_all(store, wanted, carry_out, **limits):
            return
    print("every run is there", flush=True)


def plots(given: argparse.Namespace) -> None:
    """Draws what there are results of."""
    from global_miniatures.plots import draw_all

    for path in draw_all(Store(given.out / "runs.jsonl"), given.out):
        print(path)


def tables(given: argparse.Namespace) -> None:
    """Writes the marked blocks."""
    from global_miniatures.tables import write_tables

    write_tables(Store(given.out / "runs.jsonl"), given.page)


def known(name: str) -> str:
    """Return the name of an experiment, or raise what argparse tells."""
    if name not in EXPERIMENTS:
        raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(EXPERIMENTS)}")
    return name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, do in {"run": run_all, "plots": plots, "tables": tables}.items():
        command = commands.add_parser(name)
        command.set_defaults(do=do)
        command.add_argument("--out", type=Path, default=ROOT / "docs" / "miniatures_global")
        if name == "run":
            command.add_argument("experiments", nargs="*", type=known, metavar="EXPERIMENT")
            command.add_argument("--seeds", type=int, default=1, help="seeds 0 … N − 1")
            command.add_argument("--names", type=lambda text: text.split(","), help="only these rows: sogclr,emc2")
            command.add_argument("--limit-minutes", type=float, default=float("inf"))
            command.add_argument("--workers", type=int, default=1, help="runs at a time, each in a process of its own")
        if name == "tables":
            command.add_argument("--page", type=Path, default=ROOT / "docs" / "miniatures_global" / "tables.txt")
    given = parser.parse_args()
    given.do(given)


if __name__ == "__main__":
    main()
