"""Commands that make something of a trained model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aurank.cli.app import app
from aurank.cli.drawing import console
from aurank.cli.options import Drawn, measuring

if TYPE_CHECKING:
    from aurank.embedding import ImageSelection


@app.command()
@measuring("data", "split", allow_code=False, caching=False)
def export(
    checkpoint: Annotated[str, typer.Argument(help="DIR/best of a run.")],
    *,
    to: Annotated[str, typer.Option(help="onnx, torchexport, safetensors or hf (timm's layout).")],
    out: Annotated[Path, typer.Option(help="Folder to make: the model, README.md, export.json.")],
    int8: Annotated[bool, typer.Option("--int8", help="An ONNX graph of 8 bits too, and what it loses.")] = False,
    licence: Annotated[str | None, typer.Option("--license", help="For the card, such as mit.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export in --out.")] = False,
    images: "ImageSelection",
    drawn: Drawn,
) -> None:
    """Write a trained model for use elsewhere, checked against the checkpoint on real images."""
    from aurank.commands import export_model
    from aurank.commands.export import require_target

    target = require_target(to)
    with drawn() as running:
        given = {"images": images, "int8": int8, "licence": licence, "overwrite": overwrite}
        exported = export_model(checkpoint, target, out, running=running, **given)  # type: ignore[arg-type]
    console.say(exported)
