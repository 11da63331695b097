"""Commands that train, that look at configurations, and that make something of a trained model."""

import json
import math
import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table

from aurank.cli.app import app
from aurank.cli.drawing import bar, console, draw_measuring, draw_training, keep_baselines, listening, stderr_console
from aurank.cli.options import (
    AsJson,
    Baselines,
    ConfigFile,
    Drawn,
    Overrides,
    argument,
    claiming,
    measuring,
    option,
    reads,
)
from aurank.errors import UserError
from aurank.extras import require_libraries
from aurank.files import require_absent, write_text
from aurank.sizes import seconds

if TYPE_CHECKING:
    from aurank.embedding import ImageSelection


def _free_to_train(given: dict[str, Any]) -> None:
    from aurank.embedding.named import require_usable

    if "MASTER_ADDR" not in os.environ and not given["dry_run"]:  # of several processes, training looks in the first
        require_usable(given["out"] or Path("runs") / Path(given["config"]).stem, given["resume"])


@app.command()
@claiming(_free_to_train, is_file=None)
def train(
    config: ConfigFile,
    overrides: Overrides = None,
    out: Path | None = option("Folder to write; default: runs/mine for mine.yaml."),
    resume: bool = option("Go on from the last checkpoint in --out; without one, begin.", "--resume", default=False),
    dry_run: bool = option("Build everything, run two batches, write nothing.", "--dry-run", default=False),
    baselines: Baselines = False,
) -> None:
    """Train an embedding from a configuration.

    --out gets the checkpoints, metrics.jsonl, and report.json of the test split. aurank ls lists what is shipped.

    \b
    aurank train digits/soprc --out runs/digits
    aurank train mine.yaml optim.lr=3e-4 train.steps=600 --out runs/mine
    aurank train mine.yaml --out runs/mine --resume
    """
    from aurank.commands import measure_baselines
    from aurank.embedding.image_text_pairs import describe_groups
    from aurank.training import read_config, rehearse, train

    settings = read_config(config, overrides or [])
    if dry_run:
        if baselines:
            raise UserError("--baselines has no use with --dry-run, which measures nothing: give one of them")
        console.say(rehearse(settings))
        return
    with draw_training() as listener:
        result = train(settings, out or Path("runs") / Path(config).stem, resume, listener=listener)
    if result.is_main:
        if left_out := ", ".join(f"{count} of {split}" for split, count in result.skipped.items() if count):
            stderr_console.say(f"skipped, unreadable: {left_out}")
        if result.stopped_by is not None:
            text = f"stopped by a signal after step {result.steps}; everything is saved, go on with --resume"
            stderr_console.say(text)
    if result.stopped_by is not None:
        raise SystemExit(128 + result.stopped_by)
    if not result.is_main:
        return
    if result.two_way:
        images = [] if result.report is None else [f"images with each other\n{result.report}"]
        console.say(describe_groups(result.two_way, *images))
    elif result.report is not None:
        console.say(result.report)
    if baselines and result.report is not None:
        keep_baselines(measure_baselines(f"aurank:{result.out / 'best.safetensors'}", result.report), result.out)
    elif baselines:
        stderr_console.say("--baselines: left out, as no report on images found by images was made")
    console.say(f"written to {result.out}")


@app.command()
def benchmark(
    file: Path = argument(
        "A YAML file of methods, or lines.jsonl of a benchmark.", "FILE", default=..., callback=reads
    ),
    out: Path | None = option("Folder of its results, which processes and machines may share."),
    workers: int = option("Processes that work at a time.", default=1, min=1),
    limit: str | None = option("Begin nothing that may end after so long, such as 2h."),
    table: bool = option("Print the table of what is done; train nothing.", "--table", default=False),
    allow_dirty: bool = option("Run although the package has uncommitted changes.", "--allow-dirty", default=False),
) -> None:
    """Compare methods over seeds, settings and class splits.

    Each training is done once, and kept: the same command goes on. --out gets benchmark.html, tables in Markdown and
    LaTeX, and lines.jsonl, with the average precision of each class.

    \b
    aurank benchmark mine.yaml --out compared --limit 2h
    aurank benchmark compared/lines.jsonl --table
    """
    from aurank.commands import run_benchmark
    from aurank.commands.benchmarks.benchmark import BenchmarkRun
    from aurank.reporting.benchmark_page import blocks_of, read_tables, to_markdown_tables

    collected = file.suffix == ".jsonl"
    if collected != (out is None):
        raise UserError("--out goes with a YAML file of methods, and is needed there: the folder of the results")
    if out is None:
        console.say(to_markdown_tables(read_tables(file)))
        return
    if table:
        before = BenchmarkRun(file, out)
        if not before.done:
            raise UserError(f"{out} holds no results of {file} yet: leave --table out, or correct the folder")
        console.say(to_markdown_tables(blocks_of(before.collect())))
        console.say(f"\n{before.done} of {before.total} units are done")
        return
    try:
        most = math.inf if limit is None else seconds(limit)
    except ValueError as error:
        raise UserError(f"--limit: {error}") from None
    with bar("benchmark", at_once=True) as (_, show):

        def draw(unit: object, line: dict[str, Any], done: int, total: int) -> None:
            value = line.get("error") or f"mAUPRC {line.get('mauprc', line.get('val_mauprc'))}"
            text = f"{done} of {total}: {unit}: {value}, {line['seconds']} s"
            show(text, completed=done, total=total, note=str(unit), due=True)

        try:
            complete = run_benchmark(file, out, workers=workers, limit=most, allow_dirty=allow_dirty, listener=draw)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("the same command goes on") from None
    left = "" if complete else "; not all is done: the same command goes on"
    console.say(f"written to {out / 'benchmark.html'}{left}")


