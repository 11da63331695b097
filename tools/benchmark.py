"""Every ranking, pair, proxy, margin and global loss in a few experiments: tables and pictures of the trainings.

    python tools/benchmark.py features grocery --weights FILE    # once: the embeddings, by aurank embed
    python tools/benchmark.py run grocery [--methods soprc …] [--rates 1e-4 …] [--seeds 10] [--choosing 2]
                                          [--limit-minutes 60] [--workers 1]   # DIR/grocery.jsonl, a line a run
    python tools/benchmark.py run grocery_tuned --weights FILE
    python tools/benchmark.py table grocery [--page docs/benchmark/tables.txt]   # printed, or into its marked blocks
    python tools/benchmark.py picture grocery                    # DIR/grocery.png
    python tools/benchmark.py curves grocery                     # runs, then DIR/grocery_curves.png

Experiments: grocery (128 pixels) and omniglot (64 pixels), linear heads on saved features; grocery_tuned, the whole
network fine-tuned; omniglot_random, 32 pixels from random weights. All have class-disjoint test images, and are read
below $AURANK_DATA. The learning rate of a method is the one with the best mean validation mAUPRC, on classes held out
of training, over the first seeds (`--choosing`); every seed holds out others. Fine-tuning holds out super-categories
for that, and takes all training classes at the rate it has chosen. `run` carries out what DIR has no line of, --workers
at a time, and may be stopped and started again at any time; not twice at once on one experiment. The features lie in
--features, default $AURANK_DATA; DIR is docs/benchmark unless --out names another.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(1, str(ROOT / "tools" / "experiments"))

from evidence.methods import EXPERIMENTS, FEATURES, METHODS  # noqa: E402
from evidence.runs import Plan, carry_out  # noqa: E402
from global_miniatures.queue import carry_out_all  # noqa: E402
from global_miniatures.store import Run, Store  # noqa: E402

MODEL = "timm:tf_efficientnet_lite0"


def features(given: argparse.Namespace) -> None:
    """Writes the embeddings of a data set."""
    file = EXPERIMENTS[given.experiment].features
    if file is None:
        raise SystemExit(f"{given.experiment} takes no features")
    about = FEATURES[file]
    reader, _, archive = about.images[0].partition(":")
    root = Path(os.environ.get("AURANK_DATA", "data"))
    model = f"{MODEL},weights={given.weights},input_size={about.size}"
    data = f"{reader}:{root / archive}"
    command = ["embed", "--model", model, "--data", data, "--split", "all", "--out", str(given.features / file)]
    subprocess.run([sys.executable, "-m", "aurank", *command, *about.images[1:]], check=True)


def plan_of(given: argparse.Namespace) -> Plan:
    """What the options ask for."""
    about = EXPERIMENTS[given.experiment]
    seeds, rates = given.seeds or about.seeds, given.rates or about.rates
    choosing = about.choosing if given.choosing is None else given.choosing
    if not choosing and len(rates) > 1:
        raise SystemExit(f"{len(rates)} rates, and no seed to choose one: give --choosing")
    return Plan(given.experiment, given.methods, rates, seeds, min(choosing, seeds))


def store_of(given: argparse.Namespace) -> Store:
    """What was measured."""
    return Store(given.out / f"{given.experiment}.jsonl")


def carry_out_named(given: argparse.Namespace, store: Store, runs: Callable[[], Iterator[Run]]) -> bool:
    """Whether every run has a line now."""
    one = partial(carry_out, features=given.features.resolve(), weights=given.weights and given.weights.resolve())
    limits = {"started": time.monotonic(), "limit_minutes": given.limit_minutes, "workers": given.workers}
    return carry_out_all(store, runs, one, **limits)


def run(given: argparse.Namespace) -> None:
    """Carries out the runs that have no line."""
    plan, store = plan_of(given), store_of(given)
    if carry_out_named(given, store, lambda: plan.runs(store)):
        print("every run is there", flush=True)


def table(given: argparse.Namespace) -> None:
    """Prints the table, or writes it into the page."""
    from evidence.report import cost, table, write_tables

    plan, store = plan_of(given), store_of(given)
    if given.page is not None:
        write_tables(plan, store, given.page)
    else:
        print(f"{table(plan, store)}\n\n{cost(plan, store)}")


def picture(given: argparse.Namespace) -> None:
    """Draws the picture."""
    from evidence.report import picture
    from miniatures.plots import save

    print(save(picture(plan_of(given), store_of(given)), given.out / f"{given.experiment}.png"))


def curves(given: argparse.Namespace) -> None:
    """Carries out the runs of the curves that have no line, of the first methods of the table, and draws them."""
    from evidence.curves import all_runs, first, picture
    from miniatures.plots import save

    plan, store = plan_of(given), store_of(given)
    methods = first(plan, store)
    if carry_out_named(given, store, lambda: all_runs(plan, store, methods)):
        print(save(picture(plan, store, methods), given.out / f"{given.experiment}_curves.png"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, do in {"features": features, "run": run, "curves": curves, "table": table, "picture": picture}.items():
        command = commands.add_parser(name)
        command.set_defaults(do=do)
        command.add_argument("experiment", choices=list(EXPERIMENTS))
        command.add_argument("--features", type=Path, default=Path(os.environ.get("AURANK_DATA", "data")))
        if name in ("features", "run", "curves"):
            command.add_argument(
                "--weights", type=Path, required=name == "features", help="of timm's tf_efficientnet_lite0"
            )
        if name == "features":
            continue
        command.add_argument("--out", type=Path, default=ROOT / "docs" / "benchmark")
        command.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS), metavar="METHOD")
        command.add_argument("--rates", nargs="+", type=float, help="default: the experiment's")
        command.add_argument("--seeds", type=int, help="seeds 0 … N − 1")
        command.add_argument("--choosing", type=int, help="how many of them choose the rate")
        if name in ("run", "curves"):
            command.add_argument("--limit-minutes", type=float, default=float("inf"))
            command.add_argument("--workers", type=int, default=1, help="runs at a time, each in a process of its own")
        if name == "table":
            command.add_argument("--page", type=Path, help="a page with the markers of this experiment")
    given = parser.parse_args()
    given.do(given)


if __name__ == "__main__":
    main()
