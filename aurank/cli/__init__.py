"""The command line: parse, one library call, print. The only place that prints or exits."""

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from aurank import __version__
from aurank.cli.drawing import complaints, console, draw_bar, draw_running, draw_training, draw_warnings
from aurank.cli.options import (
    AllowCodeOption,
    BatchOption,
    CacheOption,
    ConfigFile,
    DataOption,
    DataOverrides,
    DeviceOption,
    GalleryOption,
    ModelOption,
    NoCacheOption,
    Overrides,
    ProtocolOption,
    QueryOption,
    RootOption,
    SplitOption,
    whole_numbers,
)
from aurank.errors import AurankError, UserError

# albumentations asks the network for its newest version when it is imported.
os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")

app = typer.Typer(
    name="aurank",
    help="Train image-retrieval embeddings for average precision, and measure any embedding exactly.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="Look after data sets.", no_args_is_help=True)
app.add_typer(data_app, name="data")


def _print_version(wanted: bool) -> bool:
    if wanted:
        console.print(f"aurank {__version__}", highlight=False)
        raise typer.Exit
    return wanted  # typer hands this on in place of what came


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
    from aurank.training import describe_groups, read_config, rehearse, train

    settings = read_config(config, overrides or [])
    if dry_run:
        console.print(str(rehearse(settings)), highlight=False, soft_wrap=True)
        return
    out = out or Path("runs") / Path(config).stem
    with draw_training() as listener:
        result = train(settings, out, resume, listener=listener)
    left_out = ", ".join(f"{count} of {split}" for split, count in result.skipped.items() if count)
    if left_out and result.is_main:
        complaints.print(f"skipped, unreadable: {left_out}")
    if result.stopped_by is not None:
        if result.is_main:
            complaints.print(f"stopped by a signal after step {result.steps}; everything is saved, go on with --resume")
        raise SystemExit(128 + result.stopped_by)
    if result.is_main:
        if result.two_way:
            images = [] if result.report is None else [f"images with each other\n{result.report}"]
            console.print(describe_groups(result.two_way, *images), highlight=False, markup=False, soft_wrap=True)
        elif result.report is not None:
            console.print(str(result.report), highlight=False, markup=False, soft_wrap=True)
        console.print(f"written to {result.out}", highlight=False, markup=False, soft_wrap=True)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for demo.json and the run.")] = Path("runs/demo"),
) -> None:
    """Train on scikit-learn's digits in a minute, and compare with raw pixels and the untrained network."""
    from aurank.training import demo

    with draw_training() as listener:
        results, stopped_by = demo(out, listener=listener)
    if stopped_by is not None:
        complaints.print("stopped by a signal; everything is saved, the same command goes on")
        raise SystemExit(128 + stopped_by)
    table = Table("test digits", "mAUPRC", "Recall@1", title="aurank demo")
    for name, metrics in results.items():
        table.add_row(name.replace("_", " "), f"{metrics['mauprc']:.4f}", f"{metrics['recall@1']:.4f}")
    console.print(table)
    console.print(f"written to {out / 'demo.json'}", highlight=False, markup=False, soft_wrap=True)