@app.command()
def tune(
    config: ConfigFile,
    overrides: Overrides = None,
    out: Path | None = option("Folder of the search; default: runs/tune-mine for mine.yaml."),
    trials: int = option("Trials in all, over all processes that share --out.", default=40, min=1),
    folds: int = option("Parts of the training classes, each held out once.", default=3, min=2),
    by: str = option("What a fold holds out whole: class or super_category.", default="class"),
    ranges: Path | None = option("YAML file of ranges in place of the declared ones, or beside them.", callback=reads),
    seed: int = option("Seed of the folds and the search.", default=0, min=0),
    only_list: bool = option("List the ranges, search nothing.", "--list", default=False),
) -> None:
    """Search settings by validation on held-out classes.

    The first trial is the configuration itself. The same command goes on with a search, also from other processes.
    --out gets best.yaml to train with, and the page tune.html.

    \b
    aurank tune mine.yaml --trials 40 --out runs/search
    aurank tune mine.yaml --list
    aurank train runs/search/best.yaml --out runs/best
    """
    if by not in ("class", "super_category"):
        raise UserError(f"--by {by!r}: expected class or super_category")
    require_libraries("aurank tune", "optuna")
    from aurank.commands import tune
    from aurank.commands.tune import read_ranges, searched_ranges, value_of
    from aurank.training import read_config

    settings = read_config(config, overrides or [])
    others = {} if ranges is None else read_ranges(ranges)
    if only_list:
        table = Table("setting", "range", "now", box=None)
        for key, each in searched_ranges(settings, others).items():
            table.add_row(key, str(each), json.dumps(value_of(settings, key)))
        console.print(table)
        return

    def show(line: dict[str, Any]) -> None:
        progress.stop()  # until the next step
        value, best = ("" if each is None else f"{each:.4f}" for each in (line["value"], line["best"]))
        short = " ".join(f"{key.rpartition('.')[2]}={text}" for key, text in line["settings"].items())
        console.say(f"trial {line['number']} of {trials}: {value or line['state']}, best {best}  {short}")
        if line["error"]:
            stderr_console.say(line["error"])

    out = out or Path("runs") / f"tune-{Path(config).stem}"
    given: Any = {"trials": trials, "folds": folds, "by": by, "ranges": others, "seed": seed}
    try:
        with bar("searching") as (progress, draw):
            found = tune(settings, out, listener=show, progress=listening(draw), **given)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("the same command goes on") from None
    console.say(f"best of {found.trials}: mAUPRC {found.value:.4f} in validation, {' '.join(found.overrides)}")
    if found.at_end:
        console.say(f"at an end of its range, beyond which there may be better ones: {', '.join(found.at_end)}")
    console.say(f"written to {out}: best.yaml to train with, tune.html to look at")


@app.command()
def profile(
    config: ConfigFile,
    overrides: Overrides = None,
    steps: int = option("Steps to measure, after a warm-up.", default=50, min=1),
    trace: Path | None = option("A trace (.json) to write, for Chrome or Perfetto.", suffix=".json"),
    as_json: AsJson = False,
) -> None:
    """Tell where the time of a training step goes.

    Trains for some steps, writes nothing but the trace, and says what to change.

    \b
    aurank profile omniglot/soprc
    aurank profile mine.yaml data.workers=4 --steps 20 --trace trace.json
    """
    from aurank.training import profile_training, read_config

    settings = read_config(config, overrides or [])
    with draw_measuring({}) as running:
        found = profile_training(settings, steps=steps, trace=trace, listener=running.listener)
    if not found.is_main:
        return
    if as_json:
        typer.echo(json.dumps(found.to_json(), indent=1))
        return
    console.say(found)
    if trace is not None:
        console.say(f"written to {trace}")


@app.command()
@claiming()
def demo(out: Path = option("Folder for demo.json and the run.", default=Path("runs/demo"))) -> None:
    """Train on scikit-learn's digits, in half a minute.

    Prints how the model compares with raw pixels and with the untrained network.

    \b
    aurank demo
    """
    from aurank.commands.demo import demo

    with draw_training() as listener:
        results, stopped_by = demo(out, listener=listener)
    if stopped_by is not None:
        stderr_console.say("stopped by a signal; everything is saved, the same command goes on")
        raise SystemExit(128 + stopped_by)
    table = Table("test digits", "mAUPRC", "Recall@1", title="aurank demo")
    for name, metrics in results.items():
        table.add_row(name.replace("_", " "), f"{metrics['mauprc']:.4f}", f"{metrics['recall@1']:.4f}")
    console.print(table)
    console.say(f"written to {out / 'demo.json'}")
    shown = shlex.join(["aurank", "evaluate", "--model", f"aurank:{out / 'run/best'}", "--out", str(out / "measured")])
    console.say(f"next, a page to look at: {shown}")


