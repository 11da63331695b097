"""Commands that run a model on images, or read what one measured."""

import math
import shlex
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aurank.cli.app import app
from aurank.cli.drawing import console, draw_stages, keep_baselines
from aurank.cli.options import (
    RUN,
    Baselines,
    Drawn,
    FitOn,
    Labels,
    ModelOption,
    ModelToRun,
    Postprocess,
    argument,
    claiming,
    measuring,
    option,
    reads,
    whole_numbers,
)
from aurank.errors import UserError
from aurank.extras import require_libraries
from aurank.files import require_writable

if TYPE_CHECKING:
    from aurank.embedding import ImageSelection
    from aurank.evaluation import ProbeResult

_SIDES = ("data", "split", "protocol", "root")
DEFAULT_RESAMPLES = 1000  # where a page is written: 0.25 s for 60,502 queries of 11,316 classes, 15 metrics


def _free_to_evaluate(given: dict[str, Any]) -> None:
    from aurank.reporting.results import require_free, require_same_command

    if given["index"] is not None:
        require_libraries("a search by faiss", "faiss")
    require_free(given["out"])
    if not given["overwrite"]:
        require_same_command(given["out"], _typed())


def _typed() -> str:
    """Return the command with its folder, as the same words mean other files elsewhere."""
    words = shlex.join(["aurank", *(word for word in sys.argv[1:] if word != "--overwrite")])
    return f"cd {shlex.quote(str(Path.cwd()))} && {words}"