@app.command()
def evaluate(
    model: ModelOption,
    out: Annotated[Path, typer.Option(help="Folder for report.json, per_query.parquet and pr_curve.png.")],
    data: DataOption = None,
    split: SplitOption = None,
    protocol: ProtocolOption = None,
    root: RootOption = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds of a protocol's draws, such as 0,1,2.")] = None,
    query: QueryOption = None,
    gallery: GalleryOption = None,
    labels: Annotated[Path | None, typer.Option(help="Labels (.npy) of an .npy of embeddings.")] = None,
    recall_at: Annotated[str | None, typer.Option(help="The k of Recall@k and precision@k, such as 1,10,100.")] = None,
    distance: Annotated[str | None, typer.Option(help="cosine, dot or euclidean.")] = None,
    ties: Annotated[str | None, typer.Option(help="threshold, optimistic or pessimistic.")] = None,
    index: Annotated[str | None, typer.Option(help="Measure a faiss index too, such as IVF1024,Flat.")] = None,
    backend: Annotated[str | None, typer.Option(help="Which engine counts; auto chooses.")] = None,
    intervals: Annotated[int | None, typer.Option(help="Bootstrap resamples for intervals, such as 1000.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap.")] = 0,
    max_memory: Annotated[str | None, typer.Option(help="Bound on the engine's memory, such as 1GiB.")] = None,
    batch: BatchOption = None,
    device: DeviceOption = None,
    cache: CacheOption = None,
    no_cache: NoCacheOption = False,
    allow_code: AllowCodeOption = False,
    overrides: DataOverrides = None,
) -> None:
    """Measure any model on any images, or saved embeddings, exactly."""
    from aurank.evaluation.intervals import Resampling
    from aurank.reporting import require_free, write_results
    from aurank.training import Images, evaluate_model

    cuts = None if recall_at is None else whole_numbers("--recall-at", recall_at)
    options: dict[str, Any] = {"recall_at": cuts, "distance": distance, "ties": ties, "index": index}
    options |= {"backend": backend, "max_memory": max_memory}
    options["resampling"] = None if intervals is None else Resampling(intervals, seed)
    require_free(out)
    drawn = None if seeds is None else whole_numbers("--seeds", seeds)
    images = Images(data, split, protocol, root, query, gallery, overrides or [], drawn)
    with draw_running(batch, device, cache, no_cache, allow_code) as running:
        given = {name: value for name, value in options.items() if value is not None}
        report = evaluate_model(model, images, labels=labels, running=running, **given)
    write_results(report, out)
    console.print(str(report), highlight=False, markup=False, soft_wrap=True)
    console.print(f"written to {out / 'report.json'}", highlight=False, markup=False, soft_wrap=True)


@app.command()
def compare(
    report_a: Annotated[Path, typer.Argument(help="A report.json, or the folder that holds it.")],
    report_b: Annotated[Path, typer.Argument(help="Another, on the same queries.")],
    metric: Annotated[str, typer.Option(help="Such as mauprc or recall@1.")] = "mauprc",
    resamples: Annotated[int, typer.Option(help="Bootstrap resamples.")] = 10_000,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap.")] = 0,
    most: Annotated[int, typer.Option(min=0, help="How many of the queries that changed most to list.")] = 10,
    force: Annotated[bool, typer.Option("--force", help="Compare although protocols or distances differ.")] = False,
) -> None:
    """Say whether the second report is better than the first, and where."""
    from aurank.evaluation import Report
    from aurank.evaluation.compare import compare

    first, second = (Report.load(path / "report.json" if path.is_dir() else path) for path in (report_a, report_b))
    found = compare(first, second, metric=metric, resamples=resamples, seed=seed, most=most, force=force)
    console.print(str(found), highlight=False, markup=False, soft_wrap=True)


@app.command()
def embed(
    model: ModelOption,
    out: Annotated[Path, typer.Option(help="The .npz file to write: embeddings, labels, ids, paths.")],
    data: DataOption = None,
    split: SplitOption = None,
    protocol: ProtocolOption = None,
    root: RootOption = None,
    query: QueryOption = None,
    gallery: GalleryOption = None,
    batch: BatchOption = None,
    device: DeviceOption = None,
    cache: CacheOption = None,
    no_cache: NoCacheOption = False,
    allow_code: AllowCodeOption = False,
    overrides: DataOverrides = None,
) -> None:
    """Write the embeddings of a data set's split, with ids, paths and labels."""
    from aurank.files import require_writable
    from aurank.training import Images, embed_model

    require_writable(out, suffix=".npz")
    images = Images(data, split, protocol, root, query, gallery, overrides or [])
    with draw_running(batch, device, cache, no_cache, allow_code) as running:
        embedded = embed_model(model, images, running=running)
    embedded.save(out)
    rows, width = embedded.embeddings.shape
    console.print(
        f"{rows} embeddings of {width} dimensions written to {out}", highlight=False, markup=False, soft_wrap=True
    )


