"""Commands that make something of a trained model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aurank.cli.app import app
from aurank.cli.drawing import console
from aurank.cli.options import Drawn, claiming, measuring

if TYPE_CHECKING:
    from aurank.embedding import ImageSelection


@app.command()
@claiming()
def average(
    runs: Annotated[list[str], typer.Argument(metavar="RUN", help="Folders of runs, or DIR/best, DIR/last.")],
    out: Annotated[Path, typer.Option(help="Folder to make, with best.safetensors in it.")],
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


@app.command()
@measuring("data", "split", allow_code=False, caching=False)
@claiming()
def export(
    checkpoint: Annotated[str, typer.Argument(help="DIR/best of a run, such as runs/mine/best.")],
    *,
    to: Annotated[str, typer.Option(help="onnx, torchexport, safetensors, or hf, a folder that timm loads.")],
    out: Annotated[Path, typer.Option(help="Folder to make, of the model, README.md and export.json.")],
    int8: Annotated[
        bool, typer.Option("--int8", help="Write an ONNX graph of 8 bits too, and say what it loses.")
    ] = False,
    licence: Annotated[str | None, typer.Option("--license", help="Licence named in README.md, such as mit.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export in --out.")] = False,
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
    from aurank.commands.export import require_target

    target = require_target(to)
    with drawn() as running:
        given = {"images": images, "int8": int8, "licence": licence, "overwrite": overwrite}
        exported = export_model(checkpoint, target, out, running=running, **given)  # type: ignore[arg-type]
    console.say(exported)
