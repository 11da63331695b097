"""Commands that train, that look at configurations, and that make something of a trained model."""

import json
import math
import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from aurank.cli.command import MOST, Call, app, command
from aurank.cli.drawing import bar, console, draw_measuring, draw_training, keep_baselines, listening, stderr_console
from aurank.errors import OptionRule, UserError
from aurank.extras import require_libraries
from aurank.files import require_absent, write_text
from aurank.sizes import seconds


@command(
    app,
    "aurank.training.run.train",
    without=("page",),
    rules=[OptionRule("--dry-run", excludes=("--baselines",), why="it measures nothing")],
)
def train(call: Call, *, out: Path | None = None, dry_run: bool = False, baselines: bool = False) -> None:
    """Train an embedding from a configuration.

    --out gets the checkpoints, metrics.jsonl, and report.json of the test split. aurank ls lists what is shipped.

    aurank train digits/soprc --out runs/digits
    aurank train mine.yaml optim.lr=3e-4 train.steps=600 --out runs/mine
    aurank train mine.yaml --out runs/mine --resume

    Args:
        out: folder to write; default: runs/mine for mine.yaml.
        dry_run: build everything, run two batches, write nothing.
        baselines: measure chance, raw pixels and the untrained network too, into baselines.json.
    """
    out = out or Path("runs") / call["config"].stem
    if dry_run:
        from aurank.training import read_config, rehearse

        console.say(rehearse(read_config(call["config"], call.get("overrides", ()))))
        return
    if "MASTER_ADDR" not in os.environ:  # of several processes, training looks in the first
        from aurank.embedding.locations import require_usable

        require_usable(out, call["resume"])
    with draw_training() as listener:
        result = call(out=out, listener=listener)
    if result.is_main:
        if skipped := ", ".join(f"{count} of {split}" for split, count in result.skipped.items() if count):
            stderr_console.say(f"skipped, unreadable: {skipped}")
        if result.stopped_by is not None:
            text = f"stopped by a signal after step {result.steps}; everything is saved, go on with --resume"
            stderr_console.say(text)
    if result.stopped_by is not None:
        raise SystemExit(128 + result.stopped_by)
    if not result.is_main:
        return
    if result.two_way:
        from aurank.embedding.image_text_pairs import describe_groups

        images = [] if result.report is None else [f"images with each other\n{result.report}"]
        console.say(describe_groups(result.two_way, *images))
    elif result.report is not None:
        console.say(result.report)
    if baselines and result.report is not None:
        from aurank.commands import measure_baselines

        keep_baselines(measure_baselines(f"aurank:{result.out / 'best.safetensors'}", result.report), result.out)
    elif baselines:
        stderr_console.say("--baselines: left out, as no report on images found by images was made")
    console.say(f"written to {result.out}")


@command(app, "aurank.commands.benchmarks.benchmark.run_benchmark")
def benchmark(call: Call, *, out: Path | None = None, limit: str | None = None, table: bool = False) -> None:
    """Compare methods over seeds, settings and class splits.

    Each training is done once, and kept: the same command goes on. --out gets benchmark.html, table.md
    and lines.jsonl, with the average precision of each class.

    aurank benchmark mine.yaml --out compared --limit 2h
    aurank benchmark compared/lines.jsonl --table

    Args:
        out: folder of the results, which processes and machines may share; needed with a YAML file.
        limit: begin nothing that may end after so long, such as 2h.
        table: print the table of what is done; train nothing.
    """
    from aurank.commands.benchmarks.benchmark import BenchmarkRun
    from aurank.reporting.benchmark_page import blocks_of, read_tables, to_markdown_tables

    file = call["file"]
    if (file.suffix == ".jsonl") != (out is None):
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
            complete = call(out=out, limit=most, listener=draw)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("the same command goes on") from None
    left = "" if complete else "; not all is done: the same command goes on"
    console.say(f"written to {out / 'benchmark.html'}{left}")


@command(app, "aurank.commands.tune.tune")
def tune(call: Call, *, out: Path | None = None, ranges: Path | None = None, only_list: bool = False) -> None:
    """Search settings by validation on held-out classes.

    The first trial is the configuration itself. The same command goes on with a search, also from other processes.
    --out gets best.yaml to train with, and the page tune.html.

    aurank tune mine.yaml --trials 40 --out runs/search
    aurank tune mine.yaml --list
    aurank train runs/search/best.yaml --out runs/best

    Args:
        out: folder of the search; default: runs/tune-mine for mine.yaml.
        ranges: YAML file of ranges in place of the declared ones, or beside them.
        only_list: list the ranges, search nothing.
    """
    require_libraries("aurank tune", "optuna")
    from aurank.commands.tune import read_ranges, searched_ranges, value_of

    file_ranges = {} if ranges is None else read_ranges(ranges)
    if only_list:
        from aurank.training import read_config

        settings = read_config(call["config"], call.get("overrides", ()))
        table = Table("setting", "range", "now", box=None)
        for key, each in searched_ranges(settings, file_ranges).items():
            table.add_row(key, str(each), json.dumps(value_of(settings, key)))
        console.print(table)
        return

    def show(line: dict[str, Any]) -> None:
        progress.stop()  # until the next step
        value, best = ("" if each is None else f"{each:.4f}" for each in (line["value"], line["best"]))
        short = " ".join(f"{key.rpartition('.')[2]}={text}" for key, text in line["settings"].items())
        console.say(f"trial {line['number']} of {call['trials']}: {value or line['state']}, best {best}  {short}")
        if line["error"]:
            stderr_console.say(line["error"])

    out = out or Path("runs") / f"tune-{call['config'].stem}"
    try:
        with bar("searching") as (progress, draw):
            tuned = call(out=out, ranges=file_ranges, listener=show, progress=listening(draw))
    except KeyboardInterrupt:
        raise KeyboardInterrupt("the same command goes on") from None
    console.say(f"best of {tuned.trials}: mAUPRC {tuned.value:.4f} in validation, {' '.join(tuned.overrides)}")
    if tuned.at_end:
        console.say(f"at an end of its range, beyond which there may be better ones: {', '.join(tuned.at_end)}")
    console.say(f"written to {out}: best.yaml to train with, tune.html to look at")