@app.command()
def pairs(
    model: Annotated[str, typer.Option("--model", help="aurank:DIR/best of a run with model.text.")],
    out: Annotated[Path, typer.Option(help="Folder for two_way/GROUP and zero_shot.json.")],
    data: Annotated[
        str | None, typer.Option("--data", help="table:FILE with a column text; default: the data it was trained on.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="Which split: train, val or test (the default).")] = None,
    prompt: Annotated[
        list[str] | None, typer.Option(help="Sentence with {} for a class, for zero-shot; may be given repeatedly.")
    ] = None,
    batch: BatchOption = None,
    device: DeviceOption = None,
    cache: CacheOption = None,
    no_cache: NoCacheOption = False,
    overrides: DataOverrides = None,
) -> None:
    """Measure a model of images and texts: each found by the other, and images classified by the names of classes."""
    from aurank.files import require_writable
    from aurank.training import Images, evaluate_pairs

    require_writable(out / "zero_shot.json")
    images = Images(data, split, overrides=overrides or [])
    with draw_running(batch, device, cache, no_cache, allow=False) as running:
        result = evaluate_pairs(model, images, templates=prompt, running=running)
    result.save(out)
    console.print(str(result), highlight=False, markup=False, soft_wrap=True)
    console.print(f"written to {out}", highlight=False, markup=False, soft_wrap=True)


@app.command()
def probe(
    model: ModelOption,
    out: Annotated[Path, typer.Option(help="Folder for knn.json and linear_probe.json.")],
    data: DataOption = None,
    split: Annotated[str | None, typer.Option(help="Which split is tested: train, val or test (the default).")] = None,
    protocol: Annotated[list[str] | None, typer.Option(help="knn or linear_probe; give it twice for both.")] = None,
    labels: Annotated[Path | None, typer.Option(help="Labels (.npy) of an .npy of embeddings.")] = None,
    k: Annotated[int | None, typer.Option("--k", help="Neighbours that vote; default 200, or all there are.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds of the draws, such as 0,1,2.")] = None,
    batch: BatchOption = None,
    device: DeviceOption = None,
    cache: CacheOption = None,
    no_cache: NoCacheOption = False,
    allow_code: AllowCodeOption = False,
    overrides: DataOverrides = None,
) -> None:
    """Classify by frozen embeddings: nearest neighbours and a linear classifier (by default both)."""
    from aurank.evaluation import ProbeResult
    from aurank.evaluation.probes import PROBES
    from aurank.files import require_writable
    from aurank.training import Images, probe_model

    protocols = protocol or list(PROBES)
    for name in protocols:
        require_writable(out / f"{name}.json")
    drawn = None if seeds is None else whole_numbers("--seeds", seeds)
    images = Images(data, split, overrides=overrides or [])

    def finished(name: str, result: ProbeResult) -> None:
        result.save(out / f"{name}.json")
        console.print(str(result), highlight=False, markup=False, soft_wrap=True)
        console.print(f"written to {out / f'{name}.json'}", highlight=False, markup=False, soft_wrap=True)

    with draw_running(batch, device, cache, no_cache, allow_code, finished) as running:
        probe_model(model, images, protocols=protocols, labels=labels, k=k, seeds=drawn, running=running)


@data_app.command("check")
def check_data(
    name: Annotated[str, typer.Argument(help="sop, inaturalist2018 or vehicleid.")],
    root: Annotated[Path | None, typer.Option(help="The data folder; default $AURANK_DATA, else ./data.")] = None,
    checksums: Annotated[bool, typer.Option(help="Also compare the md5 of downloaded archives.")] = True,
) -> None:
    """Say whether a benchmark is there as published; exit code 2 if anything is missing or different."""
    from aurank.data import check_benchmark

    folder = root or Path(os.environ.get("AURANK_DATA") or "data").expanduser()
    with draw_bar(None, "checksums") as (progress, task):
        found = check_benchmark(
            name,
            folder,
            checksums=checksums,
            on_bytes=lambda done, total: progress.update(task, advance=done, total=total),
        )
    console.print(str(found), highlight=False, markup=False, soft_wrap=True)
    if not found.complete:
        raise SystemExit(2)


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
    manifest = build_manifest(settings.data, seed=settings.seed)
    report = manifest.doctor(train_labels=settings.data.train_labels == "class")
    console.print(str(report), highlight=False, markup=False, soft_wrap=True)
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
    console.print(f"{name} copied to {target}", highlight=False, markup=False, soft_wrap=True)


def main() -> None:
    """Run the command line; exit with 0, 2 for the user's mistake, 130 / 143 after a signal, 1 for anything else."""
    try:
        with draw_warnings():
            app()
    except UserError as error:
        complaints.print(f"error: {error}", markup=False, soft_wrap=True)
        sys.exit(2)
    except AurankError as error:
        complaints.print(f"error: {error}", markup=False, soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
