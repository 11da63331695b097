"""The command that chooses a threshold."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aurank.cli.app import app
from aurank.cli.drawing import console
from aurank.cli.options import Drawn, FitOn, Labels, Postprocess, claiming, measuring
from aurank.errors import UserError

if TYPE_CHECKING:
    from aurank.embedding import ImageSelection


@app.command()
@measuring("data", "split", "protocol", "root", "query", "gallery")
@claiming()
def calibrate(
    report: Annotated[
        str | None, typer.Argument(metavar="REPORT", help="A report.json, or the folder that holds it.")
    ] = None,
    *,
    model: Annotated[
        str | None, typer.Option("--model", help="Instead of a report: a model, as for evaluate; counts all pairs.")
    ] = None,
    precision: Annotated[
        float | None, typer.Option(help="The part of the matches that has to be right, such as 0.99.")
    ] = None,
    false_match_rate: Annotated[
        float | None, typer.Option(help="Instead: the part of the negative pairs that may match, such as 1e-4.")
    ] = None,
    labels: Labels = None,
    postprocess: Postprocess = None,
    fit_on: FitOn = None,
    distance: Annotated[str | None, typer.Option(help="With --model: cosine (the default), dot or euclidean.")] = None,
    max_memory: Annotated[
        str | None, typer.Option(help="With --model: bound on the working memory, such as 1GiB.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for calibrate.html, calibration.csv and calibration.json.")
    ] = None,
    images: "ImageSelection",
    drawn: Drawn,
) -> None:
    """Find the score from which on a match is right often enough.

    \b
    aurank calibrate measured --precision 0.99 --out calibrated
    aurank calibrate --model embeddings:rows.npz --false-match-rate 1e-4
    """
    from aurank.commands import calibrate_model
    from aurank.evaluation import Report, calibrate_report
    from aurank.evaluation.calibration.calibrate import Aim
    from aurank.reporting.calibration_page import require_free_calibration, write_calibration

    if model is not None and report is not None:  # a change of the data section stands where a report would
        images, report = replace(images, overrides=[report, *images.overrides]), None
    if precision is None and false_match_rate is None:
        raise UserError("what has to be reached? Give --precision 0.99 or --false-match-rate 1e-4")
    aim = Aim(precision, false_match_rate)
    if out is not None:
        require_free_calibration(out)
    if model is not None:
        given: dict[str, Any] = {"labels": labels, "postprocess": postprocess, "fit_on": fit_on}
        given |= {"distance": distance, "max_memory": max_memory}
        with drawn() as running:
            chosen = {name: value for name, value in given.items() if value is not None}
            found = calibrate_model(model, images, **vars(aim), running=running, **chosen)
    elif report is not None:
        typed = {"--labels": labels, "--postprocess": postprocess, "--fit-on": fit_on, "--distance": distance}
        typed["--max-memory"] = max_memory
        with drawn() as running:
            refused = [*images.given, *(f"{name} {value}" for name, value in typed.items() if value), *running.given]
        if refused:
            raise UserError(
                f"{refused[0]} has no use with a report, which says what was measured: add --model, or drop it"
            )
        path = Path(report)
        found = calibrate_report(Report.load(path / "report.json" if path.is_dir() else path), **vars(aim))
    else:
        raise UserError(
            "name a report, such as DIR/report.json, or a model as for evaluate, such as --model embeddings:FILE"
        )
    console.say(found)
    if out is not None:
        write_calibration(found, out, of=model or str(report))
        console.say(f"written to {out / 'calibration.json'}, to look at: {out / 'calibrate.html'}")
