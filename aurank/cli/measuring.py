"""Commands that run a model on images, or read what one measured."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aurank.cli.checks import require_search
from aurank.cli.command import MOST, Call, app, command
from aurank.cli.drawing import console, draw_stages, keep_baselines
from aurank.errors import OptionRule, UserError
from aurank.files import claimed, require_writable, write_text

if TYPE_CHECKING:
    from aurank.evaluation import ProbeResult

RESAMPLES, NEIGHBOURS = 1000, 10  # where a page is written: 0.25 s for 60,502 queries of 11,316 classes, 15 metrics


def _typed() -> str:
    """Return the command with its folder, as the same words mean other files elsewhere."""
    words = shlex.join(["aurank", *(word for word in sys.argv[1:] if word != "--overwrite")])
    return f"cd {shlex.quote(str(Path.cwd()))} && {words}"


@command(
    app,
    "aurank.commands.evaluate.evaluate_model",
    joined=True,
    claims="folder",
    rules=[OptionRule("--rescore", needs=("--dims", "--precision"), why="it scores their lists again")],
)
def evaluate(
    call: Call,
    *,
    out: Path,
    dims: Sequence[int] = (),
    precisions: Sequence[str] = (),
    rescore: int | None = None,
    intervals: int | None = None,
    seed: int = 0,
    report: bool = True,
    show_class: Sequence[str] = (),
    overwrite: bool = False,
    baselines: bool = False,
) -> None:
    """Measure any model, or saved embeddings, exactly.

    aurank evaluate --model aurank:runs/mine/best --out measured
    aurank evaluate --model timm:resnet18 --data folder:photos --out measured
    aurank evaluate --model embeddings:rows.npz --out measured

    Args:
        out: folder for report.html, report.json, per_query.parquet and per_class.csv.
        dims: measure the first numbers of embeddings too, such as 64,128.
        precisions: measure coarser numbers too: int8, binary, with commas.
        rescore: score the best so many of those again in float32, such as 100.
        intervals: bootstrap resamples of the 95% intervals, 0 for none; default: 1000, with --no-report 0.
        seed: seed of the bootstrap.
        report: whether to write report.html, a page to look at.
        show_class: a class whose queries the page shows; may be given repeatedly.
        overwrite: replace the result of another command in --out.
        baselines: measure chance, raw pixels and the untrained network too, into baselines.json.
    """
    from aurank.reporting.results import PAGE, REPORT, STEPS, require_free, require_same_command, write_results

    if "index" in call:
        require_search(call["index"])
    require_free(out)
    if not overwrite:
        require_same_command(out, _typed())
    if baselines and call["model"].startswith("embeddings:"):
        raise UserError(f"--baselines has no use with --model {call['model']}: it needs the images")
    from aurank.commands import evaluation_page, measure_baselines
    from aurank.commands.evaluate import EvaluateOptions
    from aurank.evaluation.bootstrap import Resampling
    from aurank.evaluation.postprocessing import Codes

    call.setdefault("neighbours", NEIGHBOURS if report else 0)
    if resamples := (RESAMPLES if report else 0) if intervals is None else intervals:
        call["resampling"] = Resampling(resamples, seed)
    if dims or precisions:
        call["codes"] = Codes(dims=tuple(dims), precisions=tuple(precisions) or ("float32",), rescore=rescore)
    results: dict[str, Any] = {}
    with call.running(results.__setitem__) as running:
        result = call(running=running)
        if running.group.rank > 0:
            return
        write_results(result.made_by(_typed()), out, overwrite=overwrite)
        if "postprocessing" in results:
            results["postprocessing"].save(out / STEPS)
        console.say(result)
        if report:
            page = evaluation_page(result.made_by(_typed()), results["measured"], classes=show_class)
            write_text(out / PAGE, page)
        if baselines:
            options = {name: value for name, value in call.items() if name in EvaluateOptions.__annotations__}
            metrics = measure_baselines(call["model"], result, call.images, running=running, **options)
    if baselines:
        keep_baselines(metrics, out)
    console.say(f"written to {out / REPORT}" + (f", to look at: {out / PAGE}" if report else ""))


@command(app, "aurank.commands.embed.embed_to_folder", joined=True)
def embed(call: Call) -> None:
    """Write the embeddings of images, with ids, paths and labels.

    aurank embed --model aurank:runs/mine/best --out test.npz
    aurank embed --model timm:resnet18 --data folder:photos --out photos.npz
    aurank embed --model timm:resnet18 --data folder:photos --out photos_in_parts
    """
    from aurank.data.shards import require_folder

    out = call["out"]
    if out.suffix == ".npz" and "shard_rows" in call:
        raise UserError(f"--shard-rows {call['shard_rows']} is for a folder of parts, and --out {out} is a file")
    if is_folder := not out.suffix or "shard_rows" in call:
        require_folder(out)
    else:
        require_writable(out, suffix=".npz")
    if is_folder:
        with call.running() as running:
            embedded = call(running=running)
            running.group.leave()
    else:
        with claimed(out, is_file=True), call.running() as running:
            from aurank.commands import embed_model

            embedded = embed_model(call["model"], call.images, running=running)
            running.group.leave()
            if running.group.rank == 0:
                embedded.save(out)
    if embedded is not None and running.group.rank == 0:
        rows, width = embedded.embeddings.shape
        console.say(f"{rows} embeddings of {width} dimensions written to {out}")


@command(app, "aurank.commands.evaluate.mine_model", without=("protocol", "root"), claims="folder")
def mine(call: Call, *, out: Path, csv: bool = False) -> None:
    """Find hard negatives, and suspect ones, which may be false.

    Train with them: sampler.name=hard_negative sampler.params.negatives=FILE

    aurank mine --model timm:resnet18 --data folder:photos --out mined
    aurank mine --model embeddings:rows.npz --margin 0.1 --out mined

    Args:
        out: folder for negatives.parquet and mine.html.
        csv: write negatives.csv too.
    """
    table, report = call()
    from aurank.data.checks.negatives import TEXTS, write_negatives
    from aurank.reporting.doctor_page import doctor_page
    from aurank.reporting.tables import without_formula

    write_negatives(table, out / "negatives.parquet")
    if csv:
        texts = {name: [*map(without_formula, table[name])] for name in TEXTS}
        write_negatives({**table, **texts}, out / "negatives.csv")
    summary = (
        "The nearest images of other classes; negatives.parquet has all pairs, and here is what is odd among them."
    )
    write_text(out / "mine.html", doctor_page(report, title="Mining", summary=summary, command=_typed()))
    console.say(report, f"written to {out / 'negatives.parquet'}, to look at: {out / 'mine.html'}")


@command(app, "aurank.commands.pairs.evaluate_pairs", without=(*MOST, "allow_code"), claims="folder")
def pairs(call: Call, *, out: Path) -> None:
    """Measure a model of images and texts, each found by the other.

    Images are classified by the names of their classes too. --data is table:FILE with a column text.

    aurank pairs --model aurank:runs/mine/best --prompt "a {}" --out measured

    Args:
        out: folder for two_way/GROUP and zero_shot.json.
    """
    result = call()
    result.save(out)
    console.say(result, f"written to {out}")


@command(app, "aurank.commands.probe.probe_model", without=MOST, claims="folder")
def probe(call: Call, *, out: Path) -> None:
    """Classify by frozen embeddings: neighbours, a linear layer.

    aurank probe --model aurank:runs/mine/best --out probed
    aurank probe --model timm:resnet18 --data folder:photos --out probed

    Args:
        out: folder for knn.json and linear_probe.json.
    """

    def finished(name: str, result: "ProbeResult") -> None:
        result.save(out / f"{name}.json")
        console.say(result, f"written to {out / f'{name}.json'}")

    call(finished=finished)


@command(app, "aurank.commands.compare.compare_reports", without=("paths", "overrides"), claims="file")
def compare(call: Call, reports: Sequence[str], *, out: Path | str = "compare.html") -> None:
    """Say whether other models are better than the first, and where.

    With --data, the images that were measured, the page shows pictures.

    aurank compare runs/before runs/after
    aurank compare before after --data folder:photos --out compare.html

    Args:
        reports: two or more report.json of the same queries, or their folders; then changes of --data.
        out: the page to write.
    """
    overrides = [word for word in reports if word.startswith("data.") and "=" in word]
    paths, images = [Path(word) for word in reports if word not in overrides], replace(call.images, overrides=overrides)
    with draw_stages("reading reports") as draw:
        comparisons = call(paths=paths, out=out, images=images, progress=partial(draw, "resampling"))
    for name, comparison in comparisons.items():
        console.say(*([f"{name} against the first:"] if len(comparisons) > 1 else []), comparison)
    console.say(f"written to {out}")


@command(app, "aurank.commands.evaluate.calibrate_model", without=("bf16",), claims="folder")
def calibrate(call: Call, *, out: Path | None = None, overwrite: bool = False) -> None:
    """Find the score from which on a match is right often enough.

    aurank calibrate --model embeddings:rows.npz --false-match-rate 1e-4
    aurank calibrate --model aurank:runs/mine/best --precision 0.99 --out made

    Args:
        out: folder for calibrate.html and calibration.json.
        overwrite: replace the result of another command in --out.
    """
    from aurank.reporting.results import CALIBRATION, require_free, require_same_command

    if out is not None:
        require_free(out, CALIBRATION)
        if not overwrite:
            require_same_command(out, _typed(), CALIBRATION[0])
    calibration = call()
    console.say(calibration)
    if out is not None:
        from aurank.reporting import calibration_page

        calibration_page.write_calibration(calibration, out, of=call["model"], command=_typed())
        console.say(f"written to {out / 'calibration.json'}, to look at: {out / 'calibrate.html'}")