@app.command()
@measuring(*_SIDES, run=(*RUN, "bf16"), joined=True)
@claiming(_free_to_evaluate)
def evaluate(
    *,
    model: ModelOption,
    out: Path = option(
        "Folder for report.html, report.json, per_query.parquet, per_class.csv and pr_curve.png.", default=...
    ),
    labels: Path | None = option("Labels (.npy) of an .npy of embeddings.", callback=reads),
    metrics: str | None = option("Metrics in place of the usual ones, such as mauprc,mrr@10."),
    recall_at: str | None = option("The k of Recall@k and precision@k, such as 1,10,100."),
    distance: str | None = option("cosine (the default), dot or euclidean (l2)."),
    ties: str | None = option("How equal scores count: threshold (the default), optimistic or pessimistic."),
    index: str | None = option("Measure a faiss index too, such as IVF1024,Flat."),
    backend: str | None = option("What counts: auto (the default), numba or torch; to the same digits."),
    intervals: int | None = option(
        "Bootstrap resamples of the 95% intervals, 0 for none; default: 1000, with --no-report 0."
    ),
    seed: int = option("Seed of the bootstrap.", default=0),
    max_memory: str | None = option("Bound on the working memory, such as 1GiB."),
    postprocess: Postprocess = None,
    fit_on: FitOn = None,
    dims: str | None = option("Measure the first numbers of embeddings too, such as 64,128."),
    precision: str | None = option("Measure coarser numbers too: int8, binary, with commas."),
    rescore: int | None = option("Score the best so many of those again in float32, such as 100."),
    report: bool = option("Whether to write report.html, a page to look at.", "--report/--no-report", default=True),
    neighbours: int | None = option(
        "Nearest images kept of each query; default: 10, with --no-report 0.", "--neighbours", "--neighbors"
    ),
    show_class: list[str] | None = option("A class whose queries the page shows; may be given repeatedly."),
    overwrite: bool = option("Replace the result of another command in --out.", "--overwrite", default=False),
    baselines: Baselines = False,
    images: "ImageSelection",
    drawn: Drawn,
) -> None:
    """Measure any model, or saved embeddings, exactly.

    \b
    aurank evaluate --model aurank:runs/mine/best --out measured
    aurank evaluate --model timm:resnet18 --data folder:photos --out measured
    aurank evaluate --model embeddings:rows.npz --out measured
    """
    from aurank.commands import evaluate_model, evaluation_page, measure_baselines
    from aurank.commands.baselines import require_images
    from aurank.evaluation.bootstrap import Resampling
    from aurank.evaluation.metrics import check_names
    from aurank.evaluation.postprocessing import Codes
    from aurank.reporting.results import STEPS, write_results

    if baselines:
        require_images(model)
    if dims is None and precision is None and rescore is not None:
        raise UserError(f"--rescore {rescore} goes with --dims or --precision, whose lists are scored again")
    resamples = (DEFAULT_RESAMPLES if report else 0) if intervals is None else intervals
    lists = (10 if report else 0) if neighbours is None else neighbours
    options: dict[str, Any] = {"distance": distance, "ties": ties, "index": index, "backend": backend}
    options |= {"max_memory": max_memory, "neighbours": lists or None}
    options["recall_at"] = None if recall_at is None else whole_numbers("--recall-at", recall_at)
    options["metrics"] = None if metrics is None else check_names(metrics.split(","))
    options["resampling"] = Resampling(resamples, seed) if resamples else None
    if dims is not None or precision is not None:
        widths = () if dims is None else whole_numbers("--dims", dims)
        precisions = tuple(one.strip() for one in (precision or "float32").split(","))
        options["codes"] = Codes(dims=widths, precisions=precisions, rescore=rescore)
    options = {name: value for name, value in options.items() if value is not None}
    command = _typed()
    beside_report: dict[str, Any] = {}

    def finished(name: str, result: Any) -> None:
        if name != "report":
            beside_report[name] = result
            return
        made = result.made_by(command)
        page, refused = None, None
        try:
            page = evaluation_page(made, beside_report["measured"], classes=show_class or ()) if report else None
        except UserError as error:  # for a class that is not there no numbers are given up
            refused = error
        write_results(made, out, overwrite=overwrite, page=page)
        if "postprocessing" in beside_report:
            beside_report["postprocessing"].save(out / STEPS)
        console.say(result)
        if refused is not None:
            raise refused

    options |= {"images": images}
    files: dict[str, Any] = {"labels": labels, "postprocess": postprocess, "fit_on": fit_on}
    with drawn(finished) as running:
        result = evaluate_model(model, **files, running=running, **options)
        if running.group.rank > 0:
            return
        beside = measure_baselines(model, result, running=running, **options) if baselines else None
    if beside is not None:
        keep_baselines(beside, out)
    console.say(f"written to {out / 'report.json'}" + (f", to look at: {out / 'report.html'}" if report else ""))


def _free_to_embed(given: dict[str, Any]) -> None:
    from aurank.data.shards import require_folder

    out, shard_rows = given["out"], given["shard_rows"]
    if _in_parts(given):
        require_folder(out)
    elif shard_rows is not None:
        raise UserError(f"--shard-rows {shard_rows} is for a folder of parts, and --out {out} is a file: name a folder")
    else:
        require_writable(out, suffix=".npz")


def _in_parts(given: dict[str, Any]) -> bool:
    return given["out"].suffix != ".npz" and (given["shard_rows"] is not None or not given["out"].suffix)