@command(app, "aurank.training.profile.profile_training")
def profile(call: Call, *, as_json: bool = False) -> None:
    """Tell where the time of a training step goes.

    Trains for some steps, writes nothing but the trace, and says what to change.

    aurank profile omniglot/soprc
    aurank profile mine.yaml data.workers=4 --steps 20 --trace trace.json

    Args:
        as_json: print JSON in place of a table.
    """
    with draw_measuring({}) as running:
        result = call(listener=running.listener)
    if not result.is_main:
        return
    if as_json:
        click.echo(json.dumps(result.to_json(), indent=1))
        return
    console.say(result)
    if "trace" in call:
        console.say(f"written to {call['trace']}")


@command(app, "aurank.commands.demo.demo", claims="folder")
def demo(call: Call) -> None:
    """Train on scikit-learn's digits, in half a minute.

    Prints how the model compares with raw pixels and with the untrained network.

    aurank demo
    """
    with draw_training() as listener:
        results, stopped_by = call(listener=listener)
    if stopped_by is not None:
        stderr_console.say("stopped by a signal; everything is saved, the same command goes on")
        raise SystemExit(128 + stopped_by)
    table = Table("test digits", "mAUPRC", "Recall@1", title="aurank demo")
    for name, metrics in results.items():
        table.add_row(name.replace("_", " "), f"{metrics['mauprc']:.4f}", f"{metrics['recall@1']:.4f}")
    console.print(table)
    page = call["out"] / "run/report.html"
    console.say(f"written to {call['out'] / 'demo.json'}" + (f", to look at: {page}" if page.exists() else ""))


@command(app, "aurank.commands.average.average_models")
def average(call: Call) -> None:
    """Average the weights of several trainings of one network.

    They began at one network and differ in their training alone, such as seed, loss or rate. What is written is
    loaded, measured, searched with and exported like the best of a run.

    aurank average runs/first runs/second runs/third --out runs/average
    aurank evaluate --model aurank:runs/average/best --out measured
    """
    written = call()
    console.say(f"written to {call['out']}: {written.name}, the average of {len(call['models'])} models")


@command(
    app, "aurank.commands.export.export_model", without=(*MOST, "cache", "no_cache", "allow_code"), claims="folder"
)
def export(call: Call) -> None:
    """Write a trained model for use elsewhere, checked on images.

    The file must give the checkpoint's embeddings of the test images, or those of --data; else nothing is written.

    aurank export runs/mine/best --to onnx --int8 --out exported/onnx
    aurank export runs/mine/best --to hf --license mit --out exported/timm
    """
    from aurank.embedding.locations import require_checkpoint, resolve_checkpoint
    from aurank.exporting.folder import require_export

    require_export(call["to"], call["out"], int8=call["int8"], overwrite=call["overwrite"])
    require_checkpoint(resolve_checkpoint(call["checkpoint"].removeprefix("aurank:")))
    console.say(call())


@command(app)
def config(_: Call, configuration: str, overrides: Sequence[str] = ()) -> None:
    """Print a configuration resolved, or every error in it.

    No data is read.

    aurank config mine.yaml optim.lr=1e-3

    Args:
        configuration: a YAML file, or the name of a shipped one (aurank ls).
        overrides: dotted changes, such as optim.lr=1e-4.
    """
    from aurank.config import dump_config
    from aurank.training import read_config

    console.print(dump_config(read_config(configuration, overrides)), end="", highlight=False, markup=False)


@command(app)
def ls(_: Call, text: str = "") -> None:
    """List the shipped configurations.

    aurank ls soprc

    Args:
        text: only those with this text in their line.
    """
    from aurank.config import shipped_configs

    table = Table("name", "about", box=None)
    for name, path in sorted(shipped_configs().items()):
        about = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("#").strip()
        if text.lower() in f"{name}\n{about}".lower():
            table.add_row(name, about)
    if not table.rows:
        raise UserError(f"no shipped configuration has {text!r} in its name or first line; aurank ls lists them all")
    console.print(table)


@command(app)
def cp(_: Call, name: str, target: Path) -> None:
    """Copy a shipped configuration, to change it.

    aurank cp digits/soprc mine.yaml

    Args:
        name: a name printed by aurank ls.
        target: the file or folder to write to.
    """
    from aurank.config import shipped_configs

    shipped = shipped_configs()
    if name not in shipped:
        raise UserError(f"no shipped configuration {name!r}; expected one of {', '.join(shipped)}")
    target = target / f"{Path(name).name}.yaml" if target.is_dir() else target
    require_absent(target)
    if not target.parent.is_dir():
        raise UserError(f"cannot write {target}: there is no folder {target.parent}; name another place")
    text = shipped[name].read_text(encoding="utf-8")
    head = "".join(re.findall(r"\A(?:#.*\n)*", text))
    # What was measured is of the shipped file alone; a line that goes on begins with three blanks.
    comments = re.sub(r"(?m)^# (?:Command|Result|To beat|Hardware|Chosen): .*\n(?:#   .*\n)*", "", head)
    comments += f"# Command:  {shlex.join(['aurank', 'train', str(target)])}   (copied from {name})\n"
    write_text(target, comments + text.removeprefix(head))
    console.say(f"{name} copied to {target}")
