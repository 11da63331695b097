"""The command line: parse, one library call, print. The only file that prints or exits."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from aurank import __version__
from aurank.errors import AurankError, UserError

# albumentations asks the network for its newest version when it is imported.
os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")

app = typer.Typer(
    name="aurank",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console()
complaints = Console(stderr=True, highlight=False)

ConfigFile = Annotated[str, typer.Argument(help="A YAML file, or the name of a shipped one (aurank ls).")]
Overrides = Annotated[list[str] | None, typer.Argument(help="Dotted overrides, such as optim.lr=1e-4.")]
DataOverrides = Annotated[list[str] | None, typer.Argument(help="Changes of the data section: data.workers=4.")]
ModelOption = Annotated[
    str, typer.Option("--model", help="aurank:DIR/best, or embeddings:FILE (.npz, or .npy with --labels).")
]
DataOption = Annotated[
    str | None, typer.Option("--data", help="READER:PATH such as folder:photos; default: the data it was trained on.")
]
SplitOption = Annotated[str | None, typer.Option(help="Which split to embed: train, val or test (default).")]


def _print_version(wanted: bool) -> bool:
    if wanted:
        console.print(f"aurank {__version__}", highlight=False)
        raise typer.Exit
    return wanted


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Train image-retrieval embeddings for average precision, and measure any embedding exactly."""


@app.command()
def train(
    config: ConfigFile,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write; default runs/<config stem>.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint in --out.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Build everything, run two batches, write nothing.")
    ] = False,
) -> None:
    """Train an embedding from a configuration; writes checkpoints, metrics.jsonl and the test split's report.json."""
    from aurank.training import read_config, rehearse, train

    settings = read_config(config, overrides or [])
    if dry_run:
        console.print(str(rehearse(settings)), highlight=False, soft_wrap=True)
        return
    out = out or Path("runs") / Path(config).stem
    with _progress() as listener:
        result = train(settings, out, resume, listener=listener)
    left_out = ", ".join(f"{count} of {split}" for split, count in result.skipped.items() if count)
    if left_out and result.is_main:
        complaints.print(f"skipped, unreadable: {left_out}")
    if result.stopped_by is not None:
        if result.is_main:
            complaints.print(f"stopped by a signal after step {result.steps}; everything is saved, go on with --resume")
        raise SystemExit(128 + result.stopped_by)
    if result.report is not None:
        console.print(str(result.report), highlight=False)
        console.print(f"written to {result.out}", highlight=False)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for demo.json and the run.")] = Path("runs/demo"),
) -> None:
    """Train on scikit-learn's digits in a minute, and compare with raw pixels and the untrained network."""
    from aurank.training import demo

    with _progress() as listener:
        results, stopped_by = demo(out, listener=listener)
    if stopped_by is not None:
        complaints.print("stopped by a signal; everything is saved, the same command goes on")
        raise SystemExit(128 + stopped_by)
    table = Table("test digits", "mAUPRC", "Recall@1", title="aurank demo")
    for name, metrics in results.items():
        table.add_row(name.replace("_", " "), f"{metrics['mauprc']:.4f}", f"{metrics['recall@1']:.4f}")
    console.print(table)
    console.print(f"written to {out / 'demo.json'}", highlight=False)


@app.command()
def evaluate(
    model: ModelOption,
    out: Annotated[Path, typer.Option(help="Folder for report.json.")],
    data: DataOption = None,
    split: SplitOption = None,
    labels: Annotated[Path | None, typer.Option(help="Labels (.npy) of an .npy of embeddings.")] = None,
    recall_at: Annotated[str | None, typer.Option(help="The k of Recall@k and precision@k, such as 1,10,100.")] = None,
    ties: Annotated[str | None, typer.Option(help="threshold, optimistic or pessimistic.")] = None,
    max_memory: Annotated[str | None, typer.Option(help="Bound on the engine's memory, such as 1GiB.")] = None,
    overrides: DataOverrides = None,
) -> None:
    """Measure a checkpoint on a data set, or saved embeddings, exactly; writes report.json."""
    from aurank.training import evaluate_model

    cuts = None if recall_at is None else _whole_numbers("--recall-at", recall_at)
    options = {"recall_at": cuts, "ties": ties, "max_memory": max_memory}
    with _counter("embedding") as on_batch:
        report = evaluate_model(
            model,
            out,
            data=data,
            split=split,
            labels=labels,
            overrides=overrides or [],
            on_batch=on_batch,
            on_skipped=_report_skipped,
            **{name: value for name, value in options.items() if value is not None},
        )
    console.print(str(report), highlight=False)
    console.print(f"written to {out / 'report.json'}", highlight=False)