@app.command()
@measuring(*_SIDES, run=(*RUN, "bf16"), joined=True)
@claiming(_free_to_embed, is_file=lambda given: None if _in_parts(given) else True)  # parts claim their folder
def embed(
    *,
    model: ModelToRun,
    out: Path = option("The .npz file to write: embeddings, labels, ids, paths; or a folder, for parts.", default=...),
    shard_rows: int | None = option("Images of each part of a folder; default: 262144.", min=1),
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
    from aurank.data.shards import SHARD_ROWS

    in_parts = _in_parts({"out": out, "shard_rows": shard_rows})
    with drawn() as running:
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
@measuring("data", "split", run=(*RUN, "bf16"))
@claiming()
def mine(
    *,
    model: ModelOption,
    out: Path = option("Folder for negatives.parquet and mine.html.", default=...),
    labels: Labels = None,
    per_query: int = option("Hard negatives of each image.", default=10, min=1),
    margin: float = option("Keep those less than this behind the best positive, such as 0.1.", default=math.inf),
    suspect: float = option("Part of a negative's neighbours that makes it suspect.", default=0.3, min=0.0, max=1.0),
    distance: str = option("cosine, dot or euclidean (l2).", default="cosine"),
    csv: bool = option("Write negatives.csv too.", "--csv", default=False),
    images: "ImageSelection",
    drawn: Drawn,
) -> None:
    """Find hard negatives, and suspect ones, which may be false.

    Train with them: sampler.name=hard_negative sampler.params.negatives=FILE

    \b
    aurank mine --model timm:resnet18 --data folder:photos --out mined
    aurank mine --model embeddings:rows.npz --margin 0.1 --out mined
    """
    from aurank.commands import mine_model
    from aurank.data.checks.negatives import TEXTS, write_negatives
    from aurank.files import write_text
    from aurank.reporting.doctor_page import doctor_page
    from aurank.reporting.tables import without_formula

    options: dict[str, Any] = {"k": per_query, "margin": margin, "suspect": suspect, "distance": distance}
    with drawn() as running:
        table, report = mine_model(model, images, labels=labels, running=running, **options)
    write_negatives(table, out / "negatives.parquet")
    if csv:
        texts = {name: [*map(without_formula, table[name])] for name in TEXTS}
        write_negatives({**table, **texts}, out / "negatives.csv")
    summary = (
        "The nearest images of other classes; negatives.parquet has all pairs, and here is what is odd among them."
    )
    write_text(out / "mine.html", doctor_page(report, title="Mining", summary=summary, command=_typed()))
    console.say(report, f"written to {out / 'negatives.parquet'}, to look at: {out / 'mine.html'}")


@app.command()
@measuring("data", "split", run=("batch", "device", "cache", "no_cache"))
@claiming()
def pairs(
    *,
    model: str = option("aurank:DIR/best of a run with model.text.", "--model", default=...),
    out: Path = option("Folder for two_way/GROUP and zero_shot.json.", default=...),
    prompt: list[str] | None = option("A sentence with {} for the class; may be given repeatedly."),
    images: "ImageSelection",
    drawn: Drawn,
) -> None:
    """Measure a model of images and texts, each found by the other.

    Images are classified by the names of their classes too. --data is table:FILE with a column text.

    \b
    aurank pairs --model aurank:runs/mine/best --prompt "a {}" --out measured
    """
    from aurank.commands import evaluate_pairs

    with drawn() as running:
        result = evaluate_pairs(model, images, templates=prompt, running=running)
    result.save(out)
    console.say(result, f"written to {out}")


@app.command()
@measuring("data", "split")
@claiming()
def probe(
    *,
    model: ModelOption,
    out: Path = option("Folder for knn.json and linear_probe.json.", default=...),
    protocol: list[str] | None = option("knn or linear_probe; default: both."),
    labels: Labels = None,
    k: int | None = option("Neighbours that vote; default: 200, or all there are.", "--k"),
    seeds: str | None = option("Seeds of the draws, such as 0,1,2."),
    images: "ImageSelection",
    drawn: Drawn,
) -> None:
    """Classify by frozen embeddings: neighbours, a linear layer.

    \b
    aurank probe --model aurank:runs/mine/best --out probed
    aurank probe --model timm:resnet18 --data folder:photos --out probed
    """
    from aurank.commands import probe_model
    from aurank.evaluation.probes import PROTOCOLS

    protocols = protocol or PROTOCOLS
    numbers = None if seeds is None else whole_numbers("--seeds", seeds)

    def finished(name: str, result: "ProbeResult") -> None:
        result.save(out / f"{name}.json")
        console.say(result, f"written to {out / f'{name}.json'}")

    with drawn(finished) as running:
        probe_model(model, images, protocols=protocols, labels=labels, k=k, seeds=numbers, running=running)


@app.command()
@measuring(*_SIDES, run=())
@claiming(is_file=True)
def compare(
    reports: list[str] = argument(
        "Two or more report.json of the same queries, or their folders; then changes of --data.",
        default=...,
        callback=reads,
    ),
    *,
    out: Path = option("The page to write.", default=Path("compare.html"), suffix=".html"),
    metric: str = option("What is compared, such as mauprc or recall@1.", default="mauprc"),
    resamples: int = option("Bootstrap resamples of intervals and p-values.", default=10_000),
    seed: int = option("Seed of the bootstrap.", default=0),
    most: int = option("How many of the queries won to list, and of those lost.", default=5, min=0),
    force: bool = option("Compare although protocols or distances differ.", "--force", default=False),
    images: "ImageSelection",
) -> None:
    """Say whether other models are better than the first, and where.

    With --data, the images that were measured, the page shows pictures.

    \b
    aurank compare runs/before runs/after
    aurank compare before after --data folder:photos --out compare.html
    """
    from aurank.commands import compare_reports

    chances: dict[str, Any] = {"resamples": resamples, "seed": seed}
    overrides = [word for word in reports if word.startswith("data.") and "=" in word]
    paths = [Path(word) for word in reports if word not in overrides]
    images = replace(images, overrides=overrides)
    with draw_stages("reading reports") as draw:
        chances |= {"metric": metric, "most": most, "force": force, "progress": partial(draw, "resampling")}
        found = compare_reports(paths, out=out, images=images, **chances)
    for name, comparison in found.items():
        console.say(*([f"{name} against the first:"] if len(found) > 1 else []), comparison)
    console.say(f"written to {out}")


def _free_to_calibrate(given: dict[str, Any]) -> None:
    from aurank.reporting.results import CALIBRATION, require_free, require_same_command

    if given["out"] is not None:
        require_free(given["out"], CALIBRATION)
        if not given["overwrite"]:
            require_same_command(given["out"], _typed(), CALIBRATION[0])


@app.command()
@measuring(*_SIDES)
@claiming(_free_to_calibrate)
def calibrate(
    *,
    model: ModelOption,
    at_precision: float | None = option("The part of the matches that has to be right, such as 0.99.", "--precision"),
    false_match_rate: float | None = option("Instead: the part of the negative pairs that may match, such as 1e-4."),
    labels: Labels = None,
    postprocess: Postprocess = None,
    fit_on: FitOn = None,
    distance: str | None = option("cosine (the default), dot or euclidean (l2)."),
    max_memory: str | None = option("Bound on the working memory, such as 1GiB."),
    out: Path | None = option("Folder for calibrate.html, calibration.csv and calibration.json."),
    overwrite: bool = option("Replace the result of another command in --out.", "--overwrite", default=False),
    images: "ImageSelection",
    drawn: Drawn,
) -> None:
    """Find the score from which on a match is right often enough.

    \b
    aurank calibrate --model embeddings:rows.npz --false-match-rate 1e-4
    aurank calibrate --model aurank:runs/mine/best --precision 0.99 --out calibrated
    """
    from aurank.commands import calibrate_model
    from aurank.reporting import calibration_page

    if at_precision is None and false_match_rate is None:
        raise UserError("what has to be reached? Give --precision 0.99 or --false-match-rate 1e-4")
    named = {"labels": labels, "postprocess": postprocess, "fit_on": fit_on}
    named |= {"distance": distance, "max_memory": max_memory}
    options: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
    with drawn() as running:
        aim: dict[str, Any] = {"precision": at_precision, "false_match_rate": false_match_rate}
        calibration = calibrate_model(model, images, **aim, running=running, **options)
    console.say(calibration)
    if out is not None:
        calibration_page.write_calibration(calibration, out, of=model, command=_typed())
        console.say(f"written to {out / 'calibration.json'}, to look at: {out / 'calibrate.html'}")
