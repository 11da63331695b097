"""Trainings that compare losses, in a few experiments: results, tables and pictures.

    python tools/experiment.py features grocery --weights FILE    # once: the embeddings, by aurank embed
    python tools/experiment.py run grocery [--methods soprc …] [--rates 1e-4 …] [--seeds 10] [--choosing 2]
                                           [--limit-minutes 60] [--workers 1]   # DIR/grocery.jsonl, a line a run
    python tools/experiment.py run grocery_tuned --weights FILE
    python tools/experiment.py table grocery [--page docs/benchmark/tables.txt]   # printed, or into its marked blocks
    python tools/experiment.py picture grocery                    # DIR/grocery.png

Experiments: grocery (128 pixels) and omniglot (64 pixels), linear heads on saved features; grocery_tuned, the whole
network fine-tuned; omniglot_random, 32 pixels from random weights; omniglot_200, 200 steps of it; soprc_parts, the
same with parts of SOPRC and other batches. All have class-disjoint test images, and are read below $AURANK_DATA. The
learning rate of a method is the one with the best mean validation mAUPRC, on classes held out of training, over the
first seeds (`--choosing`); every seed holds out others. Fine-tuning holds out super-categories for that, and takes
all training classes at the rate it has chosen. `run` carries out what DIR has no line of, --workers at a time, and
may be stopped and started again at any time; not twice at once on one experiment. The features lie in --features,
default $AURANK_DATA; DIR is docs/benchmark unless --out names another.
"""

import argparse
import os
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(1, str(ROOT / "tools"))

from experiments.methods import EXPERIMENTS, FEATURES, METHODS  # noqa: E402
from experiments.report import FROZEN, Plan, cost, picture, table, write_tables  # noqa: E402
from experiments.runs import Line, Run, Store, carry_out_all, train  # noqa: E402

import aurank  # noqa: E402
from aurank.embedding.embed import Embedded  # noqa: E402
from aurank.errors import UserError  # noqa: E402
from aurank.evaluation import PostProcessing  # noqa: E402

MODEL = "timm:tf_efficientnet_lite0"


def carry_out(run: Run, work: Path, *, features: Path, weights: Path | None = None) -> Line | None:
    """Return the line of one run; where embeddings (a folder) and weights lie is no part of what a run is."""
    about = EXPERIMENTS[run.experiment]
    if run.name in FROZEN and about.features is not None:
        return frozen(features / about.features, run.settings["steps"])
    if about.weights and weights is None:
        raise UserError(f"{run.experiment} trains a published network: give its --weights")
    places = [f"model.weights={weights}"] if about.weights else [f"data.root={features}"] if about.features else []
    return train(replace(run, settings={**run.settings, "overrides": [*run.settings["overrides"], *places]}), work)


def frozen(file: Path, steps: str) -> Line:
    """Return the metrics of the test rows of a file, behind steps fitted on its training rows."""
    held = Embedded.load(file)
    if held.splits is None:
        raise UserError(f"{file} holds no array 'splits'; write it with aurank embed --split all")
    train_rows, test_rows = (held.splits == split for split in ("train", "test"))
    given = {"postprocess": PostProcessing.parse(steps).fit(held.embeddings[train_rows])} if steps else {}
    report = aurank.evaluate(held.embeddings[test_rows], held.labels[test_rows], recall_at=(1, 10), **given)
    return {name: report.metrics[name] for name in ("mauprc", "recall@1", "recall@10")}


def write_features(given: argparse.Namespace) -> None:
    file = EXPERIMENTS[given.experiment].features
    if file is None:
        raise SystemExit(f"{given.experiment} takes no features")
    about = FEATURES[file]
    reader, _, archive = about.images[0].partition(":")
    model = f"{MODEL},weights={given.weights},input_size={about.size}"
    data = f"{reader}:{Path(os.environ.get('AURANK_DATA', 'data')) / archive}"
    command = ["embed", "--model", model, "--data", data, "--split", "all", "--out", str(given.features / file)]
    subprocess.run([sys.executable, "-m", "aurank", *command, *about.images[1:]], check=True)


def use_results(given: argparse.Namespace) -> None:
    about, store = EXPERIMENTS[given.experiment], Store(given.out / f"{given.experiment}.jsonl")
    seeds, choosing = given.seeds or about.seeds, about.choosing if given.choosing is None else given.choosing
    if not choosing and len(given.rates or about.rates) > 1:
        raise SystemExit("several rates, and no seed to choose one: give --choosing")
    plan = Plan(given.experiment, given.methods or list(about.methods), seeds, min(choosing, seeds), given.rates)
    if given.command == "run":
        one = partial(carry_out, features=given.features.resolve(), weights=given.weights and given.weights.resolve())
        limits = {"started": time.monotonic(), "limit_minutes": given.limit_minutes, "workers": given.workers}
        if carry_out_all(store, lambda: plan.runs(store), one, **limits):
            print("every run is there", flush=True)
    elif given.command == "picture":
        path = given.out / f"{given.experiment}.png"
        picture(plan, store).savefig(path, format="png")
        print(path)
    elif given.page is not None:
        write_tables(plan, store, given.page)
    else:
        print(f"{table(plan, store)}\n\n{cost(plan, store)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    names = sorted({*METHODS, *(name for each in EXPERIMENTS.values() for name in each.methods)})
    for name in ("features", "run", "table", "picture"):
        command = commands.add_parser(name)
        command.set_defaults(do=write_features if name == "features" else use_results)
        command.add_argument("experiment", choices=list(EXPERIMENTS))
        command.add_argument("--features", type=Path, default=Path(os.environ.get("AURANK_DATA", "data")))
        if name in ("features", "run"):
            text = "of timm's tf_efficientnet_lite0"
            command.add_argument("--weights", type=Path, required=name == "features", help=text)
        if name == "features":
            continue
        command.add_argument("--out", type=Path, default=ROOT / "docs" / "benchmark")
        command.add_argument("--methods", nargs="+", choices=names, metavar="METHOD")
        command.add_argument("--rates", nargs="+", type=float, help="default: the experiment's")
        command.add_argument("--seeds", type=int, help="seeds 0 … N − 1")
        command.add_argument("--choosing", type=int, help="how many of them choose the rate")
        if name == "run":
            command.add_argument("--limit-minutes", type=float, default=float("inf"))
            command.add_argument("--workers", type=int, default=1, help="runs at a time, each in a process of its own")
        if name == "table":
            command.add_argument("--page", type=Path, help="a page with the markers of this experiment")
    given = parser.parse_args()
    given.do(given)


if __name__ == "__main__":
    main()
