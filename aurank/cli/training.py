"""Commands that train."""

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from aurank.cli.app import app
from aurank.cli.drawing import console, draw_measuring, draw_training, keep_baselines, stderr_console
from aurank.cli.options import AsJson, BaselinesOption, ConfigFile, Overrides, claiming
from aurank.errors import UserError


@app.command()
def train(
    config: ConfigFile,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write; default: runs/mine for mine.yaml.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the last checkpoint in --out; without one, begin.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Build everything, run two batches, write nothing.")
    ] = False,
    baselines: BaselinesOption = False,
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
    out = out or Path("runs") / Path(config).stem
    with draw_training() as listener:
        result = train(settings, out, resume, listener=listener)
    left_out = ", ".join(f"{count} of {split}" for split, count in result.skipped.items() if count)
    if left_out and result.is_main:
        stderr_console.say(f"skipped, unreadable: {left_out}")
    if result.stopped_by is not None:
        if result.is_main:
            where = f"stopped by a signal after step {result.steps}"
            stderr_console.say(f"{where}; everything is saved, go on with --resume")
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
def profile(
    config: ConfigFile,
    overrides: Overrides = None,
    steps: Annotated[int, typer.Option(help="Steps to measure, after a warm-up.", min=1)] = 50,
    trace: Annotated[Path | None, typer.Option(help="A trace (.json) to write, for Chrome or Perfetto.")] = None,
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
def demo(out: Annotated[Path, typer.Option(help="Folder for demo.json and the run.")] = Path("runs/demo")) -> None:
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
