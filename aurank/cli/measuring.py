"""Commands that run a model, or read what one made."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aurank.cli.app import app
from aurank.cli.drawing import console, keep_baselines
from aurank.cli.options import (
    BaselinesOption,
    Drawn,
    FitOn,
    Labels,
    ModelOption,
    ModelToRun,
    Postprocess,
    claimed_out,
    claiming,
    measuring,
    whole_numbers,
)
from aurank.errors import UserError

if TYPE_CHECKING:
    from aurank.commands.report import Measurement
    from aurank.embedding import ImageSelection
    from aurank.evaluation import Codes, ProbeResult, Report

_SIDES = ("data", "split", "protocol", "root", "query", "gallery")
DEFAULT_RESAMPLES = 1000  # where a page is written: 0.25 s for 60,502 queries of 11,316 classes, 15 metrics


@app.command()
@measuring(*_SIDES, "seeds", bf16=True, joined=True)
@claiming()
def evaluate(
    *,
    model: ModelOption,
    out: Annotated[
        Path,
        typer.Option(help="Folder for report.html, report.json, per_query.parquet, per_class.csv and pr_curve.png."),
    ],
    labels: Annotated[
        Path | None, typer.Option(help="Labels (.npy) of an .npy of embeddings; qrels of --model trec:RUN.")
    ] = None,
    metrics: Annotated[
        str | None, typer.Option(help="Metrics in place of the usual ones, such as mauprc,mrr@10.")
    ] = None,
    recall_at: Annotated[str | None, typer.Option(help="The k of Recall@k and precision@k, such as 1,10,100.")] = None,
    distance: Annotated[str | None, typer.Option(help="cosine (the default), dot or euclidean.")] = None,
    ties: Annotated[
        str | None, typer.Option(help="How equal scores count: threshold (the default), optimistic or pessimistic.")
    ] = None,
    index: Annotated[str | None, typer.Option(help="Measure a faiss index too, such as IVF1024,Flat.")] = None,
    backend: Annotated[
        str | None, typer.Option(help="What counts: auto (the default), numba or torch; to the same digits.")
    ] = None,
    intervals: Annotated[
        int | None,
        typer.Option(help="Bootstrap resamples of the 95% intervals, 0 for none; default: 1000, with --no-report 0."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap.")] = 0,
    max_memory: Annotated[str | None, typer.Option(help="Bound on the working memory, such as 1GiB.")] = None,
    trec_run: Annotated[
        Path | None, typer.Option(help="A .run file to write for trec_eval, with .qrels beside it.")
    ] = None,
    postprocess: Postprocess = None,
    fit_on: FitOn = None,
    dims: Annotated[
        str | None, typer.Option(help="Measure the first numbers of embeddings too, such as 64,128.")
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="Measure coarser numbers too: float16, int8, binary, with commas.")
    ] = None,
    rescore: Annotated[
        int | None, typer.Option(help="Score the best so many of those again in float32, such as 100.")
    ] = None,
    report: Annotated[
        bool, typer.Option("--report/--no-report", help="Whether to write report.html, a page to look at.")
    ] = True,
    neighbours: Annotated[
        int | None, typer.Option(help="Nearest images kept of each query; default: 10, with --no-report 0.")
    ] = None,
    show_class: Annotated[
        list[str] | None, typer.Option(help="A class whose queries the page shows; may be given repeatedly.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the result of another command in --out.")
    ] = False,
    baselines: BaselinesOption = False,
    images: "ImageSelection",
    drawn: Drawn,
) -> None:
    """Measure any model, or saved embeddings, exactly.

    \b
    aurank evaluate --model aurank:runs/mine/best --out measured
    aurank evaluate --model timm:resnet18 --data folder:photos --out measured
    aurank evaluate --model embeddings:rows.npz --out measured
    """
    from aurank.commands import evaluate_model, measure_baselines
    from aurank.commands.baselines import require_images
    from aurank.commands.evaluate import require_free_run
    from aurank.evaluation.bootstrap import Resampling
    from aurank.evaluation.metrics import check_names
    from aurank.reporting.results import STEPS, require_free, require_same_command, write_results

    if baselines:
        require_images(model)
    recalls = None if recall_at is None else whole_numbers("--recall-at", recall_at)
    named = {"distance": distance, "ties": ties, "index": index, "backend": backend, "max_memory": max_memory}
    report = report and not model.startswith("trec:")  # of cut lists there is little to see
    lists = (10 if report else 0) if neighbours is None else neighbours
    options: dict[str, Any] = {"recall_at": recalls, **named, "neighbours": lists or None}
    options["metrics"] = None if metrics is None else check_names(metrics.split(","))
    resamples = (DEFAULT_RESAMPLES if report else 0) if intervals is None else intervals
    options["resampling"] = Resampling(resamples, seed) if resamples else None
    options["codes"] = _codes(dims, precision, rescore)
    given = {name: value for name, value in options.items() if value is not None}
    command = _command_as_typed()
    require_free(out)
    is_replaced = overwrite or require_same_command(out, command)
    if trec_run is not None:
        require_free_run(trec_run, is_replaced=is_replaced)

    beside_report: dict[str, Any] = {}

    def finished(name: str, result: Any) -> None:
        if name != "report":
            beside_report[name] = result
            return
        made = result.made_by(command)
        page, refused = _page(made, beside_report["measured"], show_class or ()) if report else (None, None)
        write_results(made, out, overwrite=overwrite, page=page)
        if (steps := beside_report.get("postprocessing")) is not None:
            steps.save(out / STEPS)
        console.say(result)
        if refused is not None:
            raise refused

    files: dict[str, Any] = {"labels": labels, "trec_run": trec_run, "postprocess": postprocess, "fit_on": fit_on}
    with drawn(finished) as running:
        result = evaluate_model(model, images, **files, running=running, **given)
        if running.group.rank > 0:
            return
        beside = measure_baselines(model, result, images, running=running, **given) if baselines else None
    if beside is not None:
        keep_baselines(beside, out)
    console.say(f"written to {out / 'report.json'}" + (f", to look at: {out / 'report.html'}" if report else ""))


def _page(report: "Report", measured: "Measurement", classes: Sequence[str]) -> tuple[str | None, UserError | None]:
    """Return the page of a report, or why there is none: for a class that is not there no numbers are given up."""
    from aurank.commands import evaluation_page

    try:
        return evaluation_page(report, measured, classes=classes), None
    except UserError as error:
        return None, error


def _command_as_typed() -> str:
    """Return the command with its folder, as the same words mean other files elsewhere, without --overwrite."""
    typed = shlex.join(["aurank", *(argument for argument in sys.argv[1:] if argument != "--overwrite")])
    return f"cd {shlex.quote(str(Path.cwd()))} && {typed}"


def _codes(dims: str | None, precision: str | None, rescore: int | None) -> "Codes | None":
    """Return what --dims, --precision and --rescore ask for."""
    from aurank.evaluation.postprocessing import Codes

    if dims is None and precision is None:
        if rescore is not None:
            raise UserError(f"--rescore {rescore} goes with --dims or --precision, whose lists are scored again")
        return None
    return Codes(
        dims=() if dims is None else whole_numbers("--dims", dims),
        precisions=("float32",) if precision is None else tuple(one.strip() for one in precision.split(",")),
        rescore=rescore,
    )


@app.command()
@measuring(*_SIDES, bf16=True, joined=True)
def embed(
    *,
    model: ModelToRun,
    out: Annotated[
        Path, typer.Option(help="The .npz file to write: embeddings, labels, ids, paths; or a folder, for parts.")
    ],
    shard_rows: Annotated[
        int | None, typer.Option(help="Images of each part of a folder; default: 262144.", min=1)
    ] = None,
    images: "ImageSelection",
    drawn: Drawn,
) -> None:
    """Write the embeddings of images, with ids, paths and labels.

    \b
    aurank embed --model aurank:runs/mine/best --out test.npz
    aurank embed --model timm:resnet18 --data folder:photos --out photos.npz
    aurank embed --model timm:resnet18 --data folder:photos --out photos_in_parts
    """
    from aurank.commands import embed_model, embed_to_folder
    from aurank.data.shards import SHARD_ROWS, require_folder
    from aurank.files import require_writable

    in_parts = out.suffix != ".npz" and (shard_rows is not None or not out.suffix)
    if shard_rows is not None and not in_parts:
        raise UserError(
            f"--shard-rows {shard_rows} is for a folder of parts, and --out {out} is one file: name a folder"
        )
    if in_parts:
        require_folder(out)
    else:
        require_writable(out, suffix=".npz")
    # A folder of parts is claimed by what fills it.
    with claimed_out(None if in_parts else out, is_file=True), drawn() as running:
        if in_parts:
            embedded = embed_to_folder(model, images, out=out, shard_rows=shard_rows or SHARD_ROWS, running=running)
        else:
            embedded = embed_model(model, images, running=running)
        running.group.leave()
        if running.group.rank > 0 or embedded is None:
            return
        if not in_parts:
            embedded.save(out)
    rows, width = embedded.embeddings.shape
    console.say(f"{rows} embeddings of {width} dimensions written to {out}")


@app.command()
@measuring("data", "split", allow_code=False)
@claiming()
def pairs(
    *,
    model: Annotated[str, typer.Option("--model", help="aurank:DIR/best of a run with model.text.")],
    out: Annotated[Path, typer.Option(help="Folder for two_way/GROUP and zero_shot.json.")],
    prompt: Annotated[
        list[str] | None, typer.Option(help="A sentence with {} for the class; may be given repeatedly.")
    ] = None,
    images: "ImageSelection",
    drawn: Drawn,
) -> None:
    """Measure a model of images and texts, each found by the other.

    Images are classified by the names of their classes too. --data is table:FILE with a column text.

    \b
    aurank pairs --model aurank:runs/mine/best --prompt "a {}" --out measured
    """
    from aurank.commands import evaluate_pairs
    from aurank.files import require_writable

    require_writable(out / "zero_shot.json")
    with drawn() as running:
        result = evaluate_pairs(model, images, templates=prompt, running=running)
    result.save(out)
    console.say(result)
    console.say(f"written to {out}")


@app.command()
@measuring("data", "split")
@claiming()
def probe(
    *,
    model: ModelOption,
    out: Annotated[Path, typer.Option(help="Folder for knn.json and linear_probe.json.")],
    protocol: Annotated[list[str] | None, typer.Option(help="knn or linear_probe; default: both.")] = None,
    labels: Labels = None,
    k: Annotated[int | None, typer.Option("--k", help="Neighbours that vote; default: 200, or all there are.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds of the draws, such as 0,1,2.")] = None,
    images: "ImageSelection",
    drawn: Drawn,
) -> None:
    """Classify by frozen embeddings: neighbours, a linear layer.

    \b
    aurank probe --model aurank:runs/mine/best --out probed
    aurank probe --model timm:resnet18 --data folder:photos --out probed
    """
    from aurank.commands import probe_model
    from aurank.evaluation.probes import PROBES
    from aurank.files import require_writable

    protocols = protocol or list(PROBES)
    for name in protocols:
        require_writable(out / f"{name}.json")
    numbers = None if seeds is None else whole_numbers("--seeds", seeds)

    def finished(name: str, result: "ProbeResult") -> None:
        result.save(out / f"{name}.json")
        console.say(result)
        console.say(f"written to {out / f'{name}.json'}")

    with drawn(finished) as running:
        probe_model(model, images, protocols=protocols, labels=labels, k=k, seeds=numbers, running=running)