@app.command()
def embed(
    model: ModelOption,
    out: Annotated[Path, typer.Option(help="The .npz file to write: embeddings, labels, ids, paths.")],
    data: DataOption = None,
    split: SplitOption = None,
    overrides: DataOverrides = None,
) -> None:
    """Write the embeddings of a data set's split, with ids, paths and labels."""
    from aurank.files import require_writable
    from aurank.training import embed_model

    require_writable(out)
    with _counter("embedding") as on_batch:
        embedded = embed_model(
            model,
            data=data,
            split=split or "test",
            overrides=overrides or [],
            on_batch=on_batch,
            on_skipped=_report_skipped,
        )
    embedded.save(out)
    rows, width = embedded.embeddings.shape
    console.print(f"{rows} embeddings of {width} dimensions written to {out}", highlight=False)


@app.command()
def config(file: ConfigFile, overrides: Overrides = None) -> None:
    """Print the resolved configuration, or every error in it, without touching data."""
    from aurank.config import dump_config
    from aurank.training import read_config

    console.print(dump_config(read_config(file, overrides or [])), end="", highlight=False, markup=False)


@app.command()
def doctor(file: ConfigFile, overrides: Overrides = None) -> None:
    """Check the data of a configuration: missing, broken or duplicate images, lone classes, leaks between splits."""
    from aurank.training import build_manifest, read_config

    settings = read_config(file, overrides or [])
    report = build_manifest(settings.data, seed=settings.seed).doctor()
    console.print(str(report), highlight=False, markup=False)
    if report.errors:
        raise SystemExit(2)


@app.command()
def ls() -> None:
    """List the shipped configurations with the first line of their headers."""
    from aurank.config import shipped_configs

    table = Table("name", "about", box=None)
    for name, path in sorted(shipped_configs().items()):
        first = path.read_text(encoding="utf-8").splitlines()[0]
        table.add_row(name, first.removeprefix("#").strip())
    console.print(table)


@app.command()
def cp(
    name: Annotated[str, typer.Argument(help="A name printed by aurank ls.")],
    to: Annotated[Path, typer.Argument(help="The file to write.")],
) -> None:
    """Copy a shipped configuration, to be changed."""
    from aurank.config import shipped_configs

    shipped = shipped_configs()
    if name not in shipped:
        raise UserError(f"no shipped configuration {name!r}; expected one of {', '.join(shipped)}")
    target = to / f"{Path(name).name}.yaml" if to.is_dir() else to
    if target.exists():
        raise UserError(f"{target} exists already; name another file")
    if not target.parent.is_dir():
        raise UserError(f"no folder {target.parent}; create it first")
    shutil.copyfile(shipped[name], target)
    console.print(f"{name} copied to {target}", highlight=False)


def _report_skipped(paths: list[str]) -> None:
    more = f", and {len(paths) - 3} more" if len(paths) > 3 else ""
    text = f"skipped, unreadable: {len(paths)} ({'; '.join(paths[:3])}{more})"
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def _whole_numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"{option} {text!r}: expected whole numbers and commas, such as 1,10,100") from None


@contextmanager
def _bar(total: int | None, text: str) -> Iterator[tuple[Progress, Any]]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=complaints, disable=not complaints.is_terminal) as progress:
        yield progress, progress.add_task(text, total=total, note="")


@contextmanager
def _progress() -> Iterator[Callable[[str, dict[str, Any]], None]]:
    """A listener that draws training: a bar on a terminal, lines for validations everywhere."""
    with _bar(None, "training") as (progress, task):

        def listen(kind: str, values: dict[str, Any]) -> None:
            if kind == "step":
                loss = "" if values["loss"] is None else f"loss {values['loss']:.4f}  "
                note = f"{loss}lr {values['lr']:.1e}  {values['images_per_second']:.0f} images/s"
                progress.update(task, completed=values["step"], total=values["steps"], note=note)
            elif kind == "validation":
                mark = " (best)" if values["improved"] else ""
                progress.console.print(
                    f"step {values['step']}: validation mAUPRC {values['mauprc']:.4f}, "
                    f"Recall@1 {values['recall@1']:.4f}{mark}",
                    highlight=False,
                )
            elif kind == "testing":
                progress.update(task, description=f"testing on {values['images']} images", note="")

        yield listen


@contextmanager
def _counter(text: str) -> Iterator[Callable[[int, int], None]]:
    with _bar(None, text) as (progress, task):
        yield lambda done, total: progress.update(task, advance=done, total=total)


def main() -> None:
    """Run the command line; exit with 0, 2 for the user's mistake, 130 / 143 after a signal, 1 for anything else."""
    try:
        app()
    except UserError as error:
        complaints.print(f"error: {error}", markup=False, soft_wrap=True)
        sys.exit(2)
    except AurankError as error:
        complaints.print(f"error: {error}", markup=False, soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