@app.command()
@claiming()
def average(
    runs: list[str] = argument("Folders of runs, or DIR/best, DIR/last.", "RUN", default=...),
    out: Path = option("Folder to make, with best.safetensors in it.", default=...),
) -> None:
    """Average the weights of several trainings of one network.

    They began at one network and differ in their training alone, such as seed, loss or rate. What is written is
    loaded, measured, searched with and exported like the best of a run.

    \b
    aurank average runs/first runs/second runs/third --out runs/average
    aurank evaluate --model aurank:runs/average/best --out measured
    """
    from aurank.commands import average_models

    written = average_models(runs, out)
    console.say(f"written to {out}: {written.name}, the average of {len(runs)} models")


def _free_to_export(given: dict[str, Any]) -> None:
    from aurank.embedding.named import require_checkpoint, require_export, resolve_checkpoint

    require_export(*(given[name] for name in ("to", "out")), int8=given["int8"], overwrite=given["overwrite"])
    require_checkpoint(resolve_checkpoint(given["checkpoint"].removeprefix("aurank:")))


def _is_file(given: dict[str, Any]) -> bool:
    from aurank.embedding.named import export_names

    return export_names(given["to"], given["out"]).is_file


@app.command()
@measuring("data", "split", run=("batch", "device"))
@claiming(_free_to_export, is_file=_is_file)
def export(
    checkpoint: str = argument("DIR/best of a run, such as runs/mine/best.", default=...),
    *,
    to: str = option("onnx, or hf (or timm), a folder that timm loads.", default=...),
    out: Path = option("Folder to make, of the model, README.md and export.json; or an .onnx file.", default=...),
    int8: bool = option("Write an ONNX graph of 8 bits too, and say what it loses.", "--int8", default=False),
    licence: str | None = option("Licence named in README.md, such as mit.", "--license"),
    overwrite: bool = option("Replace an earlier export in --out.", "--overwrite", default=False),
    images: "ImageSelection",
    drawn: Drawn,
) -> None:
    """Write a trained model for use elsewhere, checked on images.

    The file must give the checkpoint's embeddings of the test images, or those of --data; else nothing is written.

    \b
    aurank export runs/mine/best --to onnx --int8 --out exported/onnx
    aurank export runs/mine/best --to hf --license mit --out exported/timm
    """
    from aurank.commands import export_model

    with drawn() as running:
        given = {"images": images, "int8": int8, "licence": licence, "overwrite": overwrite}
        exported = export_model(checkpoint, to, out, running=running, **given)  # type: ignore[arg-type]
    console.say(exported)


@app.command()
def config(config: ConfigFile, overrides: Overrides = None) -> None:
    """Print a configuration resolved, or every error in it.

    No data is read.

    \b
    aurank config mine.yaml optim.lr=1e-3
    """
    from aurank.config import dump_config
    from aurank.training import read_config

    console.print(dump_config(read_config(config, overrides or [])), end="", highlight=False, markup=False)


@app.command()
def ls(wanted: str = argument("Only those with this text in their line.", "FILTER", default="")) -> None:
    """List the shipped configurations.

    \b
    aurank ls soprc
    """
    from aurank.config import shipped_configs

    table = Table("name", "about", box=None)
    for name, path in sorted(shipped_configs().items()):
        about = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("#").strip()
        if wanted.lower() in f"{name}\n{about}".lower():
            table.add_row(name, about)
    if not table.rows:
        raise UserError(f"no shipped configuration has {wanted!r} in its name or first line; aurank ls lists them all")
    console.print(table)


@app.command()
def cp(
    name: str = argument("A name printed by aurank ls.", default=...),
    to: Path = argument("The file or folder to write to.", default=...),
) -> None:
    """Copy a shipped configuration, to change it.

    \b
    aurank cp digits/soprc mine.yaml
    """
    from aurank.config import shipped_configs

    shipped = shipped_configs()
    if name not in shipped:
        raise UserError(f"no shipped configuration {name!r}; expected one of {', '.join(shipped)}")
    target = to / f"{Path(name).name}.yaml" if to.is_dir() else to
    require_absent(target)
    text = shipped[name].read_text(encoding="utf-8")
    head = "".join(re.findall(r"\A(?:#.*\n)*", text))
    # What was measured is of the shipped file alone; a line that goes on begins with three blanks.
    kept = re.sub(r"(?m)^# (?:Command|Result|To beat|Hardware|Chosen): .*\n(?:#   .*\n)*", "", head)
    kept += f"# Command:  {shlex.join(['aurank', 'train', str(target)])}   (copied from {name})\n"
    if not target.parent.is_dir():
        raise UserError(f"cannot write {target}: there is no folder {target.parent}; name another place")
    write_text(target, kept + text.removeprefix(head))
    console.say(f"{name} copied to {target}")
